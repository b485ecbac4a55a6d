"""The tables that add up what each device gave and lost on each day, so that no view has to read every report."""

from __future__ import annotations

from sqlalchemy import BigInteger, Float, ForeignKey, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.store.base import Base


class DailyShare(Base):
    """The sums over one device's reports of one UTC day; see `coordinator.shares`, which keeps them."""

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
    """How many samples of one device were lost for one cause on one UTC day; see `coordinator.losses`."""

    __tablename__ = "lost_samples"

    device_id: Mapped[str] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    day: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    cause: Mapped[str] = mapped_column(String(20), primary_key=True)  # peer.lost_causes.LostCause
    samples: Mapped[int] = mapped_column(BigInteger, default=0)
    times: Mapped[int] = mapped_column(Integer, default=0)
    last_step: Mapped[int] = mapped_column(Integer, default=0)


class LossMark(Base):
    """The highest number of a device's losses that was counted: those up to it come again and are not counted again."""

    __tablename__ = "loss_marks"

    device_id: Mapped[str] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger)
