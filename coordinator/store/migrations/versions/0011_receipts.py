"""Receipts, and how much of each report they confirm; what was reported before there were any counts as it was claimed

Revision: 0011; follows 0010.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "receipts",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("device_id", sa.String(32), sa.ForeignKey("devices.id"), nullable=False),
        sa.Column("era", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("samples", sa.Text(), nullable=False),
        sa.Column("signature", sa.LargeBinary(512), nullable=False),
        sa.Column("received_at", sa.Float(), nullable=False),
        sa.UniqueConstraint("device_id", "era", "step", name="uq_receipts_device_era_step"),
    )
    op.create_index("ix_receipts_step", "receipts", ["step"])
    op.add_column("reports", sa.Column("counted", sa.Integer(), nullable=True))
    op.execute("UPDATE reports SET counted = samples")


def downgrade() -> None:
    op.drop_column("reports", "counted")
    op.drop_table("receipts")
