"""Whose name is not shown: by the member's wish, or by the operator's

Revision: 0019; follows 0018.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.create_table(
        "namings",
        sa.Column("member_id", sa.Integer(), sa.ForeignKey("members.id"), primary_key=True, autoincrement=False),
        sa.Column("anonymous", sa.Boolean(), nullable=False),
        sa.Column("hidden_at", sa.Float(), nullable=True),
    )


def downgrade() -> None:
    op.drop_table("namings")
