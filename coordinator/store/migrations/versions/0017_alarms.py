"""How far steps moved the parameters, what a unigram would lose, and which alarms hold

Revision: 0017; follows 0016.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.create_table(
        "update_norms",
        sa.Column("step", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("norm", sa.Float(), nullable=False),
    )
    op.create_table(
        "unigram_baselines",
        sa.Column("set_sha256", sa.String(64), primary_key=True),
        sa.Column("loss", sa.Float(), nullable=False),
    )
    op.create_table(
        "alarms",
        sa.Column("kind", sa.String(32), primary_key=True),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("raised_at", sa.Float(), nullable=False),
    )


def downgrade() -> None:
    for table in ("alarms", "unigram_baselines", "update_norms"):
        op.drop_table(table)
