"""The table of what devices have received from each other."""

from __future__ import annotations

from sqlalchemy import Float, ForeignKey, Index, Integer, LargeBinary, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.store.base import Base


class Receipt(Base):
    """One device's signed word on one global step; see `coordinator.receipts`, which keeps only a few for each step."""

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
    signature: Mapped[bytes] = mapped_column(LargeBinary(512))
    received_at: Mapped[float] = mapped_column(Float)
