"""Devices in quarantine, and what devices say of each other

Revision: 0010; follows 0009.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("devices", sa.Column("quarantined_at", sa.Float(), nullable=True))
    op.add_column("revocations", sa.Column("change", sa.String(16), nullable=False, server_default="revoked"))
    op.add_column("revocations", sa.Column("actor", sa.String(100), nullable=False, server_default=""))
    op.create_table(
        "suspicions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("device_id", sa.String(32), nullable=False),
        sa.Column("witness_id", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"]),
        sa.ForeignKeyConstraint(["witness_id"], ["devices.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_suspicions_device_id", "suspicions", ["device_id"])
    op.create_index("ix_suspicions_witness_id", "suspicions", ["witness_id"])


def downgrade() -> None:
    op.drop_table("suspicions")
    op.execute("DELETE FROM revocations WHERE change <> 'revoked'")
    with op.batch_alter_table("revocations") as table:
        table.drop_column("actor")
        table.drop_column("change")
    with op.batch_alter_table("devices") as table:
        table.drop_column("quarantined_at")
