"""A device is active as long as its newest token is valid

Revision: 0009; follows 0008.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("devices", sa.Column("token_until", sa.Float(), nullable=True))


def downgrade() -> None:
    op.drop_column("devices", "token_until")
