"""What replicas of the service share: spent nonces, offers to relay, tries of passwords

Revision: 0016; follows 0015.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.create_table(
        "spent_nonces",
        sa.Column("nonce", sa.LargeBinary(32), primary_key=True),
        sa.Column("expires_at", sa.Float(), nullable=False),
    )
    op.create_index("ix_spent_nonces_expires_at", "spent_nonces", ["expires_at"])
    op.create_table(
        "relay_offers",
        sa.Column("session_id", sa.String(32), sa.ForeignKey("sessions.id"), primary_key=True),
        sa.Column("address", sa.Text(), nullable=False),
    )
    op.create_table(
        "login_tries",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("account_sha256", sa.LargeBinary(32), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
    )
    op.create_index("ix_login_tries_account_sha256", "login_tries", ["account_sha256"])
    op.create_index("ix_login_tries_at", "login_tries", ["at"])


def downgrade() -> None:
    for table in ("login_tries", "relay_offers", "spent_nonces"):
        op.drop_table(table)
