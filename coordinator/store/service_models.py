"""Tables of the service: database owner, questions, notices, replica state, keeper's counters.

Nonces, relay offers and login attempts are short-lived rows shared by the service's replicas.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Float, ForeignKey, Integer, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.store.base import Base


class DatabaseOwner(Base):
    """The run that owns this database; see `coordinator.run.database_owner`."""

    __tablename__ = "database_owner"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    run: Mapped[str] = mapped_column(String(64))
    certificate_sha256: Mapped[str] = mapped_column(String(64))  # the certificate's fingerprint, as in the join link
    authority_key: Mapped[str] = mapped_column(String(64))  # the authority's public key, hexadecimal


class Question(Base):
    """A visitor's question to a checkpoint, and the answer; see `coordinator.playground`."""

    __tablename__ = "questions"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)  # SHA-256 of the checkpoint and the sentence
    manifest_sha256: Mapped[str] = mapped_column(String(64))
    step: Mapped[int] = mapped_column(BigInteger)
    text: Mapped[str] = mapped_column(Text)
    asked_at: Mapped[float] = mapped_column(Float, index=True)
    answer: Mapped[str] = mapped_column(Text, default="")  # answer as JSON; "" while pending, and after a failure
    reason: Mapped[str] = mapped_column(Text, default="")  # reason for the failure, or ""
    answered_at: Mapped[float | None] = mapped_column(Float)


class MilestoneNotice(Base):
    """The delivery of a milestone's notice to a webhook; see `coordinator.announcements`."""

    __tablename__ = "notices"

    milestone: Mapped[str] = mapped_column(String(64), primary_key=True)  # milestone's key, such as samples:1000000
    webhook: Mapped[str] = mapped_column(String(64), primary_key=True)  # webhook's id, such as discord:1a2b3c4d
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    begun_at: Mapped[float | None] = mapped_column(Float)  # start of an attempt whose outcome is unknown
    next_at: Mapped[float] = mapped_column(Float, default=0.0)  # earliest time of the next attempt
    ended: Mapped[str] = mapped_column(String(16), default="")  # final `DeliveryOutcome`; "" while pending
    error: Mapped[str] = mapped_column(Text, default="")  # error message of the last attempt


class SpentNonce(Base):
    """A used nonce, stored until it expires; see `coordinator.control.servicer`."""

    __tablename__ = "spent_nonces"

    nonce: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    expires_at: Mapped[float] = mapped_column(Float, index=True)


class RelayOffer(Base):
    """The relay address of an online device; see `coordinator.control.relays`."""

    __tablename__ = "relay_offers"

    session_id: Mapped[str] = mapped_column(String(32), ForeignKey("sessions.id"), primary_key=True)
    address: Mapped[str] = mapped_column(Text)


class LoginTry(Base):
    """A recent login attempt, for rate limits; see `coordinator.members.administrators`."""

    __tablename__ = "login_tries"

    id: Mapped[int] = mapped_column(primary_key=True)
    account_sha256: Mapped[bytes] = mapped_column(LargeBinary(32), index=True)
    at: Mapped[float] = mapped_column(Float, index=True)


class SwarmFigures(Base):
    """The keeper's counters since its start; see `coordinator.statistics.swarm_health`."""

    __tablename__ = "swarm_figures"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    rounds_failed: Mapped[int] = mapped_column(Integer)
    rounds_by_duration: Mapped[str] = mapped_column(Text)  # JSON list: successful rounds per bucket of `BOUNDS_S`
    rounds_seconds: Mapped[float] = mapped_column(Float)  # total duration of successful rounds
    census: Mapped[str] = mapped_column(Text)  # JSON list of [role, reachable, peers]
    missing_auxiliaries: Mapped[int | None] = mapped_column(Integer)  # further auxiliaries needed; null before round 1
