"""The main tables: members, devices, sessions, reports, steps, checkpoints, and administration.

The service, the keeper and the operator's commands share state only through the database. Times are
Unix times in seconds. The `..._models` modules are imported to complete the metadata.
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

KEEPER_ROLE = "keeper"  # role of the keeper's device
KEEPER = "keeper"  # name of the member that owns the keeper's device

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
    """A person who has been invited, or whose account may log in."""

    __tablename__ = "members"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    display_name: Mapped[str | None] = mapped_column(String(64))  # public name, if different from `name`
    created_at: Mapped[float] = mapped_column(Float)
    revoked_at: Mapped[float | None] = mapped_column(Float)
    revoked_reason: Mapped[str] = mapped_column(Text, default="")
    devices: Mapped[list[Device]] = relationship(back_populates="member")


class Invite(Base):
    """A one-time invite code for a member, stored as a hash."""

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
    number: Mapped[int] = mapped_column(Integer, unique=True)  # sequence number in order of joining, from 0
    peer_id: Mapped[str] = mapped_column(String(64), unique=True)
    public_key: Mapped[bytes] = mapped_column(LargeBinary)
    role: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[float] = mapped_column(Float)
    revoked_at: Mapped[float | None] = mapped_column(Float)
    quarantined_at: Mapped[float | None] = mapped_column(Float)  # time at which the quarantine began, or null
    token_until: Mapped[float | None] = mapped_column(Float)  # expiry time of the newest token issued to the device
    receipt_key: Mapped[str | None] = mapped_column(String(64), unique=True, index=True)  # key for receipts, or null
    member: Mapped[Member] = relationship(back_populates="devices")


class DeviceSession(Base):
    """One connection of a device to the coordinator."""

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
    """One device's report on one global step."""

    __tablename__ = "reports"
    __table_args__ = (
        UniqueConstraint("device_id", "seq", name="uq_reports_device_seq"),
        UniqueConstraint("device_id", "era", "step", name="uq_reports_device_era_step"),
        Index("ix_reports_step", "step"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[str] = mapped_column(ForeignKey("devices.id"))
    session_id: Mapped[str | None] = mapped_column(ForeignKey("sessions.id"))
    seq: Mapped[int] = mapped_column(BigInteger)  # sequence number, starting at the outbox's creation time in ms
    era: Mapped[int] = mapped_column(Integer)
    step: Mapped[int] = mapped_column(Integer)
    samples: Mapped[int] = mapped_column(Integer)  # number of samples claimed by the device
    counted: Mapped[int | None] = mapped_column(Integer)  # samples confirmed by receipts; null without receipts
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
    superseded: Mapped[bool] = mapped_column(Boolean, default=False)  # True if a rewind undid the step


class Step(Base):
    """One global step, with sums over its reports that are updated as reports arrive."""

    __tablename__ = "steps"

    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    era: Mapped[int] = mapped_column(Integer)
    samples: Mapped[int] = mapped_column(Integer)
    loss_sum: Mapped[float] = mapped_column(Float)  # sum of loss * samples over reports
    loss_samples: Mapped[int] = mapped_column(Integer)  # number of samples in `loss_sum`
    devices: Mapped[int] = mapped_column(Integer)
    target_batch_size: Mapped[int] = mapped_column(Integer)
    completed_at: Mapped[float] = mapped_column(Float)


class Refusal(Base):
    """A refused join, request or report, with the reason."""

    __tablename__ = "refusals"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float] = mapped_column(Float, index=True)
    kind: Mapped[str] = mapped_column(String(16))  # value of coordinator.store.refusals.Kind
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
    """An account for administering the run over the web."""

    __tablename__ = "administrators"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    password_hash: Mapped[str] = mapped_column(Text)  # encoded argon2id hash
    created_at: Mapped[float] = mapped_column(Float)


class AdminSession(Base):
    """One login of an administrator; its token is stored as a hash."""

    __tablename__ = "admin_sessions"

    id: Mapped[int] = mapped_column(primary_key=True)
    administrator_id: Mapped[int] = mapped_column(ForeignKey("administrators.id"))
    token_sha256: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)
    csrf_token: Mapped[str] = mapped_column(String(64))
    last_seen_at: Mapped[float] = mapped_column(Float)
    expires_at: Mapped[float] = mapped_column(Float)
    administrator: Mapped[Administrator] = relationship()


class Revocation(Base):
    """A change to the revocation list; the row's id is the list's serial number."""

    __tablename__ = "revocations"

    id: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[str] = mapped_column(ForeignKey("devices.id"))
    peer_id: Mapped[str] = mapped_column(String(64))
    at: Mapped[float] = mapped_column(Float)
    reason: Mapped[str] = mapped_column(Text, default="")
    change: Mapped[str] = mapped_column(String(16), server_default="revoked")  # value of revocations.Change
    actor: Mapped[str] = mapped_column(String(100), server_default="")  # administrator or rule that made the change


class Checkpoint(Base):
    """A verified checkpoint on disk."""

    __tablename__ = "checkpoints"

    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    manifest_sha256: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[float] = mapped_column(Float)
    withheld: Mapped[str] = mapped_column(Text, default="")  # reason for not publishing the checkpoint, or ""


class Validation(Base):
    """A checkpoint's losses and accuracies on held-out samples; non-finite losses are null."""

    __tablename__ = "validations"

    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    era: Mapped[int] = mapped_column(Integer)
    manifest_sha256: Mapped[str] = mapped_column(String(64))  # digest that identifies the checkpoint
    set_sha256: Mapped[str] = mapped_column(String(64))  # digest of the samples; equal if losses are comparable
    sequence_length: Mapped[int] = mapped_column(Integer)
    samples: Mapped[int] = mapped_column(Integer)
    predicted_tokens: Mapped[int] = mapped_column(Integer)
    mlm_loss: Mapped[float | None] = mapped_column(Float)
    sop_loss: Mapped[float | None] = mapped_column(Float)  # null, like `sop_accuracy`, if sentence order is not trained
    accuracy: Mapped[float] = mapped_column(Float)
    sop_accuracy: Mapped[float | None] = mapped_column(Float)
    # The detection columns are null except for ELECTRA; the loss is weighted as in training.
    detection_loss: Mapped[float | None] = mapped_column(Float)
    detection_accuracy: Mapped[float | None] = mapped_column(Float)
    detection_f1: Mapped[float | None] = mapped_column(Float)
    elapsed_s: Mapped[float] = mapped_column(Float)
    evaluated_at: Mapped[float] = mapped_column(Float)


class SwarmStatus(Base):
    """The keeper's view of the swarm: one row, updated about once a second."""

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
    """A rewind to a checkpoint, which undid all steps of earlier eras after `after_step`.

    The first era is 0 and has no row.
    """

    __tablename__ = "eras"

    era: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    after_step: Mapped[int] = mapped_column(Integer)
    began_at: Mapped[float] = mapped_column(Float)


class Account(Base):
    """A member's account at an identity provider, identified by `subject`, which never changes."""

    __tablename__ = "accounts"
    __table_args__ = (UniqueConstraint("issuer", "subject", name="uq_accounts_issuer_subject"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    member_id: Mapped[int] = mapped_column(ForeignKey("members.id"), index=True)
    issuer: Mapped[str] = mapped_column(Text)
    subject: Mapped[str] = mapped_column(String(255))
    label: Mapped[str] = mapped_column(String(320))  # account name at the last login, such as hf:alice
    role: Mapped[str] = mapped_column(String(16))  # role granted by the allowlist at the last login
    member: Mapped[Member] = relationship()


class AllowedEntry(Base):
    """An allowlist entry: an account by username or subject, or all members of an organisation."""

    __tablename__ = "allowlist"

    id: Mapped[int] = mapped_column(primary_key=True)
    entry: Mapped[str] = mapped_column(String(320), unique=True)  # normalised: hf:alice, hf-sub:1, hf-org:neuropark
    role: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[float] = mapped_column(Float)
    member_id: Mapped[int | None] = mapped_column(ForeignKey("members.id"))  # null for an organisation's entry
    account_id: Mapped[int | None] = mapped_column(ForeignKey("accounts.id"))  # first account that matched the entry


class DeviceLogin(Base):
    """The account that was used to admit a device."""

    __tablename__ = "device_logins"

    device_id: Mapped[str] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"), index=True)


class Naming(Base):
    """The visibility of a member's name; the name of a member without a row is public."""

    __tablename__ = "namings"

    member_id: Mapped[int] = mapped_column(ForeignKey("members.id"), primary_key=True, autoincrement=False)
    anonymous: Mapped[bool] = mapped_column(Boolean, default=False)  # True if the member hides the name
    hidden_at: Mapped[float | None] = mapped_column(Float)  # time at which the operator hid the name, or null


class StoredSuspicion(Base):
    """A device's report against another device; see `coordinator.members.quarantine`."""

    __tablename__ = "suspicions"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float] = mapped_column(Float, index=True)
    device_id: Mapped[str] = mapped_column(ForeignKey("devices.id"), index=True)  # the suspected device
    witness_id: Mapped[str] = mapped_column(ForeignKey("devices.id"), index=True)
    kind: Mapped[str] = mapped_column(String(16))  # value of peer.reporting.suspicions.SuspicionKind
    step: Mapped[int] = mapped_column(BigInteger)
    detail: Mapped[str] = mapped_column(Text)
