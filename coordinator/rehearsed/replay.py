"""Replay of a rehearsal into a run's store: joins, sessions, reports and receipts enter it as real ones do.

This module imitates peers and keeper, and writes no table itself: membership admits the devices, the ledger judges and
counts their reports. Virtual time is mapped to the store's time. Nothing is trained, so no report has a loss.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from auth.keys import RSA_BITS, RSA_EXPONENT, ReceiptKey
from auth.receipts import ReceiptBody, sign_receipt, whole_samples
from coordinator.ledger.judgement import Delivery
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.presence import (
    checked_claim,
    close_session,
    open_session,
    touch_sessions,
    write_swarm_status,
)
from coordinator.ledger.speed import batch_left_s, run_speed
from coordinator.members.membership import Membership
from coordinator.rehearsed.people import InventedPerson
from coordinator.run.directory import RunDirectory
from coordinator.statistics.swarm_health import write_figures
from coordinator.store.engine import Database
from peer.rehearsal.scenario import KEEPER, Rehearsed, Scenario
from peer.rehearsal.swarm import RehearsedRun
from peer.rehearsal.world import Happening, TakenStep
from peer.reporting.messages import Lost, StepReport
from peer.reporting.metrics import RoundTally, census_of
from peer.runtime.version import software_version

TOGETHER_S = 1.0  # reports of so long are recorded in one transaction


@dataclass
class _Device:
    """One device of the rehearsal, and its place in the store once it has joined."""

    device: Rehearsed
    person: InventedPerson
    receipt_key: ReceiptKey = field(default_factory=lambda: ReceiptKey(ed25519.Ed25519PrivateKey.generate()))
    device_id: str = ""  # empty: it has not joined
    session_id: str | None = None  # of its newest stay
    is_here: bool = False
    is_training: bool = False  # it holds the run's state, and does not stand by
    step: int = 0
    reported_at: float = 0.0  # the newest report, or the begin of its training
    seq: int = 0
    lost: Counter[str] = field(default_factory=Counter)  # since the newest report
    lost_reason: str = ""

    @property
    def role(self) -> str:
        return "trainer" if self.device.samples_per_second else "auxiliary"


class EventReplay:
    """One rehearsal on its way into an empty store."""

    def __init__(
        self,
        directory: RunDirectory,
        database: Database,
        scenario: Scenario,
        people: Mapping[str, InventedPerson],
        begins_at: float,
    ) -> None:
        """`people`: who brings each device, by its name; `begins_at`: the time of the event's begin, Unix seconds."""
        self._database, self._config = database, directory.config
        self._begins_at = self._now = begins_at
        limits = self._config.membership
        self._membership = Membership(
            database,
            directory.authority,
            self._config.run.name,
            limits.token_lifetime_s,
            lambda: self._now,
            max(1, len(scenario.devices)),  # one member of a scenario may bring them all
        )
        self._ledger = Ledger(database, self._config, lambda: self._now)
        self._devices = {each.name: _Device(each, people[each.name]) for each in scenario.devices}
        self._keeper = _Device(Rehearsed(name=KEEPER, line=scenario.keeper), InventedPerson(KEEPER, ""))
        self._waiting: list[Delivery] = []  # reports to record
        self._waiting_since = begins_at
        self._rounds = RoundTally()

    def replay(self, run: RehearsedRun, taken: Iterable[TakenStep]) -> None:
        """Record all events of a rehearsal; `taken`: the steps that the trace names, in its order."""
        key = self._keeper.receipt_key.pseudonym
        self._keeper.device_id = self._membership.grant_keeper(_public_key(), key).device_id
        steps = iter(taken)
        for happening in run.trace:
            self._pass_to(self._begins_at + happening.at_s)
            if happening.what == "step":
                self._take_step(next(steps))
            elif happening.what == "undoes":
                self._record()
                self._ledger.roll_back(happening.facts[0])
            elif happening.who == KEEPER:
                if happening.what == "round failed":
                    self._rounds = self._rounds.with_failure()
            elif happening.who in self._devices:
                self._note(self._devices[happening.who], happening)
        self._pass_to(self._begins_at + run.duration_s)
        self._record()
        self._end(run)

    def _pass_to(self, now: float) -> None:
        """Advance the clock; reports that have waited for a moment are recorded first."""
        if self._waiting and now - self._waiting_since >= TOGETHER_S:
            self._record()
        self._now = now

    def _note(self, device: _Device, happening: Happening) -> None:
        """Record an event of one device, other than a step."""
        match happening.what:
            case "arrived":
                self._arrive(device)
            case "joined":
                device.step, device.is_training, device.reported_at = happening.facts[0], True, self._now
                self._touch([device], {})
            case "followed" | "took the state" | "took the checkpoint":
                device.step = happening.facts[0]
            case "stands by":
                device.is_training = False
            case "lost":
                samples, device.lost_reason = happening.facts
                device.lost[device.lost_reason] += samples
                if not device.is_here:
                    self._tell_losses(device)
            case "gone":
                device.is_training = False
                self._end_stay(device)
                self._tell_losses(device)

    def _arrive(self, device: _Device) -> None:
        """Admit a device that is new, and begin its stay."""
        if not device.device_id:
            code = self._membership.invite(device.person.member, device.role)[0]
            key = device.receipt_key.pseudonym
            device.device_id = self._membership.join(_public_key(), code, receipt_key=key).device_id
        self._end_stay(device)  # where its program has begun again before the earlier one could leave
        device.session_id = open_session(
            self._database, device.device_id, device.person.hardware, software_version(), self._now
        )
        device.is_here = True

    def _end_stay(self, device: _Device) -> None:
        """End the stay of a device that is here."""
        if device.is_here and device.session_id is not None:
            device.is_here = False
            close_session(self._database, device.session_id, self._now)

    def _tell_losses(self, device: _Device) -> None:
        """Record the losses that no report tells of, as an agent does when its device leaves."""
        if device.lost:
            device.seq += 1
            lost = Lost(device.step + 1, dict(device.lost))
            self._ledger.record_lost(device.device_id, device.seq, lost, self._now)
            device.lost.clear()

    def _take_step(self, taken: TakenStep) -> None:
        """Report a step as a peer does, or witness it as the keeper does."""
        if taken.role == KEEPER:
            self._keeper.step = taken.step
            self._rounds = self._rounds.with_success(taken.group.waited_s + taken.group.seconds)
            if receipt := self._receipt(self._keeper, taken):
                self._ledger.take_receipt(self._keeper.device_id, taken.step, receipt)
            self._write_status(0)
            return
        device = self._devices[taken.name]
        device.step, device.is_training = taken.step, True  # also one that stood by before
        device.seq += 1
        if not self._waiting:
            self._waiting_since = self._now
        report = self._report(device, taken)
        self._waiting.append(Delivery(device.device_id, device.session_id, device.seq, report, self._now))
        device.reported_at, device.lost_reason = self._now, ""
        device.lost.clear()

    def _report(self, device: _Device, taken: TakenStep) -> StepReport:
        """Make the report of a step; see `peer.training.tally`."""
        group, elapsed_s = taken.group, self._now - device.reported_at
        return StepReport(
            step=taken.step,
            samples=taken.samples,
            loss=None,
            mlm_loss=None,
            sop_loss=None,
            group_size=len(group.peers),
            group_samples=group.samples if taken.name in group.reducers else None,
            averaging_s=group.waited_s + group.seconds,
            samples_per_second=taken.samples / elapsed_s if elapsed_s > 0 else 0.0,
            lost_samples=device.lost.total(),
            lost_reason=device.lost_reason,
            elapsed_s=elapsed_s,
            averaged_bytes=round(group.averaged_bytes),
            receipt=self._receipt(device, taken),
            era=taken.era,
            lost=dict(device.lost),
        )

    def _receipt(self, witness: _Device, taken: TakenStep) -> str:
        """Sign what a peer received as a reducer of its group; empty if it was none."""
        if taken.name not in taken.group.reducers:
            return ""
        received = whole_samples(taken.group.counted)
        samples = {self._devices[name].receipt_key.pseudonym: brought for name, brought in received.items()}
        body = ReceiptBody(run=self._config.run.name, era=taken.era, step=taken.step, samples=samples)
        return str(sign_receipt(witness.receipt_key, body))

    def _record(self) -> None:
        """Let the ledger judge and count the waiting reports; one that is ahead of the keeper comes again."""
        deliveries, self._waiting = self._waiting, []
        for delivery, verdict in zip(deliveries, self._ledger.record_all(deliveries), strict=True):
            if isinstance(verdict, Exception):
                raise verdict
            if verdict.ahead:
                self._waiting.append(delivery)
        self._waiting_since = self._now

    def _end(self, run: RehearsedRun) -> None:
        """Write the final state of all devices that are connected, and of the keeper."""
        held = {
            each.device.name: max(0, each.work.computed - each.work.counted - each.work.lost.total())
            for each in run.devices
        }
        here = [device for device in self._devices.values() if device.is_here]
        self._touch(here, held)
        self._write_status(sum(held[each.device.name] for each in here if each.step == self._keeper.step))
        roles = [(each.role, each.device.is_reachable) for each in here if each.is_training]
        missing = run.steps[-1].missing_auxiliaries if run.steps else None
        write_figures(self._database, self._rounds, census_of([(KEEPER, True), *roles]), missing)

    def _touch(self, devices: Iterable[_Device], held: Mapping[str, int]) -> None:
        """Update these devices' sessions as their agents do; `held`: samples towards the next step, by name."""
        claims = {}
        for each in devices:
            assert each.session_id is not None
            state = "syncing" if not each.is_training else "training" if each.role == "trainer" else "assisting"
            rate = (each.device.samples_per_second or 0.0) if each.is_training else 0.0
            claims[each.session_id] = checked_claim(each.step, held.get(each.device.name, 0), rate, state, self._now)
        touch_sessions(self._database, claims)

    def _write_status(self, samples: int) -> None:
        """Write the keeper's view of the swarm, with the samples towards the next step."""
        target, speed = self._config.averaging.target_batch_size, run_speed(self._database, self._now)
        write_swarm_status(
            self._database,
            step=self._keeper.step,
            samples_accumulated=samples,
            target_batch_size=target,
            peers=sum(each.is_training and each.role == "trainer" for each in self._devices.values()),
            samples_per_second=speed,
            eta_s=batch_left_s(samples, target, speed),
            addresses=(),
            now=self._now,
        )


def _public_key() -> bytes:
    """Make a public key without a private one: its modulus is random, so nobody can authenticate with it."""
    modulus = secrets.randbits(RSA_BITS) | 1 << RSA_BITS - 1 | 1
    public_key = rsa.RSAPublicNumbers(RSA_EXPONENT, modulus).public_key()
    return public_key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
