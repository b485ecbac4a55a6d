"""The table of what operators have said of a live run."""

from __future__ import annotations

from sqlalchemy import BigInteger, Float, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.store.base import Base


class SteeringAct(Base):
    """One act; what holds is the sum of all: see `coordinator.steering`."""

    __tablename__ = "steering_acts"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float] = mapped_column(Float)
    actor: Mapped[str] = mapped_column(String(100))
    act: Mapped[str] = mapped_column(String(16))  # coordinator.steering.Act
    step: Mapped[int | None] = mapped_column(BigInteger)  # from which a change holds, with which the run ends
    learning_rate_scale: Mapped[float | None] = mapped_column(Float)  # null: as before the change
    target_batch_size: Mapped[int | None] = mapped_column(BigInteger)
    checkpoint_every: Mapped[int | None] = mapped_column(Integer)
    text: Mapped[str] = mapped_column(Text, default="")
