"""What held-out samples say of each checkpoint

Revision: 0004; follows 0003.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "validations",
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("era", sa.Integer(), nullable=False),
        sa.Column("manifest_sha256", sa.String(length=64), nullable=False),
        sa.Column("set_sha256", sa.String(length=64), nullable=False),
        sa.Column("sequence_length", sa.Integer(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("predicted_tokens", sa.Integer(), nullable=False),
        sa.Column("mlm_loss", sa.Float(), nullable=True),
        sa.Column("sop_loss", sa.Float(), nullable=True),
        sa.Column("accuracy", sa.Float(), nullable=False),
        sa.Column("sop_accuracy", sa.Float(), nullable=True),
        sa.Column("elapsed_s", sa.Float(), nullable=False),
        sa.Column("evaluated_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("step"),
    )


def downgrade() -> None:
    op.drop_table("validations")
