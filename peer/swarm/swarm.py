"""One peer's place in the swarm: fills the global batch with the others, averages with them, steps with them.

`Swarm` is what the trainer and the keeper use; below it stands `peer.swarm.optimizer`. It lives in the process that
holds the swarm's keys, and so signs receipts of the rounds that this peer reduced (`Witness`).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from typing import Any

import hivemind
import torch
from hivemind.p2p import PeerID

from auth.credentials import Credentials
from auth.errors import SwarmError
from auth.keys import DeviceKey
from auth.receipts import ReceiptBody, sign_receipt, whole_samples
from auth.swarm.access import SwarmAccess
from auth.swarm.authorizer import Clock, RecordKey
from peer.averaging.averager import GROUP_POLL_S, AveragedGroup
from peer.averaging.bandwidth import LineEstimate
from peer.config.run import RunConfig
from peer.config.steering import Steering
from peer.network.placement import Placement
from peer.network.traffic import Traffic
from peer.reporting.messages import LostCause
from peer.reporting.metrics import Census, RoundTally
from peer.reporting.suspicions import Suspicion, Suspicions
from peer.swarm.decision import DownloadPause, Move, decide
from peer.swarm.dht import NodeWatch, join_dht
from peer.swarm.fingerprint import Sketch
from peer.swarm.history import Lack
from peer.swarm.optimizer import SwarmOptimizer
from peer.swarm.records import Beacon

logger = logging.getLogger(__name__)
LOOK_AGAIN_S = (0.5, 1.5)  # for the average of a missed step: drawn, so that those who wait do not all come at once
MOST_SILENT_LOOKS = 5  # of no donor, before the state is asked for instead
ANYWHERE = Placement()
Round = futures.Future[tuple[AveragedGroup | None, float]]  # what was averaged, and how long it took in seconds


@dataclass(frozen=True)
class StepOutcome:
    """The outcome of one attempt at a global step."""

    step: int  # global steps completed afterwards
    samples: int  # this peer's samples that were averaged in
    averaged: bool  # whether the step was taken
    group_size: int
    group_samples: int | None  # all samples that were averaged
    averaging_s: float
    averaged_bytes: int = 0  # that others sent to this peer to be averaged
    receipt: str = ""  # of what they brought, signed; empty if this peer reduced nothing
    era: int = 0  # of the state that the step was taken from
    lost_samples: int = 0
    lost_reason: str = ""
    followed_steps: int = 0  # that this peer took from their averages alone


@dataclass(frozen=True)
class SwarmProgress:
    """The progress of this peer and of the swarm towards the next global step."""

    step: int
    own_samples: int
    swarm_samples: int
    target_batch_size: int
    peers: int
    samples_per_second: float  # this peer's
    apart: bool = False  # no keeper has been seen for as long as records hold


class Swarm:
    """The swarm as the trainer sees it; made by `join`, left by `leave`."""

    def __init__(self, dht: hivemind.DHT, optimizer: SwarmOptimizer, witness: Witness, watch: NodeWatch) -> None:
        self._dht, self._watch = dht, watch
        self._optimizer = optimizer
        self._witness = witness
        self._rounds = futures.ThreadPoolExecutor(
            1, "averaging"
        )  # its thread starts with the first round in background
        self._overlapping: Round | None = None
        self._silent_looks = 0  # for the average of a missed step, in succession
        self._unfollowed = -1  # the step after which the average cannot be had
        self._pause = DownloadPause(time.monotonic)

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
        clock: Clock = time.time,
        on_suspicion: Callable[[Suspicion], None] = lambda _: None,
        on_lost: Callable[[SwarmError], object] = lambda _: None,
    ) -> Swarm:
        """Start the DHT node and the averagers (this forks: call it before touching an accelerator).

        `on_lost` hears, by a thread of its own, that one of these processes has died or answers no more.
        Raises `SwarmError` when the p2p daemon does not start or no initial peer can be reached.
        """
        dht, is_client = join_dht(config.run.name, credentials, initial_peers, place, relays, clock)
        token, key = credentials.access_token(clock()), RecordKey(credentials.device_key.private_der)
        keeper_ids = [PeerID.from_base58(address.rsplit("/p2p/", 1)[1]) for address in initial_peers]
        donors = frozenset({"trainer"} if token.role == "keeper" else {"keeper"})
        access = SwarmAccess(credentials, config.run.name, donors, clock)
        optimizer = SwarmOptimizer(
            access=access,
            key=key,
            role=token.role,
            config=config,
            model=model,
            dht=dht,
            keeper_ids=keeper_ids,
            traffic=traffic or Traffic(),
            line=LineEstimate(place.declared_bandwidth, time.monotonic, random.Random()),
            suspicions=Suspicions(on_suspicion, clock),
            client_mode=is_client,
        )
        optimizer.restore(0)
        optimizer.tracker.publish()
        optimizer.tracker.start()
        watch = NodeWatch(dht, (optimizer.grad_averager, optimizer.state_averager), on_lost, clock)
        return cls(dht, optimizer, Witness(credentials.device_key, config.run.name), watch)

    @property
    def step(self) -> int:
        """Global steps completed by this peer's state."""
        return int(self._optimizer.local_epoch)

    @property
    def is_behind(self) -> bool:
        """Whether this peer has yet to come to the swarm's state, and no round of its own is under way."""
        tracker = self._optimizer.tracker
        has_other = tracker.swarm_step > self.step or tracker.has_drifted or tracker.is_undone
        return self._overlapping is None and has_other

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer that holds the state (LAMB), for checkpoints."""
        return self._optimizer.opt

    @property
    def sketch(self) -> Sketch:
        """A short summary of this peer's state."""
        return self._optimizer.tracker.sketch

    @property
    def parameters(self) -> Sequence[torch.Tensor]:
        """The trained parameters, in the order in which they are sketched."""
        return list(self._optimizer.state_averager.main_parameters)

    def await_beacon(self, patience_s: float) -> Beacon | None:
        """Wait for the keeper's beacon; None if none has been seen within `patience_s`."""
        deadline = time.monotonic() + patience_s
        while (beacon := self._optimizer.tracker.course.beacon) is None and time.monotonic() < deadline:
            if self._optimizer.interrupted.wait(GROUP_POLL_S):
                break
        return beacon

    @property
    def sees_keeper(self) -> bool:
        """Whether the keeper was in the swarm when this peer looked last."""
        return self._optimizer.tracker.view.keepers > 0

    @property
    def addresses(self) -> list[str]:
        """This peer's libp2p multiaddresses."""
        return [str(address) for address in self._dht.get_visible_maddrs()]

    @property
    def heard_at(self) -> float:
        """The time at which this peer's own p2p daemon last answered (Unix seconds)."""
        return self._watch.heard_at

    def keeper_at(self, addresses: Sequence[str]) -> None:
        """Set the keeper's addresses, where this peer looks for the keeper whenever it does not see it."""
        self._optimizer.tracker.keeper_at(addresses)

    def line_is_due(self) -> bool:
        """Return whether to measure the line (again) now; true once each time."""
        return self._optimizer.line.is_due()

    def line_measured(self, rate: float) -> None:
        """Take in a measurement of the line: the rate of its slower direction, in bytes per second."""
        self._optimizer.line.measured(rate)
        self._optimizer.declare_line()

    @property
    def is_held(self) -> bool:
        """Whether the operator has paused the run; false once the run has ended."""
        return self._optimizer.tracker.course.steering.paused and not self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether this peer's state is the run's last."""
        return self._optimizer.tracker.course.steering.has_ended(self.step)

    def steer(self, steering: Steering) -> None:
        """Send the operator's steering to all peers, by the beacon; only the keeper does."""
        self._optimizer.tracker.steer(steering)

    def add(self, samples: int) -> None:
        """Count a microbatch whose gradient (summed over samples) was added to `.grad`."""
        self._optimizer.add(samples)

    def begin_training(self) -> None:
        """Tell the others to wait for this peer when they average."""
        self._optimizer.tracker.begin_training()

    def advance(self, collect: Callable[[], None] = lambda: None) -> StepOutcome | None:
        """Take the next global step if its batch is full; None while it is not.

        `collect` brings to `.grad` what was accumulated elsewhere, when it is wanted. An outcome with `averaged` False
        has lost `lost_samples`, or none if they still count. Where the run allows delayed steps, the batch is averaged
        in the background, and the step is taken by the first call after that.
        """
        if self._overlapping is not None:
            return self._conclude(self._overlapping, collect)
        optimizer = self._optimizer
        move, reason = decide(
            optimizer.situation(
                may_follow=optimizer.follows and self._unfollowed != self.step,
                may_download=self._pause.is_over or not optimizer.follows,
            )
        )
        if move is Move.WAIT:
            optimizer.interrupted.wait(random.uniform(*LOOK_AGAIN_S))
            return None
        if move in (Move.FOLLOW, Move.DOWNLOAD):
            logger.info("%s after step %d: %s", move.value, self.step, reason)
            return self._follow(collect) if move is Move.FOLLOW else self._catch_up()
        optimizer.prepare_averaging()
        if move is Move.ACCUMULATE:
            return None
        collect()
        if move is Move.AVERAGE_BESIDE:
            optimizer.grad_averager.hold()
            self._overlapping = self._rounds.submit(self._average)
            return None
        return self._step(*self._average())

    def finish(self, collect: Callable[[], None]) -> StepOutcome | None:
        """Interrupt a round in the background before leaving; return its outcome, None if it brought no step."""
        self.interrupt()
        if self._overlapping is None:
            return None
        futures.wait([self._overlapping])
        return self._conclude(self._overlapping, collect)

    def _average(self) -> tuple[AveragedGroup | None, float]:
        began = time.perf_counter()
        return self._optimizer.average_when_due(), time.perf_counter() - began

    def _conclude(self, overlapping: Round, collect: Callable[[], None]) -> StepOutcome | None:
        """Take the step of a round in the background; None while it runs, or if it failed: then all is as before."""
        while self._optimizer.is_ahead and not (overlapping.done() or self._optimizer.interrupted.is_set()):
            futures.wait([overlapping], GROUP_POLL_S)
        if not overlapping.done():
            return None
        self._overlapping = None
        group, seconds = overlapping.result()
        if group is None:
            self._optimizer.take_back()
            return None
        collect()  # what was computed beside the round is for the next step
        return self._step(group, seconds)

    def _step(self, group: AveragedGroup | None, seconds: float) -> StepOutcome | None:
        if group is None:
            return None
        samples = self._optimizer.grad_averager.due_samples
        self._optimizer.take_step()
        self._pause.end()
        era = self._optimizer.state_averager.era
        return StepOutcome(
            self.step,
            samples,
            True,
            group.size,
            group.samples,
            seconds,
            group.averaged_bytes,
            receipt=self._witness.receipt(era, self.step, group.counted),
            era=era,
        )

    def _follow(self, collect: Callable[[], None]) -> StepOutcome | None:
        """Take the first step that this peer missed from its average; None if that is not to be had now.

        Its accumulated samples are lost, unless the run lets them count one step late.
        """
        optimizer, began = self._optimizer, time.perf_counter()
        keeps_samples, reason = optimizer.keeps_late_samples, self._why_lost()
        average = optimizer.state_averager.missed_average()
        if isinstance(average, Lack):
            self._silent_looks = self._silent_looks + 1 if average is Lack.SILENT else 0
            if average is Lack.GONE or self._silent_looks >= MOST_SILENT_LOOKS:
                self._silent_looks, self._unfollowed = 0, self.step
            else:
                optimizer.interrupted.wait(random.uniform(*LOOK_AGAIN_S))
            return None
        self._silent_looks, lost = 0, 0
        if keeps_samples:
            collect()
        else:
            lost = optimizer.drop_gradients()
        optimizer.follow(average)
        seconds = time.perf_counter() - began
        return self._caught_up(seconds, lost, reason, followed_steps=1)

    def _catch_up(self) -> StepOutcome:
        reason = self._why_lost()
        lost = self._optimizer.drop_gradients()
        began = time.perf_counter()
        downloaded = self._optimizer.download_state()
        seconds = time.perf_counter() - began
        self._pause.begin(seconds if downloaded else None)
        self._unfollowed = -1
        return self._caught_up(seconds, lost, reason)

    def _caught_up(self, seconds: float, lost: int, reason: str, followed_steps: int = 0) -> StepOutcome:
        return StepOutcome(
            self.step,
            samples=0,
            averaged=False,
            group_size=0,
            group_samples=None,
            averaging_s=seconds,
            lost_samples=lost,
            lost_reason=reason if lost else "",
            followed_steps=followed_steps,
        )

    def _why_lost(self) -> str:
        """Return the reason why this peer takes another's state, and so loses its accumulated samples."""
        optimizer = self._optimizer
        if optimizer.tracker.is_undone:
            return LostCause.UNDONE.value
        if optimizer.tracker.swarm_step <= self.step:
            return LostCause.OUT_OF_SYNC.value
        return (LostCause.AVERAGING if optimizer.attempts else LostCause.LATE).value

    def download_state(self) -> bool:
        """Take a trusted donor's state; false if there is none."""
        return self._optimizer.download_state()

    @property
    def is_downloading(self) -> bool:
        """Whether this peer waits for another's state or averages, which may take hours on a slow line."""
        return bool(self._optimizer.state_averager.is_downloading)

    @property
    def turned_away(self) -> int:
        """The number of requests for this peer's state that came while it gave the state to others."""
        return int(self._optimizer.state_averager.turned_away)

    def restore(self, step: int, era: int | None = None) -> None:
        """Declare that model and optimizer hold the state after `step` global steps (read from a checkpoint).

        A newer `era`, which the keeper sets, makes all peers that are further return to this state.
        """
        self._optimizer.restore(step, era)

    @property
    def era(self) -> int:
        """The number of times that the run had returned to a checkpoint when this peer's state was taken."""
        return int(self._optimizer.state_averager.era)

    def frozen_state(self) -> Any:
        """Return a context in which no global step changes the state."""
        return self._optimizer.state_averager.state_lock

    def progress(self) -> SwarmProgress:
        """Return the progress towards the next global step."""
        tracker = self._optimizer.tracker
        progress = tracker.global_progress
        return SwarmProgress(
            step=self.step,
            own_samples=self._optimizer.grad_averager.due_samples,
            swarm_samples=int(progress.samples_accumulated) if progress.epoch == self.step else 0,
            target_batch_size=self._optimizer.target_batch_size,
            peers=tracker.view.trainers,
            samples_per_second=round(float(tracker.performance_ema.samples_per_second), 3),
            apart=tracker.view.keepers == 0 and not tracker.keeper_may_be_late,
        )

    @property
    def rounds(self) -> RoundTally:
        """The tally of this peer's rounds of averaging by their ends."""
        return self._optimizer.rounds.tally

    @property
    def census(self) -> Census:
        """The numbers of peers that take part, by role and reachability, this one included."""
        return self._optimizer.tracker.view.census

    def interrupt(self) -> None:
        """Let `advance` no longer wait for others, because this peer is about to leave; called from any thread."""
        self._optimizer.interrupted.set()

    def leave(self) -> None:
        """Leave the swarm, and stop every process that `join` started."""
        self._watch.stop()
        self.interrupt()
        self._rounds.shutdown()
        self._optimizer.shutdown()
        self._dht.shutdown()


@dataclass(frozen=True)
class Witness:
    """The signer of receipts for the rounds that one device reduced in one run."""

    key: DeviceKey
    run: str

    def receipt(self, era: int, step: int, weights: Mapping[str, float]) -> str:
        """Sign a receipt of the round that led to `step` (peer ID -> samples); empty where nothing was reduced.

        The device's own samples are in it, too. That is no evidence, but makes the receipt the same as the others'.
        """
        samples = whole_samples(weights)
        return str(sign_receipt(self.key, ReceiptBody(self.run, era, step, samples))) if samples else ""
