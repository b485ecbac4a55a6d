"""Tables of the ledger: receipts, daily sums, lost samples, and steering commands.

The dashboard reads the daily sums, which is faster than adding up all reports.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Float, ForeignKey, Index, Integer, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.store.base import Base

DAY_S = 86_400


def day_of(at: float) -> int:
    """Return the UTC day of a Unix time, in days since 1970-01-01."""
    return int(at // DAY_S)


class Receipt(Base):
    """A device's signed receipt for a global step; `coordinator.ledger.receipts` stores a few."""

    __tablename__ = "receipts"
    __table_args__ = (
        UniqueConstraint("device_id", "era", "step", name="uq_receipts_device_era_step"),
        Index("ix_receipts_step", "step"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[str] = mapped_column(ForeignKey("devices.id"))  # device that signed the receipt
    era: Mapped[int] = mapped_column(Integer)
    step: Mapped[int] = mapped_column(Integer)
    samples: Mapped[str] = mapped_column(Text)  # JSON: samples by device number, to reconstruct the signed text
    # Null for receipts that contain libp2p identities; these receipts are valid but not published.
    signature: Mapped[bytes | None] = mapped_column(LargeBinary(512))
    received_at: Mapped[float] = mapped_column(Float)


class DailyShare(Base):
    """The sums over a device's reports of one UTC day; see `coordinator.ledger.ledger`."""

    __tablename__ = "daily_shares"
    __table_args__ = (Index("ix_daily_shares_day", "day"),)

    device_id: Mapped[str] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    day: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)  # UTC days since 1970-01-01
    reports: Mapped[int] = mapped_column(Integer, default=0)
    claimed: Mapped[int] = mapped_column(BigInteger, default=0)  # number of samples claimed in reports
    counted: Mapped[int] = mapped_column(BigInteger, default=0)  # part of `claimed` confirmed by receipts
    pending: Mapped[int] = mapped_column(BigInteger, default=0)  # part of `claimed` without any receipt so far
    undone: Mapped[int] = mapped_column(BigInteger, default=0)  # samples of undone steps, not included in `claimed`
    elapsed_s: Mapped[float] = mapped_column(Float, default=0.0)
    data_wait_s: Mapped[float] = mapped_column(Float, default=0.0)
    averaged_bytes: Mapped[int] = mapped_column(BigInteger, default=0)


class LostSamples(Base):
    """A device's lost samples by cause and UTC day; see `coordinator.ledger.ledger`."""

    __tablename__ = "lost_samples"

    device_id: Mapped[str] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    day: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    cause: Mapped[str] = mapped_column(String(20), primary_key=True)  # value of peer.reporting.messages.LostCause
    samples: Mapped[int] = mapped_column(BigInteger, default=0)
    times: Mapped[int] = mapped_column(Integer, default=0)
    last_step: Mapped[int] = mapped_column(Integer, default=0)


class LossMark(Base):
    """The sequence number of a device's last report of lost samples, to detect duplicates."""

    __tablename__ = "loss_marks"

    device_id: Mapped[str] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger)


class SteeringAct(Base):
    """One steering command; `coordinator.ledger.steering` combines all commands."""

    __tablename__ = "steering_acts"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float] = mapped_column(Float)
    actor: Mapped[str] = mapped_column(String(100))
    act: Mapped[str] = mapped_column(String(16))  # value of coordinator.ledger.steering.Act
    step: Mapped[int | None] = mapped_column(BigInteger)  # first step of a change, or last step of the run
    learning_rate_scale: Mapped[float | None] = mapped_column(Float)  # new value; null if unchanged
    target_batch_size: Mapped[int | None] = mapped_column(BigInteger)
    checkpoint_every: Mapped[int | None] = mapped_column(Integer)
    compression: Mapped[str | None] = mapped_column(String(32))
    powersgd_rank: Mapped[int | None] = mapped_column(Integer)
    text: Mapped[str] = mapped_column(Text, default="")
