"""The tables of the first release.

Revision: 0001; the first.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "administrators",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "alarms",
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("raised_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("kind"),
    )
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("actor", sa.String(length=100), nullable=False),
        sa.Column("act", sa.String(length=32), nullable=False),
        sa.Column("subject", sa.String(length=128), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_audit_entries_at"), "audit_entries", ["at"], unique=False)
    op.create_table(
        "checkpoints",
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("manifest_sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("withheld", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("step"),
    )
    op.create_table(
        "database_owner",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("run", sa.String(length=64), nullable=False),
        sa.Column("certificate_sha256", sa.String(length=64), nullable=False),
        sa.Column("authority_key", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "eras",
        sa.Column("era", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("after_step", sa.Integer(), nullable=False),
        sa.Column("began_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("era"),
    )
    op.create_table(
        "evaluations",
        sa.Column("manifest_sha256", sa.String(length=64), nullable=False),
        sa.Column("task", sa.String(length=40), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("evaluator", sa.String(length=40), nullable=False),
        sa.Column("task_sha256", sa.String(length=64), nullable=False),
        sa.Column("result", sa.Text(), nullable=False),
        sa.Column("evaluated_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("manifest_sha256", "task"),
    )
    op.create_table(
        "evaluators",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("public_key", sa.LargeBinary(length=32), nullable=False),
        sa.Column("added_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sa.UniqueConstraint("public_key"),
    )
    op.create_table(
        "login_tries",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("account_sha256", sa.LargeBinary(length=32), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_login_tries_account_sha256"), "login_tries", ["account_sha256"], unique=False)
    op.create_index(op.f("ix_login_tries_at"), "login_tries", ["at"], unique=False)
    op.create_table(
        "members",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("display_name", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("revoked_at", sa.Float(), nullable=True),
        sa.Column("revoked_reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "notices",
        sa.Column("milestone", sa.String(length=64), nullable=False),
        sa.Column("webhook", sa.String(length=64), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("begun_at", sa.Float(), nullable=True),
        sa.Column("next_at", sa.Float(), nullable=False),
        sa.Column("ended", sa.String(length=16), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("milestone", "webhook"),
    )
    op.create_table(
        "publications",
        sa.Column("place", sa.String(length=500), nullable=False),
        sa.Column("manifest_sha256", sa.String(length=64), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("published_at", sa.Float(), nullable=True),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("place", "manifest_sha256"),
    )
    op.create_table(
        "questions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("manifest_sha256", sa.String(length=64), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("asked_at", sa.Float(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("answered_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_questions_asked_at"), "questions", ["asked_at"], unique=False)
    op.create_table(
        "spent_nonces",
        sa.Column("nonce", sa.LargeBinary(length=32), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("nonce"),
    )
    op.create_index(op.f("ix_spent_nonces_expires_at"), "spent_nonces", ["expires_at"], unique=False)
    op.create_table(
        "steering_acts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("actor", sa.String(length=100), nullable=False),
        sa.Column("act", sa.String(length=16), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("learning_rate_scale", sa.Float(), nullable=True),
        sa.Column("target_batch_size", sa.BigInteger(), nullable=True),
        sa.Column("checkpoint_every", sa.Integer(), nullable=True),
        sa.Column("compression", sa.String(length=32), nullable=True),
        sa.Column("powersgd_rank", sa.Integer(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
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
        "swarm_figures",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("rounds_failed", sa.Integer(), nullable=False),
        sa.Column("rounds_by_duration", sa.Text(), nullable=False),
        sa.Column("rounds_seconds", sa.Float(), nullable=False),
        sa.Column("census", sa.Text(), nullable=False),
        sa.Column("missing_auxiliaries", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
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
        "unigram_baselines",
        sa.Column("set_sha256", sa.String(length=64), nullable=False),
        sa.Column("loss", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("set_sha256"),
    )
    op.create_table(
        "update_norms",
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("norm", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("step"),
    )
    op.create_table(
        "validations",
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("era", sa.Integer(), nullable=False),
        sa.Column("manifest_sha256", sa.String(length=64), nullable=False),
        sa.Column("set_sha256", sa.String(length=64), nullable=False),
        sa.Column("sequence_length", sa.Integer(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("predicted_tokens", sa.Integer(), nullable=False),
        sa.Column("mlm_loss", sa.Float(), nullable=True),
        sa.Column("sop_loss", sa.Float(), nullable=True),
        sa.Column("accuracy", sa.Float(), nullable=False),
        sa.Column("sop_accuracy", sa.Float(), nullable=True),
        sa.Column("detection_loss", sa.Float(), nullable=True),
        sa.Column("detection_accuracy", sa.Float(), nullable=True),
        sa.Column("detection_f1", sa.Float(), nullable=True),
        sa.Column("elapsed_s", sa.Float(), nullable=False),
        sa.Column("evaluated_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("step"),
    )
    op.create_table(
        "accounts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("member_id", sa.Integer(), nullable=False),
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("label", sa.String(length=320), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(["member_id"], ["members.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("issuer", "subject", name="uq_accounts_issuer_subject"),
    )
    op.create_index(op.f("ix_accounts_member_id"), "accounts", ["member_id"], unique=False)
    op.create_table(
        "admin_sessions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("administrator_id", sa.Integer(), nullable=False),
        sa.Column("token_sha256", sa.LargeBinary(length=32), nullable=False),
        sa.Column("csrf_token", sa.String(length=64), nullable=False),
        sa.Column("last_seen_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["administrator_id"], ["administrators.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("token_sha256"),
    )
    op.create_table(
        "devices",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("member_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("peer_id", sa.String(length=64), nullable=False),
        sa.Column("public_key", sa.LargeBinary(), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("revoked_at", sa.Float(), nullable=True),
        sa.Column("quarantined_at", sa.Float(), nullable=True),
        sa.Column("token_until", sa.Float(), nullable=True),
        sa.Column("receipt_key", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(["member_id"], ["members.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("number"),
        sa.UniqueConstraint("peer_id"),
    )
    op.create_index(op.f("ix_devices_member_id"), "devices", ["member_id"], unique=False)
    op.create_index(op.f("ix_devices_receipt_key"), "devices", ["receipt_key"], unique=True)
    op.create_table(
        "namings",
        sa.Column("member_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("anonymous", sa.Boolean(), nullable=False),
        sa.Column("hidden_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["member_id"], ["members.id"]),
        sa.PrimaryKeyConstraint("member_id"),
    )
    op.create_table(
        "unnamed_members",
        sa.Column("member_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["member_id"], ["members.id"]),
        sa.PrimaryKeyConstraint("member_id"),
    )
    op.create_table(
        "allowlist",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("entry", sa.String(length=320), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("member_id", sa.Integer(), nullable=True),
        sa.Column("account_id", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.ForeignKeyConstraint(["member_id"], ["members.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("entry"),
    )
    op.create_table(
        "daily_shares",
        sa.Column("device_id", sa.String(length=32), nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("reports", sa.Integer(), nullable=False),
        sa.Column("claimed", sa.BigInteger(), nullable=False),
        sa.Column("counted", sa.BigInteger(), nullable=False),
        sa.Column("pending", sa.BigInteger(), nullable=False),
        sa.Column("undone", sa.BigInteger(), nullable=False),
        sa.Column("elapsed_s", sa.Float(), nullable=False),
        sa.Column("data_wait_s", sa.Float(), nullable=False),
        sa.Column("averaged_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"]),
        sa.PrimaryKeyConstraint("device_id", "day"),
    )
    op.create_index("ix_daily_shares_day", "daily_shares", ["day"], unique=False)
    op.create_table(
        "device_logins",
        sa.Column("device_id", sa.String(length=32), nullable=False),
        sa.Column("account_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"]),
        sa.PrimaryKeyConstraint("device_id"),
    )
    op.create_index(op.f("ix_device_logins_account_id"), "device_logins", ["account_id"], unique=False)
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
        "loss_marks",
        sa.Column("device_id", sa.String(length=32), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"]),
        sa.PrimaryKeyConstraint("device_id"),
    )
    op.create_table(
        "lost_samples",
        sa.Column("device_id", sa.String(length=32), nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("cause", sa.String(length=20), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("times", sa.Integer(), nullable=False),
        sa.Column("last_step", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"]),
        sa.PrimaryKeyConstraint("device_id", "day", "cause"),
    )
    op.create_table(
        "receipts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.String(length=32), nullable=False),
        sa.Column("era", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("samples", sa.Text(), nullable=False),
        sa.Column("signature", sa.LargeBinary(length=512), nullable=True),
        sa.Column("received_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("device_id", "era", "step", name="uq_receipts_device_era_step"),
    )
    op.create_index("ix_receipts_step", "receipts", ["step"], unique=False)
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
        sa.Column("change", sa.String(length=16), server_default="revoked", nullable=False),
        sa.Column("actor", sa.String(length=100), server_default="", nullable=False),
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
        "suspicions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("device_id", sa.String(length=32), nullable=False),
        sa.Column("witness_id", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"]),
        sa.ForeignKeyConstraint(["witness_id"], ["devices.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_suspicions_at"), "suspicions", ["at"], unique=False)
    op.create_index(op.f("ix_suspicions_device_id"), "suspicions", ["device_id"], unique=False)
    op.create_index(op.f("ix_suspicions_witness_id"), "suspicions", ["witness_id"], unique=False)
    op.create_table(
        "relay_offers",
        sa.Column("session_id", sa.String(length=32), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"]),
        sa.PrimaryKeyConstraint("session_id"),
    )
    op.create_table(
        "reports",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.String(length=32), nullable=False),
        sa.Column("session_id", sa.String(length=32), nullable=True),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("era", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("counted", sa.Integer(), nullable=True),
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
        sa.Column("elapsed_s", sa.Float(), nullable=False),
        sa.Column("averaged_bytes", sa.BigInteger(), nullable=False),
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
