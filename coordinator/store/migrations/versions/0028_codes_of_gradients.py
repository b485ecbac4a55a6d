"""The compression and PowerSGD's rank that operators change at a step

Revision: 0028; follows 0027.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    op.add_column("steering_acts", sa.Column("compression", sa.String(32), nullable=True))
    op.add_column("steering_acts", sa.Column("powersgd_rank", sa.Integer(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("steering_acts") as table:
        table.drop_column("powersgd_rank")
        table.drop_column("compression")
