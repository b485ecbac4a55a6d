"""Members who log in with an identity provider, and the list of those who may

Revision: 0008; follows 0007.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("member_id", sa.Integer(), sa.ForeignKey("members.id"), nullable=False),
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("label", sa.String(320), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.UniqueConstraint("issuer", "subject", name="uq_accounts_issuer_subject"),
    )
    op.create_index("ix_accounts_member_id", "accounts", ["member_id"])
    op.create_table(
        "allowlist",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("entry", sa.String(320), nullable=False, unique=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("member_id", sa.Integer(), sa.ForeignKey("members.id")),
        sa.Column("account_id", sa.Integer(), sa.ForeignKey("accounts.id")),
    )
    op.create_table(
        "device_logins",
        sa.Column("device_id", sa.String(32), sa.ForeignKey("devices.id"), primary_key=True),
        sa.Column("account_id", sa.Integer(), sa.ForeignKey("accounts.id"), nullable=False),
    )
    op.create_index("ix_device_logins_account_id", "device_logins", ["account_id"])


def downgrade() -> None:
    for table in ("device_logins", "allowlist", "accounts"):
        op.drop_table(table)
