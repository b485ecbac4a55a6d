"""What the keeper counts of its rounds and peers; suspicions by time

Revision: 0013; follows 0012.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_table(
        "swarm_figures",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("rounds_failed", sa.Integer(), nullable=False),
        sa.Column("rounds_by_duration", sa.Text(), nullable=False),
        sa.Column("rounds_seconds", sa.Float(), nullable=False),
        sa.Column("census", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_suspicions_at", "suspicions", ["at"])


def downgrade() -> None:
    op.drop_index("ix_suspicions_at", "suspicions")
    op.drop_table("swarm_figures")
