"""One peer's membership in the swarm: global batches, averaging and steps with other peers.

`Swarm` executes the moves chosen by `peer.swarm.decision`: `peer.swarm.step_rounds` averages, and
`peer.swarm.shared_state` takes the step. `Swarm` runs in the process with the swarm's keys, and
therefore signs receipts for the rounds that this peer reduced (`Witness`).
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

import torch
from hivemind.p2p import PeerID

from auth.clock import swarm_time
from auth.credentials import Credentials
from auth.errors import SwarmError
from auth.keys import ReceiptKey
from auth.receipts import ReceiptBody, sign_receipt, whole_samples
from auth.swarm.access import SwarmAccess
from auth.swarm.authorizer import Clock
from peer.averaging.averager import GROUP_POLL_S, AveragedGroup
from peer.averaging.bandwidth import LineEstimate
from peer.averaging.meetings import MOST_GRACE_S
from peer.averaging.shares import GroupLines
from peer.config.run import RunConfig
from peer.config.steering import Steering
from peer.config.training import Averaging
from peer.network.placement import Placement
from peer.network.traffic import Traffic
from peer.node.average_history import Lack
from peer.reduction.guard import ReductionGuard
from peer.reporting.advice import Conditions
from peer.reporting.event_log import NOWHERE, CaughtUp, EventLog, StepTaken, StoodBy, Suspected
from peer.reporting.messages import LostCause
from peer.reporting.metrics import Census, RoundTally
from peer.reporting.suspicions import Suspicion, Suspicions
from peer.runtime.mailbox import Mailbox
from peer.swarm.assembly import SHUTDOWN_S, Assembly
from peer.swarm.decision import DownloadPause, Move, Situation, decide, longest_hold_s, samples_at_once
from peer.swarm.dht import NodeWatch, join_dht
from peer.swarm.fingerprint import drifted
from peer.swarm.records import Beacon
from peer.swarm.shared_state import SharedState
from peer.swarm.step_rounds import StepRounds
from peer.swarm.training_state import TrainingState
from peer.swarm.transfers import Transfers
from peer.swarm.view import MOST_BATCHES

logger = logging.getLogger(__name__)
LOOK_AGAIN_S = (0.5, 1.5)  # bounds of a random interval, which spreads the requests for a missed average
HELD_POLL_S = 0.05
MAILBOX_RETRY_S = 0.1
MOST_SILENT_LOOKS = 5  # unanswered requests before the whole state is downloaded
ANYWHERE = Placement()
Item = TypeVar("Item")
Round = futures.Future[tuple[AveragedGroup | None, float]]  # the averaged group, and the duration in seconds


@dataclass(frozen=True)
class StepOutcome:
    """The outcome of one attempt at a global step."""

    step: int  # global steps completed afterwards
    samples: int  # this peer's samples in the average
    averaged: bool  # whether the step was taken
    group_size: int
    group_samples: int | None  # all samples in the average
    averaging_s: float
    averaged_bytes: int = 0  # bytes received from others for reduction
    receipt: str = ""  # signed receipt of the others' samples; empty if this peer reduced nothing
    era: int = 0  # era of the state before the step
    lost_samples: int = 0
    lost_reason: str = ""
    followed_steps: int = 0  # missed steps that this peer took from their averages


@dataclass(frozen=True)
class SwarmProgress:
    """The progress of this peer and of the swarm towards the next global step."""

    step: int
    own_samples: int
    swarm_samples: int
    target_batch_size: int
    peers: int
    samples_per_second: float  # this peer's training rate
    apart: bool = False  # whether no keeper was seen within the lifetime of records
    stands_by: bool = False  # whether this peer waits for a faster connection
    paused: bool = False  # whether the operator has paused the run


class Swarm:
    """The trainer's and keeper's interface to the swarm: created by `join`, closed by `leave`."""

    def __init__(
        self,
        assembly: Assembly,
        model: torch.nn.Module,
        keeper_ids: Sequence[PeerID],
        line: LineEstimate,
        suspicions: Suspicions,
        on_lost: Callable[[SwarmError], object],
    ) -> None:
        """Start the averager on a started DHT node. Raises `SwarmError` if the node is lost."""
        credentials, guard = assembly.access.credentials, ReductionGuard(averaging=assembly.config.averaging)
        self._config, self._dht, self._line = assembly.config, assembly.dht, line
        self._events = assembly.events
        self._may_follow = assembly.role != "keeper"  # the keeper adopts the majority's state and follows no averages
        self._stands_by = False  # whether this peer waits for a faster connection
        self._interrupted = threading.Event()  # set when this peer leaves and must stop waiting for others
        self._watch = NodeWatch(self._dht, on_lost, assembly.access.clock)
        self._tracker = assembly.tracker(keeper_ids, guard.caps, suspicions)
        self._exchange = assembly.record_exchange(self._tracker, keeper_ids)
        self.training = TrainingState(model, assembly.config)
        self._gradients = assembly.gradient_averager(self.training, line.rate, guard)
        self._watch.start(self._gradients, "averager")
        self._rounds = StepRounds(
            self._gradients,
            self._tracker,
            line,
            assembly.config.averaging,
            trains=assembly.role == "trainer",
            interrupted=self._interrupted,
            events=assembly.events,
        )
        self._transfers = Transfers(self._gradients, self._interrupted, assembly.events)
        self.state = SharedState(
            self.training,
            self._transfers,
            self._gradients,
            self._tracker,
            self._rounds,
            assembly.config,
            is_keeper=not self._may_follow,
            interrupted=self._interrupted,
        )
        run = assembly.access.run
        self._witness = Witness(credentials.device_key.receipt_key(run), run)
        self._background = futures.ThreadPoolExecutor(1, "averaging")
        self._overlapping: Round | None = None
        self._last_samples = 0  # samples in this peer's newest microbatch
        self._held = -1, 0.0  # newest step with a wait for a batch's last samples, and the seconds waited
        self._held_after = -1  # step after which the wait for the last samples timed out; -1: none
        self._has_late_samples = False  # the accumulated samples are already one step late, which is the maximum
        self._silent_looks = 0  # successive unanswered requests for a missed average
        self._unfollowed = -1  # step after which the next average is unavailable; -1: none
        self._pause = DownloadPause(time.monotonic)
        self.state.restore(0)
        self._exchange.start()
        for name, served in (
            ("listener", partial(self._serve, self._gradients.heard, self._tracker.hear)),
            ("copier", partial(self._serve, self._gradients.copies_wanted, self._give_copy)),
        ):
            threading.Thread(target=served, name=name, daemon=True).start()

    @classmethod
    def join(
        cls,
        *,
        config: RunConfig,
        model: torch.nn.Module,
        credentials: Credentials,
        initial_peers: Sequence[str],
        place: Placement = ANYWHERE,
        relays: Sequence[str] = (),
        traffic: Traffic | None = None,
        clock: Clock = swarm_time,
        on_suspicion: Callable[[Suspicion], None] = lambda _: None,
        on_lost: Callable[[SwarmError], object] = lambda _: None,
        events: EventLog = NOWHERE,
    ) -> Swarm:
        """Start the DHT node and the averager by forking; call before initializing an accelerator.

        `on_lost` is called from a separate thread when one of these processes dies or hangs. Raises
        `SwarmError` if the p2p daemon does not start or no initial peer can be reached.
        """
        dht, is_client = join_dht(config.run.name, credentials, initial_peers, place, relays, clock)
        role = credentials.access_token(clock()).role
        access = SwarmAccess(
            credentials, config.run.name, frozenset({"trainer"} if role == "keeper" else {"keeper"}), clock
        )
        return cls(
            Assembly(config, access, role, dht, is_client, place.may_reduce, traffic or Traffic(), events),
            model,
            [PeerID.from_base58(address.rsplit("/p2p/", 1)[1]) for address in initial_peers],
            LineEstimate(place.bandwidth, time.monotonic, random.Random()),
            Suspicions(lambda found: _note(found, events, on_suspicion), clock),
            on_lost,
        )

    def _give_copy(self, _wanted: None) -> None:
        """Copy the state for another peer that downloads it, also while this peer computes."""
        try:
            self._gradients.copies.put(self.training.copy())
        except Exception:
            self._gradients.copies.put(None)
            raise

    def _serve(self, mailbox: Mailbox[Item], process: Callable[[Item], None]) -> None:
        """Process what the averager's process sends, in a thread, until that process has ended."""
        while True:
            try:
                process(mailbox.get())
            except EOFError:
                return
            except Exception:
                if not self._gradients.is_alive():
                    return
                logger.warning("a message from the averager was not processed", exc_info=True)
                time.sleep(MAILBOX_RETRY_S)

    @property
    def step(self) -> int:
        """The number of global steps included in this peer's state."""
        return self.state.step

    @property
    def is_behind(self) -> bool:
        """Whether this peer lacks the swarm's state, and no round runs in the background."""
        tracker = self._tracker
        has_other = tracker.swarm_step > self.step or tracker.has_drifted or tracker.is_undone
        return self._overlapping is None and has_other

    @property
    def own_samples(self) -> int:
        """This peer's samples that are not yet in a step, including samples being averaged."""
        return self._gradients.all_samples

    @property
    def set_aside_samples(self) -> int:
        """This peer's samples in a background round; 0 if there is none."""
        return self._gradients.due_samples if self._gradients.holds else 0

    @property
    def averaging(self) -> Averaging:
        """The averaging settings, with the gradient encoding in force after the swarm's step."""
        return self._rounds.averaging

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the global steps."""
        return self.training.optimizer

    @property
    def wants_samples(self) -> bool:
        """Whether this peer has the swarm's state and room for another microbatch."""
        return not (self.is_behind or self._has_enough or self._rounds.line_is_too_slow)

    @property
    def _has_enough(self) -> bool:
        return self.is_held or self._gradients.all_samples >= MOST_BATCHES * self._tracker.target_batch_size

    @property
    def step_is_shared(self) -> bool:
        """Whether a peer besides the keeper is at this peer's step, and the swarm is not ahead."""
        view = self._tracker.view
        return view.step == self.step and view.step_is_shared

    def await_beacon(self, patience_s: float) -> Beacon | None:
        """Wait for the keeper's beacon; return None if no beacon is seen within `patience_s`."""
        deadline = time.monotonic() + patience_s
        while (beacon := self._tracker.course.beacon) is None and time.monotonic() < deadline:
            if self._interrupted.wait(GROUP_POLL_S):
                break
        return beacon

    @property
    def sees_keeper(self) -> bool:
        """Whether the keeper was in the swarm when this peer last read the records."""
        return self._tracker.view.keepers > 0

    @property
    def addresses(self) -> list[str]:
        """This peer's libp2p multiaddresses."""
        return [str(address) for address in self._dht.get_visible_maddrs()]

    @property
    def heard_at(self) -> float:
        """Unix time at which this peer's own p2p daemon last answered."""
        return self._watch.heard_at

    def keeper_at(self, addresses: Sequence[str]) -> None:
        """Set the keeper's addresses, used when this peer does not see the keeper."""
        self._exchange.keeper_at(addresses)

    def line_is_due(self) -> bool:
        """Return whether a bandwidth measurement is due; True once per interval."""
        return self._line.is_due()

    def line_measured(self, rate: float) -> None:
        """Record a bandwidth measurement: bytes per second in the slower direction."""
        self._line.measured(rate)
        self._rounds.declare_line()

    @property
    def is_held(self) -> bool:
        """Whether the operator has paused the run; False once the run has ended."""
        return self._tracker.course.steering.paused and not self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether this peer (or, during its standby, the swarm) has taken the run's last step."""
        step = self._tracker.swarm_step if self._stands_by else self.step
        return self._tracker.course.steering.has_ended(step)

    def steer(self, steering: Steering) -> None:
        """Publish the operator's steering to all peers in the beacon; for the keeper only."""
        self._tracker.steer(steering)

    def add(self, samples: int) -> None:
        """Report a microbatch whose gradient, summed over its samples, was added to `.grad`."""
        self._last_samples = samples
        self._tracker.rate.computed(samples)
        self._gradients.accumulate_grads_(samples)
        if not self._gradients.holds:  # otherwise, these samples count towards the next step
            self._report()

    def samples_at_once(self, microbatch: int) -> int:
        """Return the number of samples to compute before the next call of `advance`."""
        rate = self._tracker.rate.per_second
        most = min(microbatch, self._tracker.target_batch_size)  # the target may still be increasing
        return samples_at_once(most, rate, self._tracker.course.allowances.usual_s)

    def conditions(self) -> Conditions:
        """Return the durations that determine whether this peer's samples arrive in time."""
        rate, line_rate = self._tracker.rate.per_second, self._line.rate
        return Conditions(
            step_s=self._tracker.course.allowances.usual_s,
            sample_s=1 / rate if rate else 0.0,
            round_s=self._rounds.round_bytes / line_rate if line_rate else 0.0,
            longest_round_s=self._config.averaging.averaging_timeout_s,
        )

    def begin_training(self) -> None:
        """Announce that this peer trains, so that others wait for it when they average."""
        self._tracker.begin_training()

    def advance(self, collect: Callable[[], None] = lambda: None) -> StepOutcome | None:
        """Take the next global step if its batch is full; return None otherwise.

        `collect` adds gradients accumulated elsewhere to `.grad`. If the outcome is not `averaged`,
        `lost_samples` were discarded; if 0, all accumulated samples remain valid. With delayed
        steps, the batch is averaged in the background, and the next call takes the step.
        """
        with self._tracker.rate.pause():
            return self._advance(collect)

    def _advance(self, collect: Callable[[], None]) -> StepOutcome | None:
        if self._overlapping is not None:
            return self._conclude(self._overlapping, collect)
        if decide(self._situation())[0] is Move.HOLD:
            self._hold()
        move, reason = decide(self._situation())
        if move is Move.WAIT:
            self._rounds.cancel()
            self._interrupted.wait(random.uniform(*LOOK_AGAIN_S))
            return None
        if move is Move.STAND_BY:
            return self._stand_by()
        if self._stands_by:
            self._stands_by = False
            self._tracker.stand_by(None)
        if move in (Move.FOLLOW, Move.DOWNLOAD):
            logger.info("%s after step %d: %s", move.value, self.step, reason)
            return self._follow(collect) if move is Move.FOLLOW else self._catch_up()
        self._rounds.prepare()
        if move is Move.ACCUMULATE:
            if self._has_enough:
                self._interrupted.wait(HELD_POLL_S)
            return None
        collect()
        if move is Move.AVERAGE_BESIDE:
            self._gradients.hold()
            self._overlapping = self._background.submit(self._average)
            return None
        return self._step(*self._average())

    def _hold(self) -> None:
        """Wait while `Move.HOLD` applies; after a timeout, do not wait again in this step."""
        tracker, began, step = self._tracker, time.monotonic(), self.step
        held_before_s = self._held[1] if self._held[0] == step else 0.0
        longest_s = longest_hold_s(
            tracker.course.allowances.usual_s,
            self._config.averaging.progress_refresh_s,
            tracker.missing_samples,
            tracker.view.faster_rate(tracker.own_id),
        )
        self._rounds.prepare()
        tracker.look_now()
        while decide(self._situation())[0] is Move.HOLD:
            if self._interrupted.wait(HELD_POLL_S) or held_before_s + time.monotonic() - began >= longest_s:
                self._held_after = step
        self._held = step, held_before_s + time.monotonic() - began

    def _stand_by(self) -> StepOutcome | None:
        """Wait for a faster connection; the first call returns an outcome with the lost samples."""
        self._line.doubt()
        self._tracker.stand_by(self._line.rate)
        if self._stands_by:
            self._interrupted.wait(random.uniform(*LOOK_AGAIN_S))
            return None
        self._stands_by = True
        self._rounds.cancel()
        lost = self._drop_gradients()
        self._events.add(StoodBy(step=self.step, round_s=self.conditions().round_s, lost_samples=lost))
        return self._without_step(0.0, lost, LostCause.SLOW_LINE.value)

    def _situation(self) -> Situation:
        """Return this peer's situation; a peer with a drifted state cannot follow averages."""
        tracker = self._tracker
        may_follow = self._may_follow and self._unfollowed != self.step
        return Situation(
            step=self.step,
            swarm_step=tracker.swarm_step,
            is_too_slow=self._rounds.line_is_too_slow,
            is_undone=tracker.is_undone,
            has_drifted=tracker.has_drifted,
            can_follow=may_follow and not drifted(tracker.sketch, tracker.course.sketch_at(self.step)),
            may_download=self._pause.is_over or not self._may_follow,
            is_leaving=self._interrupted.is_set(),
            is_held=tracker.is_held,
            is_full=self._rounds.is_full,
            remaining_s=tracker.remaining_s,
            microbatch_s=self._last_samples / rate if (rate := tracker.rate.per_second) > 0 else 0.0,
            may_hold=self._held_after != self.step,
            may_overlap=self._may_overlap,
            others_arrive=self._others_arrive,
        )

    @property
    def _may_overlap(self) -> bool:
        """Whether this peer may train during the next round; samples must not cross a phase boundary."""
        phases = [len(self._config.at_step(step).phases) for step in (self.step, self.step + 1)]
        return self._config.averaging.delay and self._may_follow and phases[0] == phases[1]

    @property
    def _others_arrive(self) -> bool:
        """Whether to wait, for a limited time, for peers that have not taken the newest step.

        Otherwise, samples accumulated during a round could fill the next batch without these peers.
        """
        may_come = self._tracker.view.arriving > 0 and not self._rounds.has_begun
        return may_come and time.monotonic() - self.state.changed_at < MOST_GRACE_S

    @property
    def _is_ahead(self) -> bool:
        """Whether this peer has computed its share (by rate) of the next batch, or may add no more.

        Such a peer waits, which limits the next batch to the configured size.
        """
        own, all_rates = self._tracker.rate.per_second, self._tracker.view.rate
        share = min(1.0, own / all_rates) if all_rates > 0 else 1.0
        has_share = self._gradients.local_samples_accumulated >= share * self._tracker.target_batch_size
        return bool(has_share) or self._has_enough

    def finish(self, collect: Callable[[], None]) -> StepOutcome | None:
        """Interrupt a background round before leaving; return its outcome, if there is one."""
        self.interrupt()
        if self._overlapping is None:
            return None
        futures.wait([self._overlapping])
        return self._conclude(self._overlapping, collect)

    def _average(self) -> tuple[AveragedGroup | None, float]:
        began = time.perf_counter()
        return self._rounds.average_when_due(), time.perf_counter() - began

    def _conclude(self, overlapping: Round, collect: Callable[[], None]) -> StepOutcome | None:
        """Take the step of a background round; return None if it is running or has failed."""
        while (self._is_ahead or self._rounds.line_is_too_slow) and not (
            overlapping.done() or self._interrupted.is_set()
        ):
            futures.wait([overlapping], GROUP_POLL_S)
        if not overlapping.done():
            return None
        self._overlapping = None
        group, seconds = overlapping.result()
        if group is None:
            self._gradients.take_back()
            self._report()
            return None
        collect()  # these gradients belong to the next step
        return self._step(group, seconds)

    def _step(self, group: AveragedGroup | None, seconds: float) -> StepOutcome | None:
        if group is None:
            return None
        samples = self._gradients.due_samples
        self.state.take_step(group.peers)
        self._has_late_samples = False
        self._pause.end()
        self._events.add(
            StepTaken(
                era=self.state.era, step=self.step, samples=samples, group_samples=group.samples, peers=group.size
            )
        )
        return StepOutcome(
            self.step,
            samples,
            True,
            group.size,
            group.samples,
            seconds,
            group.averaged_bytes,
            receipt=self._witness.receipt(self.state.era, self.step, group.counted, group.pseudonyms),
            era=self.state.era,
        )

    def _follow(self, collect: Callable[[], None]) -> StepOutcome | None:
        """Apply the average of the first missed step; return None if the average is unavailable.

        Accumulated samples are discarded, unless the run accepts samples that are one step late.
        """
        began = time.perf_counter()
        keeps_samples, reason = self._keeps_late_samples, self._why_lost()
        average = self._transfers.average(self.state.era, self.step, self.training.shapes)
        if isinstance(average, Lack):
            self._silent_looks = self._silent_looks + 1 if average is Lack.SILENT else 0
            if average is Lack.GONE or self._silent_looks >= MOST_SILENT_LOOKS:
                self._silent_looks, self._unfollowed = 0, self.step
            else:
                self._interrupted.wait(random.uniform(*LOOK_AGAIN_S))
            return None
        self._silent_looks, lost = 0, 0
        if keeps_samples:
            collect()
        else:
            lost = self._drop_gradients()
        self.state.follow(average)
        self._gradients.take_back()
        self._report()
        self._has_late_samples = self._gradients.due_samples > 0
        return self._caught_up(time.perf_counter() - began, lost, reason, followed_steps=1)

    @property
    def _keeps_late_samples(self) -> bool:
        """Whether samples one step late count towards the next step, as delayed steps allow.

        These samples must not have been sent to other peers, which might have counted them.
        """
        is_next = self._tracker.swarm_step == self.step + 1
        return is_next and self._may_overlap and not self._rounds.attempts and not self._has_late_samples

    def _catch_up(self) -> StepOutcome:
        reason = self._why_lost()
        lost = self._drop_gradients()
        began = time.perf_counter()
        downloaded = self.state.download()
        seconds = time.perf_counter() - began
        self._pause.begin(seconds if downloaded else None)
        self._unfollowed = -1
        return self._caught_up(seconds, lost, reason)

    def _caught_up(self, seconds: float, lost: int, reason: str, followed_steps: int = 0) -> StepOutcome:
        way: Literal["average", "state"] = "average" if followed_steps else "state"
        cause = reason if lost else ""
        self._events.add(CaughtUp(way=way, step=self.step, seconds=seconds, lost_samples=lost, cause=cause))
        return self._without_step(seconds, lost, cause, followed_steps)

    def _without_step(self, seconds: float, lost: int, cause: str, followed_steps: int = 0) -> StepOutcome:
        return StepOutcome(
            self.step,
            samples=0,
            averaged=False,
            group_size=0,
            group_samples=None,
            averaging_s=seconds,
            lost_samples=lost,
            lost_reason=cause,
            followed_steps=followed_steps,
        )

    def _why_lost(self) -> str:
        """Return the reason for adopting another state and losing the accumulated samples."""
        if self._tracker.is_undone:
            return LostCause.UNDONE.value
        if self._tracker.swarm_step <= self.step:
            return LostCause.OUT_OF_SYNC.value
        return (LostCause.AVERAGING if self._rounds.attempts else LostCause.LATE).value

    def _drop_gradients(self) -> int:
        """Discard the gradients accumulated for the next step; return their number of samples.

        Remainders of earlier steps are kept unless a round used them: others may have counted them.
        """
        lost = self._gradients.drop_all()
        if self._rounds.attempts:
            self._gradients.forget_remainders()
        self._report()
        return lost

    def _report(self) -> None:
        self._tracker.report(self._gradients.due_samples)

    def progress(self) -> SwarmProgress:
        """Return the progress towards the next global step."""
        tracker = self._tracker
        return SwarmProgress(
            step=self.step,
            own_samples=self._gradients.due_samples,
            swarm_samples=tracker.samples,
            target_batch_size=tracker.target_batch_size,
            peers=tracker.view.trainers,
            samples_per_second=round(tracker.rate.per_second, 3),
            apart=tracker.view.keepers == 0 and not tracker.keeper_may_be_late,
            stands_by=self._stands_by,
            paused=self.is_held,
        )

    @property
    def rounds(self) -> RoundTally:
        """The counts of this peer's averaging rounds by outcome."""
        return self._rounds.counts.tally

    @property
    def missing_auxiliaries(self) -> int | None:
        """The number of further auxiliary peers that would shorten the rounds; None before the first round."""
        return self._rounds.missing_auxiliaries

    @property
    def lines(self) -> GroupLines:
        """The connections of the newest group; `NOBODY` before the first group."""
        return self._rounds.lines

    @property
    def slow_lines(self) -> tuple[float, ...]:
        """The reported bandwidths of the trainers on standby, in bytes per second; one per member."""
        return self._tracker.view.slow_lines

    @property
    def batch_s(self) -> float:
        """The seconds that current trainers need for a batch; infinite if no rate is known."""
        rate = self._tracker.view.rate
        return self._tracker.target_batch_size / rate if rate > 0 else math.inf

    @property
    def census(self) -> Census:
        """The numbers of participating peers by role and reachability, this peer included."""
        return self._tracker.view.census

    def interrupt(self) -> None:
        """Make `advance` stop waiting for others before this peer leaves; thread-safe."""
        self._interrupted.set()

    def leave(self) -> None:
        """Leave the swarm, cancel pending rounds, and stop every process that `join` started."""
        self._watch.stop()
        self.interrupt()
        self._background.shutdown()
        self._rounds.cancel()
        self._exchange.stop(SHUTDOWN_S)
        self._gradients.shutdown()
        self._gradients.heard.close()
        self._gradients.copies_wanted.close()
        self._dht.shutdown()


def _note(found: Suspicion, events: EventLog, on_suspicion: Callable[[Suspicion], None]) -> None:
    events.add(Suspected(peer=found.peer_id, suspicion=found.kind, step=max(0, found.step), detail=found.detail))
    on_suspicion(found)


@dataclass(frozen=True)
class Witness:
    """The signer of receipts for the rounds that one device reduced in one run."""

    key: ReceiptKey
    run: str

    def receipt(self, era: int, step: int, weights: Mapping[str, float], pseudonyms: Mapping[str, str]) -> str:
        """Sign a receipt of the round that led to `step`; return "" if this peer reduced nothing.

        `weights`: peer ID -> samples; `pseudonyms`: peer ID -> name in receipts. The device's own
        samples are included: they prove nothing, but make all receipts of a round equal.
        """
        samples = {pseudonyms[peer]: brought for peer, brought in whole_samples(weights).items()}
        if not samples:
            return ""
        return str(sign_receipt(self.key, ReceiptBody(run=self.run, era=era, step=step, samples=samples)))
