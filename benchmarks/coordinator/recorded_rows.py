"""A recorded run's history as rows of the run's own tables."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from sqlalchemy import insert

from auth.invite_codes import hash_invite_code
from benchmarks.coordinator.recorded_losses import lost_rows
from benchmarks.coordinator.recorded_stays import RecordedDevice, RecordedMember, RecordedStay
from benchmarks.coordinator.recorded_steps import PHASE_AT, TARGET, RecordedShare, RecordedStep
from coordinator.ledger.ledger import enter_reports
from coordinator.store.base import Base
from coordinator.store.engine import Database
from coordinator.store.models import (
    AuditEntry,
    Checkpoint,
    Device,
    DeviceSession,
    Era,
    Invite,
    LostSamples,
    Member,
    Publication,
    Refusal,
    Report,
    Revocation,
    Step,
    StoredSuspicion,
    SwarmFigures,
    SwarmStatus,
    Validation,
)
from peer.reporting.metrics import RoundTally

ROWS_AT_ONCE = 5000
CHECKPOINT_EVERY = 40  # a part of all steps
KEPT_CHECKPOINTS = 12
SIZE_BYTES = 71_300_000
ROLLED_BACK_AT, UNDONE_STEPS = 0.35, 30
KEEPER_ID = "0" * 32
DAY_S = 86_400.0


@dataclass(frozen=True)
class RecordedHistory:
    """Everything that happened; times in Unix seconds."""

    members: Sequence[RecordedMember]
    devices: Sequence[RecordedDevice]
    stays: Sequence[RecordedStay]
    steps: Sequence[RecordedStep]

    def moved(self, ends_at: float) -> RecordedHistory:
        """The same at another time: its last step is completed at `ends_at`."""
        by = ends_at - self.steps[-1].completed_at
        stays = {
            stay.id: replace(stay, started_at=stay.started_at + by, ended_at=stay.ended_at + by) for stay in self.stays
        }

        def move(step: RecordedStep) -> RecordedStep:
            shares = tuple(replace(share, stay=stays[share.stay.id]) for share in step.shares)
            return replace(step, began_at=step.began_at + by, completed_at=step.completed_at + by, shares=shares)

        return RecordedHistory(self.members, self.devices, list(stays.values()), [move(step) for step in self.steps])

    @property
    def rolled_back_at(self) -> int:
        """After this step the run once returned to a checkpoint, and began its second era."""
        return int(ROLLED_BACK_AT * len(self.steps))


def write_history(database: Database, history: RecordedHistory, now: float) -> None:
    """Write all of it into an empty database."""
    tables: list[tuple[type[Base], Iterable[dict[str, Any]]]] = [
        (Member, member_rows(history)),
        (Device, device_rows(history)),
        (Invite, invite_rows(history)),
        (DeviceSession, session_rows(history, now)),
        (Report, report_rows(history)),
        (LostSamples, lost_rows(history.steps, history.stays, now)),
        (Step, step_rows(history)),
        (Era, [{"era": 1, "after_step": history.rolled_back_at, "began_at": _rolled_back(history).completed_at}]),
        (Checkpoint, checkpoint_rows(history)),
        (Validation, validation_rows(history)),
        (Publication, publication_rows(history)),
        (Refusal, refusal_rows(history)),
        (StoredSuspicion, suspicion_rows(history)),
        (Revocation, revocation_rows(history)),
        (AuditEntry, audit_rows(history)),
        (SwarmFigures, [figures_row(history)]),
        (SwarmStatus, [status_row(history, now)]),
    ]
    for table, rows in tables:
        left = iter(rows)
        while page := list(islice(left, ROWS_AT_ONCE)):
            with database.begin() as session:
                if table is Report:
                    enter_reports(session, page)
                else:
                    session.execute(insert(table), page)


def member_rows(history: RecordedHistory) -> Iterator[dict[str, Any]]:
    """The volunteers, and the keeper; one was shut out."""
    joined = _first_seen(history)
    for member in history.members:
        revoked = member.id == 11
        yield {
            "id": member.id,
            "name": member.name,
            "display_name": member.display_name,
            "created_at": joined.get(member.id, history.steps[0].began_at) - 3600.0,
            "revoked_at": history.steps[-1].completed_at - DAY_S if revoked else None,
            "revoked_reason": "sent gradients of another run" if revoked else "",
        }
    yield {
        "id": len(history.members) + 1,
        "name": "keeper",
        "display_name": None,
        "created_at": history.steps[0].began_at - DAY_S,
        "revoked_at": None,
        "revoked_reason": "",
    }


def device_rows(history: RecordedHistory) -> Iterator[dict[str, Any]]:
    """Their machines; one is in quarantine."""
    until = history.steps[-1].completed_at
    joined = _first_seen(history)
    for device in history.devices:
        yield {
            "id": device.id,
            "member_id": device.member.id,
            "number": device.number,
            "peer_id": f"Qm{device.id}recorded",
            "public_key": device.id.encode(),
            "role": device.role,
            "created_at": joined.get(device.member.id, history.steps[0].began_at) - 60.0,
            "revoked_at": until - DAY_S if device.member.id == 11 else None,
            "quarantined_at": until - 7200.0 if device.number == 5 else None,
            "token_until": until + 6 * 3600.0,
        }
    yield {
        "id": KEEPER_ID,
        "member_id": len(history.members) + 1,
        "number": 0,
        "peer_id": "QmKeeperRecorded",
        "public_key": b"keeper",
        "role": "keeper",
        "created_at": history.steps[0].began_at - DAY_S,
        "revoked_at": None,
        "quarantined_at": None,
        "token_until": until + 6 * 3600.0,
    }


def invite_code(member_id: int) -> str:
    """The code that a volunteer was invited with."""
    return f"recorded-{member_id}"


def invite_rows(history: RecordedHistory) -> Iterator[dict[str, Any]]:
    """One code each, used at the first device's joining; the last member's is still open."""
    first = {device.member.id: device for device in reversed(history.devices)}
    joined, until = _first_seen(history), history.steps[-1].completed_at
    for member in history.members:
        at = joined.get(member.id, until)
        is_open = member is history.members[-1]
        yield {
            "member_id": member.id,
            "code_sha256": hash_invite_code(invite_code(member.id)),
            "role": "trainer",
            "created_at": at - 7200.0,
            "expires_at": (until if is_open else at) + 7 * DAY_S,
            "used_at": None if is_open else at,
            "used_by_device_id": None if is_open else first[member.id].id,
        }


def session_rows(history: RecordedHistory, now: float) -> Iterator[dict[str, Any]]:
    """The stays; those that outlast the history are open, and were heard of just now."""
    last = history.steps[-1].step
    samples: dict[str, int] = {}
    for step in history.steps:
        for share in step.shares:
            samples[share.stay.id] = samples.get(share.stay.id, 0) + share.samples
    for stay in history.stays:
        is_open = stay.ended_at > history.steps[-1].completed_at
        trains = stay.device.role == "trainer"
        yield {
            "id": stay.id,
            "device_id": stay.device.id,
            "started_at": stay.started_at,
            "last_seen_at": now if is_open else stay.ended_at,
            "ended_at": None if is_open else stay.ended_at,
            "hardware": stay.device.hardware,
            "software_version": stay.version,
            "state": ("training" if trains else "assisting") if is_open else "stopping",
            "step": last if is_open else 0,
            "own_samples": samples.get(stay.id, 0) if is_open else 0,
            "samples_per_second": stay.device.samples_per_second if trains else 0.0,
        }


def report_rows(history: RecordedHistory) -> Iterator[dict[str, Any]]:
    """The work of each machine for each step, and the work that a return to a checkpoint undid."""
    rng = random.Random(0)
    seqs: dict[str, int] = {}
    back = history.rolled_back_at
    for step in history.steps:
        undone = back < step.step <= back + UNDONE_STEPS
        for share in step.shares:
            if undone:
                yield report_row(step, share, 0, _next(seqs, share), rng, superseded=True)
            yield report_row(step, share, int(step.step > back), _next(seqs, share), rng)


def _next(seqs: dict[str, int], share: RecordedShare) -> int:
    seqs[share.stay.device.id] = seqs.get(share.stay.device.id, 0) + 1
    return seqs[share.stay.device.id]


def report_row(
    step: RecordedStep, share: RecordedShare, era: int, seq: int, rng: random.Random, superseded: bool = False
) -> dict[str, Any]:
    """One report."""
    took = step.completed_at - step.began_at
    sop_loss = None if share.loss is None else min(0.69, 0.1 + 0.06 * share.loss)
    return {
        "device_id": share.stay.device.id,
        "session_id": share.stay.id,
        "seq": seq,
        "era": era,
        "step": step.step,
        "samples": share.samples,
        "counted": share.counted,
        "loss": share.loss,
        "mlm_loss": None if share.loss is None or sop_loss is None else share.loss - sop_loss,
        "sop_loss": sop_loss,
        "group_size": len(step.shares) + 1,
        "group_samples": sum(other.samples for other in step.shares),
        "averaging_s": share.averaging_s,
        "samples_per_second": share.stay.device.samples_per_second,
        "lost_samples": share.lost_samples,
        "lost_reason": share.lost_reason,
        "data_wait_s": took * rng.uniform(0.0, 0.03),
        "elapsed_s": took,
        "averaged_bytes": SIZE_BYTES // (len(step.shares) + 1),
        "completed_at": step.completed_at,
        "received_at": step.completed_at + 1.0,
        "superseded": superseded,
    }


def step_rows(history: RecordedHistory) -> Iterator[dict[str, Any]]:
    """The sums over the reports."""
    for step in history.steps:
        yield step_row(step, int(step.step > history.rolled_back_at))


def step_row(step: RecordedStep, era: int) -> dict[str, Any]:
    """One global step."""
    losses = [(share.loss, share.samples) for share in step.shares if share.loss is not None]
    return {
        "step": step.step,
        "era": era,
        "samples": sum(share.samples if share.counted is None else share.counted for share in step.shares),
        "loss_sum": sum(loss * samples for loss, samples in losses),
        "loss_samples": sum(samples for _, samples in losses),
        "devices": len(step.shares),
        "target_batch_size": TARGET,
        "completed_at": step.completed_at,
    }


def _saved(history: RecordedHistory) -> list[RecordedStep]:
    """The steps after which a checkpoint was written."""
    every = max(1, len(history.steps) // CHECKPOINT_EVERY)
    return [step for step in history.steps if step.step % every == 0]


def _digest(step: RecordedStep) -> str:
    return hashlib.sha256(f"checkpoint {step.step}".encode()).hexdigest()


def checkpoint_rows(history: RecordedHistory) -> Iterator[dict[str, Any]]:
    """The newest; one did not pass the gate."""
    for step in _saved(history)[-KEPT_CHECKPOINTS:]:
        yield {
            "step": step.step,
            "size_bytes": SIZE_BYTES + step.step,
            "manifest_sha256": _digest(step),
            "created_at": step.completed_at + 5.0,
            "withheld": "the loss on held-out text rose by 30 %" if step is _saved(history)[-4] else "",
        }


def validation_rows(history: RecordedHistory) -> Iterator[dict[str, Any]]:
    """The validation losses of all checkpoints."""
    rng = random.Random(1)
    longer = PHASE_AT * len(history.steps)
    for step in _saved(history):
        is_short = step.step <= longer
        sop_loss = min(0.69, 0.1 + 0.06 * step.loss)
        yield {
            "step": step.step,
            "era": int(step.step > history.rolled_back_at),
            "manifest_sha256": _digest(step),
            "set_sha256": "ab" * 32 if is_short else "cd" * 32,
            "sequence_length": 128 if is_short else 512,
            "samples": 1024,
            "predicted_tokens": 19_456 if is_short else 77_824,
            "mlm_loss": step.loss - sop_loss + 0.06 + rng.gauss(0, 0.01),
            "sop_loss": sop_loss,
            "accuracy": max(0.02, 0.78 - 0.11 * step.loss),
            "sop_accuracy": max(0.5, 0.99 - 0.06 * step.loss),
            "elapsed_s": 41.0,
            "evaluated_at": step.completed_at + 60.0,
        }


def publication_rows(history: RecordedHistory) -> Iterator[dict[str, Any]]:
    """The newest checkpoints on a hub."""
    for step in _saved(history)[-3:]:
        yield {
            "place": "hub",
            "manifest_sha256": _digest(step),
            "step": step.step,
            "location": f"https://huggingface.co/neuropark/recorded/tree/step-{step.step}",
            "attempts": 0,
            "error": "",
            "next_try_at": 0.0,
            "published_at": step.completed_at + 120.0,
            "updated_at": step.completed_at + 120.0,
        }


def refusal_rows(history: RecordedHistory) -> Iterator[dict[str, Any]]:
    """Some, spread over the run."""
    reasons = [
        ("join", "bad_invite", "the invite code has expired", None),
        ("report", "implausible", "`samples` (9000) is more than the target batch", history.devices[4].id),
        ("visit", "busy", "the coordinator is measuring other lines", None),
    ]
    for number, step in enumerate(history.steps[:: max(1, len(history.steps) // 30)]):
        kind, code, reason, device = reasons[number % len(reasons)]
        yield {"at": step.completed_at, "kind": kind, "code": code, "reason": reason, "device_id": device}


def suspicion_rows(history: RecordedHistory) -> Iterator[dict[str, Any]]:
    """The words that led to the quarantine."""
    suspected = next(device for device in history.devices if device.number == 5)
    for witness in history.devices[:3]:
        yield {
            "at": history.steps[-1].completed_at - 7300.0,
            "device_id": suspected.id,
            "witness_id": witness.id,
            "kind": "gradient",
            "step": history.steps[-1].step,
            "detail": "a norm 40 times the median",
        }


def revocation_rows(history: RecordedHistory) -> Iterator[dict[str, Any]]:
    """The quarantine of one machine, and the end of all machines of the volunteer who was shut out."""
    until = history.steps[-1].completed_at
    for device in history.devices:
        row = {"device_id": device.id, "peer_id": f"Qm{device.id}recorded"}
        if device.number == 5:
            reason = "failed checks within 60 minutes: gradient 3 times"
            yield row | {"at": until - 7200.0, "reason": reason, "change": "quarantined", "actor": "run:members"}
        if device.member.id == 11:
            reason = "sent gradients of another run"
            yield row | {"at": until - DAY_S, "reason": reason, "change": "revoked", "actor": "web:ada"}


def audit_rows(history: RecordedHistory) -> Iterator[dict[str, Any]]:
    """Each invitation, and the return to a checkpoint."""
    joined = _first_seen(history)
    for member in history.members:
        at = joined.get(member.id, history.steps[-1].completed_at) - 7200.0
        yield {"at": at, "actor": "os:operator", "act": "invite", "subject": member.name, "detail": "trainer"}
    back = _rolled_back(history)
    detail = f"to step {back.step}: the loss had risen for an hour"
    yield {"at": back.completed_at, "actor": "web:ada", "act": "rewind", "subject": "", "detail": detail}


def figures_row(history: RecordedHistory) -> dict[str, Any]:
    """The keeper's counts since its last start, half a day ago or so."""
    tally = RoundTally()
    for step in history.steps[-500:]:
        took = max((share.averaging_s for share in step.shares), default=9.0)
        tally = tally.with_failure() if step.step % 37 == 0 else tally.with_success(took)
    census = [["auxiliary", True, 1], ["keeper", True, 1], ["trainer", False, 5], ["trainer", True, 3]]
    return {
        "id": 1,
        "rounds_failed": tally.failed,
        "rounds_by_duration": json.dumps(tally.by_duration),
        "rounds_seconds": tally.seconds,
        "census": json.dumps(census),
    }


def status_row(history: RecordedHistory, now: float) -> dict[str, Any]:
    """The keeper's word of this moment."""
    here = [stay.device for stay in history.stays if stay.ended_at > history.steps[-1].completed_at]
    rate = sum(device.samples_per_second for device in here if device.role == "trainer")
    return {
        "id": 1,
        "step": history.steps[-1].step,
        "era": 1,
        "samples_accumulated": TARGET // 3,
        "target_batch_size": TARGET,
        "peers": len(here),
        "samples_per_second": rate,
        "eta_s": TARGET * 2 / 3 / rate,
        "addresses": json.dumps(["/ip4/127.0.0.1/tcp/31337/p2p/QmKeeperRecorded"]),
        "updated_at": now,
    }


def _first_seen(history: RecordedHistory) -> dict[int, float]:
    """Member's id -> when the first of its machines came."""
    found: dict[int, float] = {}
    for stay in history.stays:
        found.setdefault(stay.device.member.id, stay.started_at)
    return found


def _rolled_back(history: RecordedHistory) -> RecordedStep:
    return history.steps[max(0, history.rolled_back_at - 1)]
