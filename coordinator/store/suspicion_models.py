"""The table of what devices have said of each other."""

from __future__ import annotations

from sqlalchemy import BigInteger, Float, ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.store.base import Base


class Suspicion(Base):
    """One device's word against another's; see `coordinator.suspicions`."""

    __tablename__ = "suspicions"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float] = mapped_column(Float, index=True)
    device_id: Mapped[str] = mapped_column(ForeignKey("devices.id"), index=True)  # the suspected
    witness_id: Mapped[str] = mapped_column(ForeignKey("devices.id"), index=True)
    kind: Mapped[str] = mapped_column(String(16))  # see peer.suspicion.SuspicionKind
    step: Mapped[int] = mapped_column(BigInteger)
    detail: Mapped[str] = mapped_column(Text)
