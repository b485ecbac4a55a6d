"""What each device gave and lost on each day

Revision: 0018; follows 0017. The days of older reports are added up; of what was lost the one reason is known that they
name.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.create_table(
        "daily_shares",
        sa.Column("device_id", sa.String(32), sa.ForeignKey("devices.id"), primary_key=True),
        sa.Column("day", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("reports", sa.Integer(), nullable=False),
        sa.Column("claimed", sa.BigInteger(), nullable=False),
        sa.Column("counted", sa.BigInteger(), nullable=False),
        sa.Column("pending", sa.BigInteger(), nullable=False),
        sa.Column("undone", sa.BigInteger(), nullable=False),
        sa.Column("elapsed_s", sa.Float(), nullable=False),
        sa.Column("data_wait_s", sa.Float(), nullable=False),
        sa.Column("averaged_bytes", sa.BigInteger(), nullable=False),
    )
    op.create_index("ix_daily_shares_day", "daily_shares", ["day"])
    op.create_table(
        "lost_samples",
        sa.Column("device_id", sa.String(32), sa.ForeignKey("devices.id"), primary_key=True),
        sa.Column("day", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("cause", sa.String(20), primary_key=True),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("times", sa.Integer(), nullable=False),
        sa.Column("last_step", sa.Integer(), nullable=False),
    )
    op.create_table(
        "loss_marks",
        sa.Column("device_id", sa.String(32), sa.ForeignKey("devices.id"), primary_key=True),
        sa.Column("seq", sa.BigInteger(), nullable=False),
    )
    _add_up()


def _add_up() -> None:
    day = "CAST(FLOOR(completed_at / 86400) AS INTEGER)"
    if op.get_bind().dialect.name == "sqlite":  # whose builds need not have FLOOR, and whose CAST cuts off
        day = "CAST(completed_at / 86400 AS INTEGER)"
    valid = "NOT superseded"
    op.execute(
        f"""
        INSERT INTO daily_shares (device_id, day, reports, claimed, counted, pending, undone, elapsed_s, data_wait_s,
                                  averaged_bytes)
        SELECT device_id, {day},
            SUM(CASE WHEN {valid} THEN 1 ELSE 0 END),
            SUM(CASE WHEN {valid} THEN samples ELSE 0 END),
            SUM(CASE WHEN {valid} THEN COALESCE(counted, 0) ELSE 0 END),
            SUM(CASE WHEN {valid} AND counted IS NULL THEN samples ELSE 0 END),
            SUM(CASE WHEN {valid} THEN 0 ELSE samples END),
            SUM(CASE WHEN {valid} THEN elapsed_s ELSE 0 END),
            SUM(CASE WHEN {valid} THEN data_wait_s ELSE 0 END),
            SUM(CASE WHEN {valid} THEN averaged_bytes ELSE 0 END)
        FROM reports GROUP BY device_id, {day}
        """  # noqa: S608  our own text
    )
    op.execute(
        f"""
        INSERT INTO lost_samples (device_id, day, cause, samples, times, last_step)
        SELECT device_id, {day},
            CASE WHEN lost_reason IN ('non-finite', 'averaging failed', 'out of sync') THEN lost_reason
                 ELSE 'other' END,
            SUM(lost_samples), COUNT(*), MAX(step)
        FROM reports WHERE lost_samples > 0 GROUP BY 1, 2, 3
        """  # noqa: S608  our own text
    )


def downgrade() -> None:
    for table in ("loss_marks", "lost_samples", "daily_shares"):
        op.drop_table(table)
