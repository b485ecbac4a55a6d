"""Reports say how long the device's step took, so that waiting for data is a share of something

Revision: 0003; follows 0002.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("reports", sa.Column("elapsed_s", sa.Float(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("reports", "elapsed_s")
