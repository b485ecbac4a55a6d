"""What operators say of a live run

Revision: 0015; follows 0014.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.create_table(
        "steering_acts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("actor", sa.String(100), nullable=False),
        sa.Column("act", sa.String(16), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("learning_rate_scale", sa.Float(), nullable=True),
        sa.Column("target_batch_size", sa.BigInteger(), nullable=True),
        sa.Column("checkpoint_every", sa.Integer(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def downgrade() -> None:
    op.drop_table("steering_acts")
