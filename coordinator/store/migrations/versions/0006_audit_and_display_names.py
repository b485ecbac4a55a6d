"""Acts of administration are kept, and members may be shown under another name

Revision: 0006; follows 0005.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("actor", sa.String(length=100), nullable=False),
        sa.Column("act", sa.String(length=32), nullable=False),
        sa.Column("subject", sa.String(length=128), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
    )
    op.create_index("ix_audit_entries_at", "audit_entries", ["at"])
    op.add_column("members", sa.Column("display_name", sa.String(length=64), nullable=True))


def downgrade() -> None:
    op.drop_column("members", "display_name")
    op.drop_table("audit_entries")
