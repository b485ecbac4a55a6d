"""The first tables

Revision: 0001; follows nothing.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("manifest_sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("step"),
    )
    op.create_table(
        "eras",
        sa.Column("era", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("after_step", sa.Integer(), nullable=False),
        sa.Column("began_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("era"),
    )
    op.create_table(
        "members",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("revoked_at", sa.Float(), nullable=True),
        sa.Column("revoked_reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "steps",
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("era", sa.Integer(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("loss_sum", sa.Float(), nullable=False),
        sa.Column("loss_samples", sa.Integer(), nullable=False),
        sa.Column("devices", sa.Integer(), nullable=False),
        sa.Column("target_batch_size", sa.Integer(), nullable=False),
        sa.Column("completed_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("step"),
    )
    op.create_table(
        "swarm_status",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("era", sa.Integer(), nullable=False),
        sa.Column("samples_accumulated", sa.Integer(), nullable=False),
        sa.Column("target_batch_size", sa.Integer(), nullable=False),
        sa.Column("peers", sa.Integer(), nullable=False),
        sa.Column("samples_per_second", sa.Float(), nullable=False),
        sa.Column("eta_s", sa.Float(), nullable=True),
        sa.Column("addresses", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "devices",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("member_id", sa.Integer(), nullable=False),
        sa.Column("peer_id", sa.String(length=64), nullable=False),
        sa.Column("public_key", sa.LargeBinary(), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("revoked_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["member_id"], ["members.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("peer_id"),
    )
    op.create_index(op.f("ix_devices_member_id"), "devices", ["member_id"], unique=False)
    op.create_table(
        "invites",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("member_id", sa.Integer(), nullable=False),
        sa.Column("code_sha256", sa.LargeBinary(length=32), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("used_at", sa.Float(), nullable=True),
        sa.Column("used_by_device_id", sa.String(length=32), nullable=True),
        sa.ForeignKeyConstraint(["member_id"], ["members.id"]),
        sa.ForeignKeyConstraint(["used_by_device_id"], ["devices.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("code_sha256"),
    )
    op.create_index(op.f("ix_invites_member_id"), "invites", ["member_id"], unique=False)
    op.create_table(
        "refusals",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("code", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("device_id", sa.String(length=32), nullable=True),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_refusals_at"), "refusals", ["at"], unique=False)
    op.create_table(
        "revocations",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.String(length=32), nullable=False),
        sa.Column("peer_id", sa.String(length=64), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("device_id", sa.String(length=32), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("last_seen_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("hardware", sa.String(length=200), nullable=False),
        sa.Column("software_version", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("own_samples", sa.Integer(), nullable=False),
        sa.Column("samples_per_second", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_sessions_device_id"), "sessions", ["device_id"], unique=False)
    op.create_index(op.f("ix_sessions_last_seen_at"), "sessions", ["last_seen_at"], unique=False)
    op.create_table(
        "reports",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.String(length=32), nullable=False),
        sa.Column("session_id", sa.String(length=32), nullable=True),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("era", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("loss", sa.Float(), nullable=True),
        sa.Column("mlm_loss", sa.Float(), nullable=True),
        sa.Column("sop_loss", sa.Float(), nullable=True),
        sa.Column("group_size", sa.Integer(), nullable=False),
        sa.Column("group_samples", sa.Integer(), nullable=True),
        sa.Column("averaging_s", sa.Float(), nullable=False),
        sa.Column("samples_per_second", sa.Float(), nullable=False),
        sa.Column("lost_samples", sa.Integer(), nullable=False),
        sa.Column("lost_reason", sa.String(length=40), nullable=False),
        sa.Column("data_wait_s", sa.Float(), nullable=False),
        sa.Column("completed_at", sa.Float(), nullable=False),
        sa.Column("received_at", sa.Float(), nullable=False),
        sa.Column("superseded", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"]),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("device_id", "era", "step", name="uq_reports_device_era_step"),
        sa.UniqueConstraint("device_id", "seq", name="uq_reports_device_seq"),
    )
    op.create_index("ix_reports_step", "reports", ["step"], unique=False)


def downgrade() -> None:
    for table in (
        "reports",
        "sessions",
        "revocations",
        "refusals",
        "invites",
        "devices",
        "swarm_status",
        "steps",
        "members",
        "eras",
        "checkpoints",
    ):
        op.drop_table(table)
