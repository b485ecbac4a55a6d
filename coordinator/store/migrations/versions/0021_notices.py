"""Which milestones were told where

Revision: 0021; follows 0020.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.create_table(
        "notices",
        sa.Column("milestone", sa.String(64), nullable=False),
        sa.Column("webhook", sa.String(64), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("begun_at", sa.Float(), nullable=True),
        sa.Column("next_at", sa.Float(), nullable=False),
        sa.Column("ended", sa.String(16), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("milestone", "webhook"),
    )


def downgrade() -> None:
    op.drop_table("notices")
