"""How many auxiliary peers a swarm lacks, by the lines of its newest round

Revision: 0025; follows 0024.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.add_column("swarm_figures", sa.Column("missing_auxiliaries", sa.Integer(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("swarm_figures") as table:
        table.drop_column("missing_auxiliaries")
