"""The main tables: members, devices, sessions, reports, steps, checkpoints, and administration.

Service, keeper and the operator's commands share only the database. Times are UTC, stored as Unix
seconds. The `..._models` modules are imported here, so that the metadata is complete.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column, relationship

from coordinator.store.base import Base
from coordinator.store.checkpoint_models import (
    AllowedEvaluator,
    Evaluation,
    Publication,
    RaisedAlarm,
    UnigramBaseline,
    UnnamedMember,
    UpdateNorm,
)
from coordinator.store.ledger_models import DailyShare, LossMark, LostSamples, Receipt
from coordinator.store.service_models import (
    DatabaseOwner,
    LoginTry,
    MilestoneNotice,
    Question,
    RelayOffer,
    SpentNonce,
    SwarmFigures,
)

KEEPER_ROLE = "keeper"  # the role of the keeper's device
KEEPER = "keeper"  # the name of the member that owns the keeper's device

__all__ = [
    "AllowedEvaluator",
    "Base",
    "DailyShare",
    "DatabaseOwner",
    "Evaluation",
    "LoginTry",
    "LossMark",
    "LostSamples",
    "MilestoneNotice",
    "Naming",
    "Publication",
    "Question",
    "RaisedAlarm",
    "Receipt",
    "RelayOffer",
    "SpentNonce",
    "StoredSuspicion",
    "SwarmFigures",
    "UnigramBaseline",
    "UnnamedMember",
    "UpdateNorm",
]


class Member(Base):
    """A person on the allowlist."""

    __tablename__ = "members"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    display_name: Mapped[str | None] = mapped_column(String(64))  # shown to the public instead of `name`
    created_at: Mapped[float] = mapped_column(Float)
    revoked_at: Mapped[float | None] = mapped_column(Float)
    revoked_reason: Mapped[str] = mapped_column(Text, default="")
    devices: Mapped[list[Device]] = relationship(back_populates="member")


class Invite(Base):
    """A member's one-time invite code, stored hashed."""

    __tablename__ = "invites"

    id: Mapped[int] = mapped_column(primary_key=True)
    member_id: Mapped[int] = mapped_column(ForeignKey("members.id"), index=True)
    code_sha256: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)
    role: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[float] = mapped_column(Float)
    expires_at: Mapped[float] = mapped_column(Float)
    used_at: Mapped[float | None] = mapped_column(Float)
    used_by_device_id: Mapped[str | None] = mapped_column(ForeignKey("devices.id"))
    member: Mapped[Member] = relationship()


class Device(Base):
    """A member's machine, identified by its key."""

    __tablename__ = "devices"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    member_id: Mapped[int] = mapped_column(ForeignKey("members.id"), index=True)
    number: Mapped[int] = mapped_column(Integer, unique=True)  # in the order of joining, from 0
    peer_id: Mapped[str] = mapped_column(String(64), unique=True)
    public_key: Mapped[bytes] = mapped_column(LargeBinary)
    role: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[float] = mapped_column(Float)
    revoked_at: Mapped[float | None] = mapped_column(Float)
    quarantined_at: Mapped[float | None] = mapped_column(Float)  # null: not in quarantine
    token_until: Mapped[float | None] = mapped_column(Float)  # expiry of the newest token issued to it
    receipt_key: Mapped[str | None] = mapped_column(String(64), unique=True, index=True)  # null: not registered yet
    member: Mapped[Member] = relationship(back_populates="devices")


class DeviceSession(Base):
    """One connection of a device to the coordinator, from opening to end."""

    __tablename__ = "sessions"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    device_id: Mapped[str] = mapped_column(ForeignKey("devices.id"), index=True)
    started_at: Mapped[float] = mapped_column(Float)
    last_seen_at: Mapped[float] = mapped_column(Float, index=True)
    ended_at: Mapped[float | None] = mapped_column(Float)
    hardware: Mapped[str] = mapped_column(String(200), default="")
    software_version: Mapped[str] = mapped_column(String(32), default="")
    state: Mapped[str] = mapped_column(String(16), default="starting")
    step: Mapped[int] = mapped_column(Integer, default=0)
    own_samples: Mapped[int] = mapped_column(Integer, default=0)
    samples_per_second: Mapped[float] = mapped_column(Float, default=0.0)
    device: Mapped[Device] = relationship()


class Report(Base):
    """One device's report of one global step."""

    __tablename__ = "reports"
    __table_args__ = (
        UniqueConstraint("device_id", "seq", name="uq_reports_device_seq"),
        UniqueConstraint("device_id", "era", "step", name="uq_reports_device_era_step"),
        Index("ix_reports_step", "step"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[str] = mapped_column(ForeignKey("devices.id"))
    session_id: Mapped[str | None] = mapped_column(ForeignKey("sessions.id"))
    seq: Mapped[int] = mapped_column(BigInteger)  # starts at the time of the outbox's creation, in milliseconds
    era: Mapped[int] = mapped_column(Integer)
    step: Mapped[int] = mapped_column(Integer)
    samples: Mapped[int] = mapped_column(Integer)  # as claimed
    counted: Mapped[int | None] = mapped_column(Integer)  # confirmed by receipts; null before any receipt
    loss: Mapped[float | None] = mapped_column(Float)
    mlm_loss: Mapped[float | None] = mapped_column(Float)
    sop_loss: Mapped[float | None] = mapped_column(Float)
    group_size: Mapped[int] = mapped_column(Integer)
    group_samples: Mapped[int | None] = mapped_column(Integer)
    averaging_s: Mapped[float] = mapped_column(Float)
    samples_per_second: Mapped[float] = mapped_column(Float)
    lost_samples: Mapped[int] = mapped_column(Integer, default=0)
    lost_reason: Mapped[str] = mapped_column(String(40), default="")
    data_wait_s: Mapped[float] = mapped_column(Float, default=0.0)
    elapsed_s: Mapped[float] = mapped_column(Float, default=0.0)
    averaged_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    completed_at: Mapped[float] = mapped_column(Float)
    received_at: Mapped[float] = mapped_column(Float)
    superseded: Mapped[bool] = mapped_column(Boolean, default=False)  # its step was undone by a return to a checkpoint


class Step(Base):
    """One global step: the sums over its reports, kept up to date as they arrive."""

    __tablename__ = "steps"

    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    era: Mapped[int] = mapped_column(Integer)
    samples: Mapped[int] = mapped_column(Integer)
    loss_sum: Mapped[float] = mapped_column(Float)  # sum over reports of loss * samples
    loss_samples: Mapped[int] = mapped_column(Integer)  # samples in `loss_sum`
    devices: Mapped[int] = mapped_column(Integer)
    target_batch_size: Mapped[int] = mapped_column(Integer)
    completed_at: Mapped[float] = mapped_column(Float)


class Refusal(Base):
    """A refused join, request or report, and the reason."""

    __tablename__ = "refusals"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float] = mapped_column(Float, index=True)
    kind: Mapped[str] = mapped_column(String(16))  # see coordinator.store.refusals.Kind
    code: Mapped[str] = mapped_column(String(32))
    reason: Mapped[str] = mapped_column(Text)
    device_id: Mapped[str | None] = mapped_column(ForeignKey("devices.id"))


class AuditEntry(Base):
    """One administrative action; see `coordinator.members.audit`."""

    __tablename__ = "audit_entries"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float] = mapped_column(Float, index=True)
    actor: Mapped[str] = mapped_column(String(100))
    act: Mapped[str] = mapped_column(String(32))
    subject: Mapped[str] = mapped_column(String(128), default="")
    detail: Mapped[str] = mapped_column(Text, default="")


class Administrator(Base):
    """A person who may administer the run over the web."""

    __tablename__ = "administrators"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    password_hash: Mapped[str] = mapped_column(Text)  # argon2id, in its own notation
    created_at: Mapped[float] = mapped_column(Float)


class AdminSession(Base):
    """One login of an administrator; its token is stored hashed."""

    __tablename__ = "admin_sessions"

    id: Mapped[int] = mapped_column(primary_key=True)
    administrator_id: Mapped[int] = mapped_column(ForeignKey("administrators.id"))
    token_sha256: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)
    csrf_token: Mapped[str] = mapped_column(String(64))
    last_seen_at: Mapped[float] = mapped_column(Float)
    expires_at: Mapped[float] = mapped_column(Float)
    administrator: Mapped[Administrator] = relationship()


class Revocation(Base):
    """A change of the revocation list; its id is the list's serial number."""

    __tablename__ = "revocations"

    id: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[str] = mapped_column(ForeignKey("devices.id"))
    peer_id: Mapped[str] = mapped_column(String(64))
    at: Mapped[float] = mapped_column(Float)
    reason: Mapped[str] = mapped_column(Text, default="")
    change: Mapped[str] = mapped_column(String(16), server_default="revoked")  # coordinator.members.revocations.Change
    actor: Mapped[str] = mapped_column(String(100), server_default="")  # who quarantined or readmitted the device


class Checkpoint(Base):
    """A verified checkpoint on disk."""

    __tablename__ = "checkpoints"

    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    manifest_sha256: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[float] = mapped_column(Float)
    withheld: Mapped[str] = mapped_column(Text, default="")  # why it may not be published; "": it may


class Validation(Base):
    """Losses and accuracies of a checkpoint on held-out samples; null if a loss is not finite."""

    __tablename__ = "validations"

    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    era: Mapped[int] = mapped_column(Integer)
    manifest_sha256: Mapped[str] = mapped_column(String(64))  # which checkpoint of that step
    set_sha256: Mapped[str] = mapped_column(String(64))  # of the samples; losses on the same samples are comparable
    sequence_length: Mapped[int] = mapped_column(Integer)
    samples: Mapped[int] = mapped_column(Integer)
    predicted_tokens: Mapped[int] = mapped_column(Integer)
    mlm_loss: Mapped[float | None] = mapped_column(Float)
    sop_loss: Mapped[float | None] = mapped_column(Float)  # null, like `sop_accuracy`, without sentence order
    accuracy: Mapped[float] = mapped_column(Float)
    sop_accuracy: Mapped[float | None] = mapped_column(Float)
    # With the objective's weight; null, like the next two, without replaced tokens.
    detection_loss: Mapped[float | None] = mapped_column(Float)
    detection_accuracy: Mapped[float | None] = mapped_column(Float)
    detection_f1: Mapped[float | None] = mapped_column(Float)
    elapsed_s: Mapped[float] = mapped_column(Float)
    evaluated_at: Mapped[float] = mapped_column(Float)


class SwarmStatus(Base):
    """The keeper's view of the swarm, one row, rewritten about once a second."""

    __tablename__ = "swarm_status"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    step: Mapped[int] = mapped_column(Integer)
    era: Mapped[int] = mapped_column(Integer)
    samples_accumulated: Mapped[int] = mapped_column(Integer)
    target_batch_size: Mapped[int] = mapped_column(Integer)
    peers: Mapped[int] = mapped_column(Integer)
    samples_per_second: Mapped[float] = mapped_column(Float)
    eta_s: Mapped[float | None] = mapped_column(Float)
    addresses: Mapped[str] = mapped_column(Text)  # JSON list of the keeper's multiaddresses
    updated_at: Mapped[float] = mapped_column(Float)


class Era(Base):
    """One return to a checkpoint, which undid all steps of earlier eras after `after_step`.

    The first era is 0 and has no row.
    """

    __tablename__ = "eras"

    era: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    after_step: Mapped[int] = mapped_column(Integer)
    began_at: Mapped[float] = mapped_column(Float)


class Account(Base):
    """A member's account at an identity provider; `subject` identifies it and never changes."""

    __tablename__ = "accounts"
    __table_args__ = (UniqueConstraint("issuer", "subject", name="uq_accounts_issuer_subject"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    member_id: Mapped[int] = mapped_column(ForeignKey("members.id"), index=True)
    issuer: Mapped[str] = mapped_column(Text)
    subject: Mapped[str] = mapped_column(String(255))
    label: Mapped[str] = mapped_column(String(320))  # such as hf:alice, at the newest login
    role: Mapped[str] = mapped_column(String(16))  # allowed by the allowlist at the newest login
    member: Mapped[Member] = relationship()


class AllowedEntry(Base):
    """A line of the allowlist: an account by its user name or subject, or an organisation's members."""

    __tablename__ = "allowlist"

    id: Mapped[int] = mapped_column(primary_key=True)
    entry: Mapped[str] = mapped_column(String(320), unique=True)  # normalised: hf:alice, hf-sub:1, hf-org:neuropark
    role: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[float] = mapped_column(Float)
    member_id: Mapped[int | None] = mapped_column(ForeignKey("members.id"))  # null for an organisation
    account_id: Mapped[int | None] = mapped_column(ForeignKey("accounts.id"))  # the first account that matched it


class DeviceLogin(Base):
    """The account with which a device was admitted."""

    __tablename__ = "device_logins"

    device_id: Mapped[str] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"), index=True)


class Naming(Base):
    """A member's choice to show or hide the name; without a row the public sees it."""

    __tablename__ = "namings"

    member_id: Mapped[int] = mapped_column(ForeignKey("members.id"), primary_key=True, autoincrement=False)
    anonymous: Mapped[bool] = mapped_column(Boolean, default=False)  # set by the member
    hidden_at: Mapped[float | None] = mapped_column(Float)  # set by the operator; null: not hidden


class StoredSuspicion(Base):
    """A device's suspicion about another device; see `coordinator.members.quarantine`."""

    __tablename__ = "suspicions"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float] = mapped_column(Float, index=True)
    device_id: Mapped[str] = mapped_column(ForeignKey("devices.id"), index=True)  # the suspect
    witness_id: Mapped[str] = mapped_column(ForeignKey("devices.id"), index=True)
    kind: Mapped[str] = mapped_column(String(16))  # see peer.reporting.suspicions.SuspicionKind
    step: Mapped[int] = mapped_column(BigInteger)
    detail: Mapped[str] = mapped_column(Text)
