"""One peer's membership in the swarm, for the trainer's and the keeper's process.

`Swarm` makes the parts and starts them; `peer.swarm.moves` works towards the steps. `Swarm` runs in
the process with the swarm's keys, and therefore signs receipts for the rounds that this peer
reduced (`Witness`).
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from auth.clock import swarm_time
from auth.credentials import Credentials
from auth.errors import SwarmError
from auth.keys import ReceiptKey
from auth.receipts import ReceiptBody, sign_receipt, whole_samples
from auth.swarm.authorizer import Clock
from auth.swarm.directory import SwarmAccess
from peer.averaging.bandwidth import LineEstimate
from peer.averaging.rounds import AveragedGroup
from peer.averaging.shares import GroupLines
from peer.config.run import RunConfig
from peer.config.steering import Steering
from peer.config.training import Averaging
from peer.gradients.buffer import GradientBuffer
from peer.network.placement import Placement
from peer.network.traffic import Traffic
from peer.node.average_history import averages_held
from peer.progress.decision import samples_at_once
from peer.progress.records import Beacon
from peer.progress.refresh import Refresh
from peer.progress.tracker import Owner, StepTracker
from peer.progress.view import SwarmCourse
from peer.reduction.sizes import missed_average_bytes, values_sent
from peer.reporting.advice import Conditions
from peer.reporting.event_log import NOWHERE, EventLog, Suspected
from peer.reporting.metrics import Census, RoundTally
from peer.reporting.suspicions import Suspicion, Suspicions
from peer.runtime.waits import ThreadWaits, run_blocking
from peer.swarm.moves import Moves, StepOutcome
from peer.swarm.node_loop import NodeParts
from peer.swarm.node_process import Listeners, NodeProcess
from peer.swarm.node_watch import NodeWatch
from peer.swarm.record_exchange import RecordExchange, peer_ids_of
from peer.swarm.training_state import TrainingState
from peer.swarm.transfers import Transfers

logger = logging.getLogger(__name__)
BEACON_POLL_S, SHUTDOWN_S = 0.2, 2.0
ANYWHERE = Placement()


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
        node: NodeProcess,
        watch: NodeWatch,
        exchange: RecordExchange,
        tracker: StepTracker,
        moves: Moves,
        training: TrainingState,
        gradients: GradientBuffer,
        line: LineEstimate,
        waits: ThreadWaits,
    ) -> None:
        self._node, self._watch, self._exchange, self._tracker = node, watch, exchange, tracker
        self._moves, self.state, self._rounds = moves, moves.state, moves.rounds
        self.training, self._gradients, self._line, self._waits = training, gradients, line, waits

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
        """Fork the node, which starts the p2p daemon; call before initializing an accelerator.

        `on_lost` is called from a separate thread when one of these processes dies or hangs. Raises
        `SwarmError` if the p2p daemon does not start or no initial peer can be reached.
        """
        averaging, run, token = config.averaging, config.run.name, credentials.access_token(clock())
        role, peer_id = token.role, credentials.device_key.peer_id
        access = SwarmAccess(credentials, run, frozenset({"trainer"} if role == "keeper" else {"keeper"}), clock)
        training, waits = TrainingState(model, config), ThreadWaits()
        gradients = GradientBuffer(training.parameters, averaging, f"{run} of {credentials.authority.hex()}")
        log, traffic = events.of_process(f"{events.process}-node"), traffic or Traffic()
        node = NodeProcess(NodeParts(access, initial_peers, place, averaging, gradients.shared, relays, traffic, log))
        joined, keepers = node.start(), peer_ids_of(initial_peers)
        suspicions = Suspicions(lambda found: _note(found, events, on_suspicion), clock)
        tracker = StepTracker(
            Owner(peer_id, token.member, token.device_id, role, joined.is_client),
            run,
            SwarmCourse.of(config, peer_id, role, suspicions),
            target_batch_size=averaging.target_batch_size,
            refresh=Refresh(averaging.progress_refresh_s, averaging.statistics_expiration_s),
            keepers=keepers,
        )
        tracker.on_caps = node.cap
        watch = NodeWatch({"process": joined.process_id, "p2p daemon": joined.daemon_id}, on_lost, clock)
        node.listen(Listeners(watch.heard, tracker.hear, tracker.heed, training.copy))
        exchange = RecordExchange(node, access, tracker, keepers, averaging.statistics_expiration_s)
        line = LineEstimate(place.bandwidth, time.monotonic, random.Random())
        moves = Moves(
            config,
            role,
            tracker,
            gradients,
            node,
            training,
            Transfers(node, waits, events),
            line,
            waits,
            receipt_of=Witness(credentials.device_key.receipt_key(run), run).receipt,
            events=events,
            rng=random.Random(),
        )
        moves.state.restore(0)
        exchange.start()
        return cls(node, watch, exchange, tracker, moves, training, gradients, line, waits)

    @property
    def step(self) -> int:
        """The number of global steps included in this peer's state."""
        return self.state.step

    @property
    def is_behind(self) -> bool:
        """Whether this peer lacks the swarm's state, and no round runs in the background."""
        return self._moves.is_behind

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
    def averages_held(self) -> int:
        """For how many steps the keeper holds averages at least, which peers can take instead of a state."""
        shapes = [parameter.shape for parameter in self.training.parameters]
        average_bytes = missed_average_bytes(self.averaging, values_sent(shapes, self.averaging.powersgd_rank))
        return averages_held(average_bytes, sum(map(math.prod, shapes)))

    @property
    def turned_away(self) -> int:
        """The number of requests for this peer's state that were rejected as busy."""
        return self._node.turned_away

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the global steps."""
        return self.training.optimizer

    @property
    def wants_samples(self) -> bool:
        """Whether this peer has the swarm's state and room for another microbatch."""
        return self._moves.wants_samples

    @property
    def step_is_shared(self) -> bool:
        """Whether a peer besides the keeper is at this peer's step, and the swarm is not ahead."""
        view = self._tracker.view
        return view.step == self.step and view.step_is_shared

    def await_beacon(self, patience_s: float) -> Beacon | None:
        """Wait for the keeper's beacon; return None if no beacon is seen within `patience_s`."""
        deadline = self._waits.now() + patience_s
        while (beacon := self._tracker.course.beacon) is None and self._waits.now() < deadline:
            if run_blocking(self._waits.pause(BEACON_POLL_S)):
                break
        return beacon

    @property
    def sees_keeper(self) -> bool:
        """Whether the keeper was in the swarm when this peer last read the records."""
        return self._tracker.view.keepers > 0

    @property
    def addresses(self) -> list[str]:
        """This peer's libp2p multiaddresses."""
        return list(self._node.addresses)

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

    @property
    def has_ended(self) -> bool:
        """Whether this peer (or, during its standby, the swarm) has taken the run's last step."""
        return self._moves.has_ended

    def steer(self, steering: Steering) -> None:
        """Publish the operator's steering to all peers in the beacon; for the keeper only."""
        self._tracker.steer(steering)

    def add(self, samples: int) -> None:
        """Report a microbatch whose gradient, summed over its samples, was added to `.grad`."""
        self._gradients.add(samples)
        self._moves.computed(samples)

    def samples_at_once(self, microbatch: int) -> int:
        """Return the number of samples to compute before the next call of `advance`."""
        rate = self._tracker.rate.per_second
        most = min(microbatch, self._tracker.target_batch_size)  # the target may still be increasing
        return samples_at_once(most, rate, self._tracker.course.allowances.usual_s)

    def conditions(self) -> Conditions:
        """Return the durations that determine whether this peer's samples arrive in time."""
        return self._moves.conditions()

    def begin_training(self) -> None:
        """Announce that this peer trains, so that others wait for it when they average."""
        self._tracker.begin_training()

    def advance(self, collect: Callable[[], None] = lambda: None) -> StepOutcome | None:
        """Take the next global step if its batch is full; return None otherwise.

        `collect` adds gradients accumulated elsewhere to `.grad`. If the outcome is not `averaged`,
        `lost_samples` were discarded; if 0, all accumulated samples remain valid. With delayed
        steps, the batch is averaged in the background, and the next call takes the step.
        """
        return run_blocking(self._moves.advance(collect))

    def finish(self, collect: Callable[[], None]) -> StepOutcome | None:
        """Interrupt a background round before leaving; return its outcome, if there is one."""
        return run_blocking(self._moves.finish(collect))

    def download(self) -> bool:
        """Download the state from a donor; return False if no donor had a recent enough state."""
        return run_blocking(self.state.download())

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
            stands_by=self._moves.stands_by,
            paused=self._moves.is_held,
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
        return self._tracker.batch_s

    @property
    def census(self) -> Census:
        """The numbers of participating peers by role and reachability, this peer included."""
        return self._tracker.view.census

    def interrupt(self) -> None:
        """Make `advance` stop waiting for others before this peer leaves; thread-safe."""
        self._waits.interrupt()

    def leave(self) -> None:
        """Leave the swarm, cancel pending rounds, and stop every process that `join` started."""
        self._watch.stop()
        self._waits.close()
        self._rounds.cancel()
        self._exchange.stop(SHUTDOWN_S)
        self._node.shutdown()


def _note(found: Suspicion, events: EventLog, on_suspicion: Callable[[Suspicion], None]) -> None:
    events.add(Suspected(peer=found.peer_id, suspicion=found.kind, step=max(0, found.step), detail=found.detail))
    on_suspicion(found)


@dataclass(frozen=True)
class Witness:
    """The signer of receipts for the rounds that one device reduced in one run."""

    key: ReceiptKey
    run: str

    def receipt(self, era: int, step: int, group: AveragedGroup) -> str:
        """Sign a receipt of the round that led to `step`; return "" if this peer reduced nothing.

        The device's own samples are included: they prove nothing, but make all receipts of a round
        equal.
        """
        samples = {group.pseudonyms[peer]: brought for peer, brought in whole_samples(group.counted).items()}
        if not samples:
            return ""
        return str(sign_receipt(self.key, ReceiptBody(run=self.run, era=era, step=step, samples=samples)))
