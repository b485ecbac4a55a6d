"""Reports say how much of others' numbers the device averaged: what auxiliary peers give

Revision: 0005; follows 0004.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("reports", sa.Column("averaged_bytes", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("reports", "averaged_bytes")
