"""What replicas of the service must know of each other's doings, beside the run's own tables; all short-lived."""

from __future__ import annotations

from sqlalchemy import Float, ForeignKey, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.store.base import Base


class SpentNonce(Base):
    """A nonce that was redeemed, until it would have expired anyway; see `coordinator.nonces`."""

    __tablename__ = "spent_nonces"

    nonce: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    expires_at: Mapped[float] = mapped_column(Float, index=True)


class RelayOffer(Base):
    """Where the device of an open session relays for others; see `coordinator.replicas`."""

    __tablename__ = "relay_offers"

    session_id: Mapped[str] = mapped_column(String(32), ForeignKey("sessions.id"), primary_key=True)
    address: Mapped[str] = mapped_column(Text)


class LoginTry(Base):
    """An administrator's password that was tried within the last minute; see `coordinator.login_tries`."""

    __tablename__ = "login_tries"

    id: Mapped[int] = mapped_column(primary_key=True)
    account_sha256: Mapped[bytes] = mapped_column(LargeBinary(32), index=True)
    at: Mapped[float] = mapped_column(Float, index=True)
