"""A checkpoint that did not pass the gate is not published

Revision: 0012; follows 0011.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("withheld", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("checkpoints", "withheld")
