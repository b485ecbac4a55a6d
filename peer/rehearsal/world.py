"""The shared environment of a rehearsal: clock, connections, records, present peers and trace."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from peer.config.run import RunConfig
from peer.network.traffic import BYTES_PER_S_OF_MBIT
from peer.node.average_history import averages_held
from peer.progress.records import PeerRecord
from peer.progress.view import claim_of
from peer.reduction.sizes import missed_average_bytes
from peer.rehearsal.board import RehearsedBoard
from peer.rehearsal.members import RehearsedMembers
from peer.rehearsal.rounds import MetGroup, RehearsedRounds
from peer.rehearsal.scenario import KEEPER, Rehearsed, Scenario
from peer.rehearsal.troubles import Troubles
from peer.reporting.suspicions import Suspicion, Suspicions
from peer.transport.memory import MemoryNetwork, MemoryTransport

if TYPE_CHECKING:
    from peer.rehearsal.peer import RehearsedPeer
    from peer.rehearsal.states import RehearsedState


class Happening(NamedTuple):
    """One event in the trace of a rehearsal."""

    at_s: float
    who: str
    what: str
    facts: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.at_s:.3f} {self.who} {self.what} {' '.join(map(str, self.facts))}".rstrip()


@dataclass(frozen=True)
class RehearsedStep:
    """A global step, with the figures of the first peer that took it."""

    step: int
    at_s: float
    peers: int  # size of the group
    samples: int  # number of averaged samples
    round_s: float
    waited_s: float  # time spent waiting for the group
    missing_auxiliaries: int | None  # computed by the first peer that took the step; None: unknown
    batches: dict[tuple[str, ...], int]  # group -> number of peers that took the step with its average


@dataclass(frozen=True)
class TakenStep:
    """A step taken by one peer, with the data for the peer's report and receipt."""

    name: str
    role: str
    era: int
    step: int
    state: int  # number of the state after the step
    samples: int  # this peer's samples in the step
    group: MetGroup
    at_s: float


@dataclass(frozen=True)
class UndoneSteps:
    """A rewind of the run to a checkpoint."""

    after_step: int
    era: int  # the era that begins with the rewind


class World:
    """The environment shared by all peers."""

    def __init__(
        self,
        config: RunConfig,
        scenario: Scenario,
        seed: int,
        watch: Callable[[TakenStep | UndoneSteps], None] = lambda _: None,
    ) -> None:
        """Set up the world; `watch` is called for each step of a peer and each rollback."""
        self.config, self.scenario = config, scenario
        self.rng = random.Random(seed)
        self.now = asyncio.get_running_loop().time
        self.target = config.averaging.target_batch_size
        self.network = MemoryNetwork(self.rng)
        self.troubles = Troubles(self.network, scenario)
        self.members = RehearsedMembers()
        self.board = RehearsedBoard(self.now, config.averaging.statistics_expiration_s, self.troubles)
        self.missed_bytes = missed_average_bytes(config.averaging, scenario.averaged or scenario.parameters)
        self._averages_held = averages_held(self.missed_bytes, scenario.parameters)
        size_bytes = scenario.gradient_bytes(config.averaging)
        self.rounds = RehearsedRounds(self.network.lines, size_bytes, self.troubles, self.rng)
        self._watch = watch
        self._states: dict[tuple[int, int], int] = {}
        self.recorded = 0  # newest step known to the coordinator
        self.steps: dict[int, RehearsedStep] = {}
        self.suspicions: Counter[tuple[str, str]] = Counter()  # (peer, suspicion) -> number of suspicions
        self.trace: list[Happening] = []
        self._here: dict[str, RehearsedPeer] = {}
        self.checkpoint: tuple[int, int, int] | None = None  # era, step and state of the newest checkpoint

    @property
    def keeper(self) -> RehearsedPeer | None:
        """The keeper, while it is present."""
        return self._here.get(KEEPER)

    def join(self, name: str) -> MemoryTransport:
        """Connect a device to the network."""
        transport = self.network.join(name, self.troubles.line_of(name))
        if self.troubles.is_cut_off(name):
            self.network.silence(name)
        return transport

    def arrived(self, peer: RehearsedPeer) -> None:
        """Register a peer on its arrival."""
        self._here[peer.name] = peer
        self.tell(peer.name, "arrived")

    def gone(self, peer: RehearsedPeer) -> None:
        """Remove a peer on its departure."""
        if self._here.get(peer.name) is peer:
            del self._here[peer.name]
            self.tell(peer.name, "gone")

    def peer_at(self, name: str) -> RehearsedPeer | None:
        """Return a device's peer, while it is present."""
        return self._here.get(name)

    def declared_rate(self, device: Rehearsed) -> float | None:
        """Return a device's first declared bandwidth in bytes per second; None if unlimited."""
        if device.name != KEEPER:
            return device.line.slower_rate
        return None if self.scenario.line_mbit is None else self.scenario.line_mbit * BYTES_PER_S_OF_MBIT

    @property
    def usable_checkpoint(self) -> tuple[int, int, int] | None:
        """The newest checkpoint (era, step, state); None if the keeper lacks any later average."""
        keeper, newest = self.keeper, self.checkpoint
        if keeper is None or newest is None or not self.scenario.has_checkpoints:
            return None
        state = keeper.state
        return newest if newest[0] == state.era and 0 <= state.step - newest[1] <= self._averages_held else None

    def turned_away(self, donor: str) -> None:
        """Process a rejected download; if the keeper was the donor, it writes a checkpoint."""
        if donor == KEEPER and (keeper := self.keeper) is not None:
            self._write_checkpoint(keeper.state)

    def _write_checkpoint(self, state: RehearsedState) -> None:
        self.checkpoint = state.era, state.step, state.number

    def can_reach(self, one: str, another: str) -> bool:
        """Return whether two devices can currently exchange data."""
        return self.network.connects(one, another)

    def donors_for(self, taker: str, role: str) -> list[RehearsedPeer]:
        """Return the possible donors: the keeper or, for the keeper, trainers in random order."""
        giving = "trainer" if role == "keeper" else "keeper"
        donors = [each for each in self._here.values() if each.role == giving and each.has_state]
        self.rng.shuffle(donors)
        return [each for each in donors if self.can_reach(each.name, taker)]

    def as_told(self, name: str, record: PeerRecord) -> PeerRecord:
        """Return a device's record as it tells it; one that lies names many times its samples."""
        named = self.troubles.named_by(name, record.samples, "claims", "weight")
        return (
            record if named == record.samples else record.model_copy(update={"samples": claim_of(named, self.target)})
        )

    def state_after(self, state: int, average: int) -> int:
        """Return the number of the state after a step with this average, the same for all peers."""
        return self._states.setdefault((state, average), len(self._states) + 1)

    def end(self) -> None:
        """Record the time of remaining peers; their last samples are neither counted nor lost."""
        for peer in self._here.values():
            peer.stop()

    def undo(self, step: int, era: int) -> None:
        """Return the run to the state after this step, and begin a new era."""
        self.steps = {taken: each for taken, each in self.steps.items() if taken <= step}
        self.recorded = step
        self.tell(KEEPER, "undoes", step, era)
        self._watch(UndoneSteps(step, era))

    def step_taken(self, peer: RehearsedPeer, group: MetGroup, samples: int) -> None:
        """Record a step taken by a peer."""
        state, who = peer.state, tuple(sorted(group.peers))
        step = state.step
        self.recorded = max(self.recorded, step)
        self._watch(TakenStep(peer.name, peer.role, state.era, step, state.number, samples, group, self.now()))
        if peer is self.keeper and step % self.config.checkpoints.every_steps == 0:
            self._write_checkpoint(state)
        if step not in self.steps:
            self.steps[step] = RehearsedStep(
                step=step,
                at_s=self.now(),
                peers=len(who),
                samples=group.samples,
                round_s=group.seconds,
                waited_s=group.waited_s,
                missing_auxiliaries=peer.rounds.missing_auxiliaries,
                batches={},
            )
        batches = self.steps[step].batches
        batches[who] = batches.get(who, 0) + 1
        self.tell(peer.name, "step", step, samples, group.samples, len(who))

    def suspicions_of(self, name: str) -> Suspicions:
        """Return a collector of one peer's suspicions, which the world counts."""
        return Suspicions(partial(self._suspect, name), self.now)

    def _suspect(self, by: str, suspicion: Suspicion) -> None:
        self.suspicions[suspicion.peer_id, suspicion.kind] += 1
        self.tell(by, "suspects", suspicion.peer_id, suspicion.kind)

    def tell(self, who: str, what: str, *facts: object) -> None:
        """Add an event to the trace."""
        self.trace.append(Happening(self.now(), who, what, facts))
