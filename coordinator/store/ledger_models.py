"""Tables of the ledger: receipts, daily sums of what each device gave and lost, and the operator's acts of steering.

The daily sums save every view from reading all reports.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Float, ForeignKey, Index, Integer, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.store.base import Base

DAY_S = 86_400


def day_of(at: float) -> int:
    """The UTC day of a time in Unix seconds, as days since 1970-01-01."""
    return int(at // DAY_S)


class Receipt(Base):
    """One device's signed word on one global step; `coordinator.ledger.receipts` keeps only a few for each step."""

    __tablename__ = "receipts"
    __table_args__ = (
        UniqueConstraint("device_id", "era", "step", name="uq_receipts_device_era_step"),
        Index("ix_receipts_step", "step"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[str] = mapped_column(ForeignKey("devices.id"))  # who signed
    era: Mapped[int] = mapped_column(Integer)
    step: Mapped[int] = mapped_column(Integer)
    samples: Mapped[str] = mapped_column(Text)  # JSON: device's number -> samples; the signed bytes follow from it
    # null: of a receipt that named libp2p identities; it counts, and is not published
    signature: Mapped[bytes | None] = mapped_column(LargeBinary(512))
    received_at: Mapped[float] = mapped_column(Float)


class DailyShare(Base):
    """The sums over one device's reports of one UTC day; see `coordinator.ledger.ledger`, which keeps them."""

    __tablename__ = "daily_shares"
    __table_args__ = (Index("ix_daily_shares_day", "day"),)

    device_id: Mapped[str] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    day: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)  # since 1970-01-01
    reports: Mapped[int] = mapped_column(Integer, default=0)
    claimed: Mapped[int] = mapped_column(BigInteger, default=0)  # samples
    counted: Mapped[int] = mapped_column(BigInteger, default=0)  # of them, as receipts confirm
    pending: Mapped[int] = mapped_column(BigInteger, default=0)  # of them, while no receipt says anything
    undone: Mapped[int] = mapped_column(BigInteger, default=0)  # beside them: claimed for steps that were undone
    elapsed_s: Mapped[float] = mapped_column(Float, default=0.0)
    data_wait_s: Mapped[float] = mapped_column(Float, default=0.0)
    averaged_bytes: Mapped[int] = mapped_column(BigInteger, default=0)


class LostSamples(Base):
    """The samples of one device that were lost for one cause on one UTC day; see `coordinator.ledger.ledger`."""

    __tablename__ = "lost_samples"

    device_id: Mapped[str] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    day: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    cause: Mapped[str] = mapped_column(String(20), primary_key=True)  # peer.reporting.messages.LostCause
    samples: Mapped[int] = mapped_column(BigInteger, default=0)
    times: Mapped[int] = mapped_column(Integer, default=0)
    last_step: Mapped[int] = mapped_column(Integer, default=0)


class LossMark(Base):
    """The highest number of a device's losses that was counted: those up to it come again and are not counted again."""

    __tablename__ = "loss_marks"

    device_id: Mapped[str] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger)


class SteeringAct(Base):
    """One act; what holds is the sum of all: see `coordinator.ledger.steering`."""

    __tablename__ = "steering_acts"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float] = mapped_column(Float)
    actor: Mapped[str] = mapped_column(String(100))
    act: Mapped[str] = mapped_column(String(16))  # coordinator.ledger.steering.Act
    step: Mapped[int | None] = mapped_column(BigInteger)  # from which a change holds, with which the run ends
    learning_rate_scale: Mapped[float | None] = mapped_column(Float)  # null: as before the change
    target_batch_size: Mapped[int | None] = mapped_column(BigInteger)
    checkpoint_every: Mapped[int | None] = mapped_column(Integer)
    compression: Mapped[str | None] = mapped_column(String(32))
    powersgd_rank: Mapped[int | None] = mapped_column(Integer)
    text: Mapped[str] = mapped_column(Text, default="")
