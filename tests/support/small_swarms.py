"""A model of the swarm's protocol, small enough that each of its states can be visited.

The rules are the product's: `SwarmCourse` makes the views, `decide` the moves, `required_group_size` and
`keeperless_group_size` say which groups may average. The model adds what they act upon: a keeper and a few trainers, of
which each sees any record that the others have published, or misses it; rounds that bring their average to all members,
or only to some; trainers and keepers that die and return. Time is replaced by its purpose: a peer is only taken to be
gone when it is, by peers that have seen all that was published before. docs/training.md says how quickly records must
arrive for that.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from peer.reporting.suspicions import Suspicions
from peer.swarm.decision import (
    FULL_GROUP_ATTEMPTS,
    NEVER,
    Move,
    Situation,
    decide,
    keeperless_group_size,
    required_group_size,
)
from peer.swarm.fingerprint import MAX_SKETCH_SIZE, Sketch, drifted
from peer.swarm.records import Course, KnownPeer, PeerRecord
from peer.swarm.view import MEETING_S, SwarmCourse, SwarmView

LONG_AGO_S, BEFORE_S, NOW_S = -1000.0, 0.0, MEETING_S + 1.0  # of one observer's looks
SILENT_AFTER_S = 2 * NOW_S
KEEPER = 0  # its index; the trainers follow
GONE = -1  # instead of the index of the record that an observer sees
MOST_MISSED = 2  # peers in a look


class State(NamedTuple):
    """A peer's state: the averages from which its steps were taken, one after another, in one era."""

    era: int
    averages: tuple[int, ...]

    @property
    def step(self) -> int:
        return len(self.averages)

    @property
    def position(self) -> tuple[int, int]:
        return self.era, self.step

    @property
    def sketch(self) -> Sketch:
        return tuple(float(average + 2) for average in self.averages) + (1.0,) * (MAX_SKETCH_SIZE - self.step)

    def after(self, average: int) -> State:
        """The state after one more step."""
        return State(self.era, (*self.averages, average))

    def differs_from(self, other: State) -> bool:
        """Whether some step was taken from different averages on the way to these two states."""
        common = zip(self.averages, other.averages, strict=False)
        return self.era == other.era and any(ours != theirs for ours, theirs in common)


class Peer(NamedTuple):
    """A device with the newest records that it has published, of which the last is its state."""

    records: tuple[State, ...]
    alive: bool = True
    known: tuple[int, ...] = ()  # the index of each peer's last record when this one died
    strays: bool = False  # has taken a step that the keeper had not when it returned, or when its round failed

    @property
    def state(self) -> State:
        return self.records[-1]


class World(NamedTuple):
    """A moment of a small swarm; the keeper comes first."""

    peers: tuple[Peer, ...]
    recorded: int = 1  # the keeper's step in its ledger: after its return it finds this step or undoes it
    deaths: int = 0
    is_astray: bool = False  # a group without the keeper has averaged while the keeper was there

    @property
    def living(self) -> list[int]:
        return [index for index, peer in enumerate(self.peers) if peer.alive]

    @property
    def has_keeper(self) -> bool:
        return self.peers[KEEPER].alive

    @property
    def is_split(self) -> bool:
        """Whether two peers have taken one step from different averages, and are not to take the keeper's state."""
        states = {self.peers[index].state for index in self.living if not self.peers[index].strays}
        return any(one.differs_from(other) for one, other in itertools.combinations(states, 2))

    @property
    def is_together(self) -> bool:
        """Whether all who are there have one state."""
        return len({self.peers[index].state for index in self.living}) == 1


def begin(trainers: int) -> World:
    """A keeper and so many trainers after their first step."""
    return World((Peer((State(0, (0,)),)),) * (1 + trainers))


class Shown(NamedTuple):
    """The part of the records that one observer sees."""

    own: State
    is_keeper: bool
    newest: State | None  # of the keeper's states that this observer has ever seen
    keeper: State | None  # in the last look
    holds: bool  # whether the newest one was seen a short while ago
    others: tuple[tuple[State, bool], ...]  # of other trainers; whether the last look has them


@dataclass(frozen=True)
class Seen:
    """The view of one observer, and what it remembers beside it."""

    view: SwarmView
    era: int
    own_step_sketch: Sketch  # of the swarm's state after the observer's step
    agreed: Sketch


@cache
def look(shown: Shown) -> Seen:
    """Have the product's class look twice at what is shown."""
    course = SwarmCourse(
        own_id="own",
        is_keeper=shown.is_keeper,
        silent_after_s=SILENT_AFTER_S,
        first_step_s=20.0,
        least_share=1.0,
        suspicions=Suspicions(lambda _: None, lambda: 0.0),
    )
    own = _known("own", shown.own, "keeper" if shown.is_keeper else "trainer", NOW_S)
    if shown.newest is not None and not shown.is_keeper:
        at_s = BEFORE_S if shown.holds else LONG_AGO_S
        course.look([_known("keeper", shown.newest, "keeper", at_s), own], 1, at_s)
    others = [
        (_known(f"t{index}", state, "trainer", BEFORE_S), here) for index, (state, here) in enumerate(shown.others)
    ]
    keeper = [] if shown.keeper is None else [_known("keeper", shown.keeper, "keeper", BEFORE_S)]
    if shown.is_keeper or not all(here for _, here in others):
        course.look([own, *keeper, *(peer for peer, _ in others)], 1, BEFORE_S)
    view = course.look([own, *keeper, *(peer for peer, here in others if here)], 1, NOW_S)
    return Seen(view, course.era, course.sketch_at(shown.own.step), course.sketch_at(view.step))


@cache
def _known(name: str, state: State, role: str, time_s: float) -> KnownPeer:
    record = PeerRecord(
        step=state.step,
        samples=int(role == "trainer"),
        rate=1.0,
        time=time_s - LONG_AGO_S,
        training=True,
        client_mode=False,
        era=state.era,
        sketch=state.sketch,
        course=Course(age_s=0.0, usual_s=0.0, credits={}) if role == "keeper" else None,
    )
    return KnownPeer(name, name, name, role, record)


class Ability(NamedTuple):
    """The moves that a peer may make in some view of its own."""

    averages: bool = False
    required: int = NEVER  # the least size of a group that it leads
    keeperless: int = NEVER  # the least size of a group without the keeper
    alone: bool = False
    follows: bool = False
    downloads: frozenset[tuple[int, int, Sketch]] = frozenset()  # least step and era, and what is confirmed

    def or_in(self, another: Ability) -> Ability:
        """The moves of this view and of another one."""
        return Ability(
            self.averages or another.averages,
            min(self.required, another.required),
            min(self.keeperless, another.keeperless),
            self.alone or another.alone,
            self.follows or another.follows,
            self.downloads | another.downloads,
        )


@dataclass
class Rules:
    """The rules that the model searches for a fault; tests put weaker ones in their place."""

    decide: Callable[[Situation], tuple[Move, str]] = decide
    keeperless: Callable[[SwarmView, bool, bool], int] = lambda view, has_keeper, is_taken: keeperless_group_size(
        view.live, has_keeper, is_taken
    )
    may_step_alone: Callable[[SwarmView, bool], bool] = lambda view, late: view.averaging <= 1 >= view.live and not late
    waits_for_late_keeper: bool = True
    meets_at_one_step: bool = True
    _abilities: dict[object, Ability] = field(default_factory=dict)
    _moves: dict[tuple[Shown, bool], Ability] = field(default_factory=dict)

    def ability(self, world: World, index: int, fresh: bool = False) -> Ability:
        """The moves that this peer may make; `fresh`: knowing all."""
        key = (index == KEEPER, fresh, _seen_from(world, index))
        if key not in self._abilities:
            found = Ability()
            for shown, late in set(_looks(world, index, fresh)):
                found = found.or_in(self._in(shown, late))
            self._abilities[key] = found
        return self._abilities[key]

    def _in(self, shown: Shown, late: bool) -> Ability:
        if not shown.is_keeper:
            shown = _numbered_anew(shown)
        if (shown, late) not in self._moves:
            self._moves[shown, late] = self._move(shown, late)
        return self._moves[shown, late]

    def _move(self, shown: Shown, late: bool) -> Ability:
        seen, own = look(shown), shown.own
        view = seen.view
        swarm_step = max(view.step, own.step) if view.trainers == 0 else view.step
        is_undone = not shown.is_keeper and seen.era > own.era
        situation = Situation(
            step=own.step,
            swarm_step=swarm_step,
            is_undone=is_undone,
            has_drifted=not shown.is_keeper and own.step == view.step and drifted(own.sketch, view.keeper_sketch),
            can_follow=not shown.is_keeper and not drifted(own.sketch, seen.own_step_sketch),
            is_full=swarm_step == own.step and view.samples >= 1,
        )
        move, _ = self.decide(situation)
        if move is Move.FOLLOW:
            return Ability(follows=True)
        if move is Move.DOWNLOAD:
            least = 0 if is_undone else own.step + (swarm_step > own.step)
            return Ability(downloads=frozenset({(least, seen.era, seen.agreed if shown.is_keeper else ())}))
        if move is not Move.AVERAGE:
            return Ability()
        late = late and self.waits_for_late_keeper
        has_keeper = view.keepers > 0 or late
        return Ability(
            averages=True,
            required=required_group_size(view.averaging, FULL_GROUP_ATTEMPTS, has_waited=True),
            keeperless=self.keeperless(view, has_keeper, view.newest_step > own.step),
            alone=self.may_step_alone(view, late),
        )


def _seen_from(world: World, index: int) -> object:
    """All that a peer's views depend on; the same for peers that have the same before them."""
    peers = world.peers
    own, keeper = peers[index].state, peers[KEEPER]
    others = [peer for other, peer in enumerate(peers) if other not in (KEEPER, index)]
    if all(peer.alive for peer in peers):
        others.sort()
    if index == KEEPER:
        return own, *((peer.records, peer.known) for peer in others)
    numbers: dict[int, int] = {}
    own = _renumber(own, numbers)
    seen = [(tuple([_renumber(state, numbers) for state in peer.records]), peer.known) for peer in (keeper, *others)]
    return own, index if any(known for _, known in seen) else 0, *seen


def _looks(world: World, index: int, fresh: bool) -> Iterator[tuple[Shown, bool]]:
    """All that this peer may see, and whether it waits for a late keeper."""
    peers = world.peers
    others = [other for other in range(len(peers)) if other != index]
    for chosen in itertools.product(*(_sights(peers[other], fresh) for other in others)):
        sight = dict(zip(others, chosen, strict=True))
        gone = [peers[other] for other, (record, _) in sight.items() if record == GONE]
        if any(0 <= record < peer.known[other] for peer in gone for other, (record, _) in sight.items()):
            continue
        if sum(record >= 0 and not here for record, here in chosen) > MOST_MISSED:
            continue
        trainers = [(other, record, here) for other, (record, here) in sight.items() if other != KEEPER and record >= 0]
        known = tuple(sorted((peers[other].records[record], here) for other, record, here in trainers))
        own = peers[index].state
        if index == KEEPER:
            yield Shown(own, True, None, own, True, known), False
            continue
        records, (record, here) = peers[KEEPER].records, sight[KEEPER]
        if record == GONE:
            yield Shown(own, False, max(records, key=_order), None, False, known), False
            continue
        newest = max(records[: record + 1], key=_order)
        if here:
            yield Shown(own, False, newest, records[record], newest == records[record], known), False
        else:
            for holds in (True, False):
                yield Shown(own, False, newest, None, holds, known), True


def _order(state: State) -> tuple[int, int]:
    return state.position


def _sights(peer: Peer, fresh: bool) -> list[tuple[int, bool]]:
    """The records of a peer that others may see, and whether their last look has it."""
    if fresh:
        return [(len(peer.records) - 1, True) if peer.alive else (GONE, False)]
    newest = len(peer.records) - 1
    sights = [(record, True) for record in range(newest) if peer.records[record] != peer.state]
    sights += [(newest, True), (newest, False)]
    return sights if peer.alive else [*sights, (GONE, False)]


@dataclass(frozen=True)
class Bounds:
    """The part of the protocol that a search visits."""

    last_step: int = 3
    deaths: int = 2
    records: int = 2  # of each peer that may be seen
    endings: str = "dying"  # who gets no average from a round that brings it to others: "dying" peers, or "some"


Moved = tuple[str, World]


def successors(world: World, rules: Rules, bounds: Bounds) -> Iterator[Moved]:
    """All that may happen next."""
    abilities = {index: rules.ability(world, index) for index in world.living}
    for group in _groups(world, rules, abilities):
        yield from _endings(world, group, bounds)
    for index, ability in abilities.items():
        yield from _catch_up(world, index, ability, bounds)
    yield from _deaths_and_returns(world, bounds)


def _groups(world: World, rules: Rules, abilities: dict[int, Ability]) -> Iterator[tuple[int, ...]]:
    """Groups that may average: each member accepts them, and one has gathered them."""
    willing = [index for index, ability in abilities.items() if ability.averages and not _is_resuming(world, index)]
    for size in range(1, len(willing) + 1):
        for group in itertools.combinations(willing, size):
            states = [world.peers[index].state for index in group]
            if rules.meets_at_one_step and len({state.position for state in states}) > 1:
                continue
            if group == (KEEPER,) or (size == 1 and not abilities[group[0]].alone):
                continue
            accepted = KEEPER in group or all(abilities[index].keeperless <= size for index in group)
            if size == 1 or (accepted and min(abilities[index].required for index in group) <= size):
                yield group


def _is_resuming(world: World, index: int) -> bool:
    return index == KEEPER and world.peers[KEEPER].state.step < world.recorded


def _endings(world: World, group: tuple[int, ...], bounds: Bounds) -> Iterator[Moved]:
    average = 1 + max((n for peer in world.peers for state in peer.records for n in state.averages), default=-1)
    for size in range(len(group), 0, -1):
        for winners in itertools.combinations(group, size):
            losers = [index for index in group if index not in winners]
            for dying in {True, bounds.endings != "some"} if losers else {True}:
                after = world._replace(is_astray=world.has_keeper and KEEPER not in group)
                for index in winners:
                    before = world.peers[index]
                    strays = before.strays or (KEEPER in losers and not dying)
                    after = _publish(after, index, before.state.after(average), bounds, strays)
                for index in losers if dying else ():
                    after = _die(after, index)
                if after.deaths <= bounds.deaths and all(peer.state.step <= bounds.last_step for peer in after.peers):
                    yield (
                        f"{_names(group)} average, {_names(winners)} take the step"
                        + (f", {_names(losers)} {'die' if dying else 'fail'}" if losers else ""),
                        after,
                    )


def _catch_up(world: World, index: int, ability: Ability, bounds: Bounds) -> Iterator[Moved]:
    own, keeper = world.peers[index].state, world.peers[KEEPER].state
    if index == KEEPER:
        for least, _, confirmed in ability.downloads:
            donors = {world.peers[donor].state for donor in world.living if donor != KEEPER}
            for donated in sorted(donors):
                if donated.step >= least and confirmed and not drifted(donated.sketch, confirmed):
                    taken = State(own.era, donated.averages)
                    yield (
                        f"the keeper takes the state of step {taken.step}",
                        _counted_from(_publish(world, index, taken, bounds)),
                    )
        return
    if not world.has_keeper:
        return
    if ability.follows and keeper.era == own.era and keeper.step > own.step:
        after = own.after(keeper.averages[own.step])
        yield (
            f"{_names([index])} follows to step {after.step}",
            _publish(world, index, after, bounds, world.peers[index].strays),
        )
    if any(keeper.step >= least and keeper.era >= era for least, era, _ in ability.downloads) and keeper != own:
        yield f"{_names([index])} downloads the state of step {keeper.step}", _publish(world, index, keeper, bounds)


def _deaths_and_returns(world: World, bounds: Bounds) -> Iterator[Moved]:
    keeper = world.peers[KEEPER]
    if _is_resuming(world, KEEPER) and keeper.alive:
        yield "the keeper undoes the steps that it does not find", _undo(world, bounds)
    for index, peer in enumerate(world.peers):
        if peer.alive and world.deaths < bounds.deaths:
            yield f"{_names([index])} dies", _die(world, index)
        elif not peer.alive and index == KEEPER:
            for step in range(peer.state.step, -1, -1):
                state = State(peer.state.era, peer.state.averages[:step])
                yield (
                    f"the keeper returns with its state of step {step}",
                    _counted_from(_publish(world, index, state, bounds)),
                )
        elif not peer.alive and keeper.alive and not _is_resuming(world, KEEPER):
            yield f"{_names([index])} returns", _publish(world, index, keeper.state, bounds)


def _counted_from(world: World) -> World:
    """The keeper's state counts from now on: who has others, or steps beyond it, strays."""
    counts = world.peers[KEEPER].state.averages
    peers = [peer._replace(strays=peer.state.averages != counts[: peer.state.step]) for peer in world.peers]
    return world._replace(peers=tuple(peers))


def _publish(world: World, index: int, state: State, bounds: Bounds, strays: bool = False) -> World:
    """The peer is there with this state, which others have yet to see."""
    peers = list(world.peers)
    records = (*peers[index].records, state)
    peers[index] = Peer(records[-bounds.records :], strays=strays)
    if len(records) > bounds.records:
        peers = [peer._replace(known=_less(peer.known, index)) for peer in peers]
    recorded = max(world.recorded, state.step) if index == KEEPER else world.recorded
    return world._replace(peers=tuple(peers), recorded=recorded)


def _less(known: tuple[int, ...], index: int) -> tuple[int, ...]:
    return tuple(max(0, record - (other == index)) for other, record in enumerate(known))


def _die(world: World, index: int) -> World:
    known = tuple(len(peer.records) - 1 for peer in world.peers)
    peers = list(world.peers)
    peers[index] = peers[index]._replace(alive=False, known=known)
    return world._replace(peers=tuple(peers), deaths=world.deaths + 1)


def _names(group: tuple[int, ...] | list[int]) -> str:
    return ", ".join("the keeper" if index == KEEPER else "ABCDEFGH"[index - 1] for index in group)


def canonical(world: World) -> World:
    """The same world with trainers and averages renamed, so that few of those that differ in names only are visited."""
    order = sorted(range(1, len(world.peers)), key=lambda index: _shape(world.peers[index]))
    world = _renumbered(_reordered(world, [KEEPER, *order]))
    order = sorted(range(1, len(world.peers)), key=lambda index: world.peers[index])
    return _renumbered(_reordered(world, [KEEPER, *order]))


def _shape(peer: Peer) -> object:
    return peer.alive, [state.position for state in peer.records]


def _reordered(world: World, order: list[int]) -> World:
    if order == sorted(order):
        return world
    peers = [
        peer._replace(known=tuple(peer.known[index] for index in order) if peer.known else ())
        for peer in (world.peers[index] for index in order)
    ]
    return world._replace(peers=tuple(peers))


def _renumber(state: State, numbers: dict[int, int]) -> State:
    return State(state.era, tuple([numbers.setdefault(average, len(numbers)) for average in state.averages]))


def _numbered_anew(shown: Shown) -> Shown:
    numbers: dict[int, int] = {}
    return shown._replace(
        own=_renumber(shown.own, numbers),
        newest=shown.newest and _renumber(shown.newest, numbers),
        keeper=shown.keeper and _renumber(shown.keeper, numbers),
        others=tuple(sorted((_renumber(state, numbers), here) for state, here in shown.others)),
    )


def _renumbered(world: World) -> World:
    numbers: dict[int, int] = {}
    peers = []
    for peer in world.peers:
        records = tuple([_renumber(state, numbers) for state in peer.records])
        peers.append(peer._replace(records=records))
    return world._replace(peers=tuple(peers))


@dataclass
class Search:
    """The worlds that may come of one, in the order of the number of moves that lead there."""

    rules: Rules
    bounds: Bounds
    came_from: dict[World, tuple[str, World] | None] = field(default_factory=dict)

    def worlds(self, first: World) -> Iterator[World]:
        """Visit each world once."""
        first = canonical(first)
        self.came_from = {first: None}
        waiting = deque([first])
        while waiting:
            world = waiting.popleft()
            yield world
            for name, after in successors(world, self.rules, self.bounds):
                after = canonical(after)
                if after not in self.came_from:
                    self.came_from[after] = (name, world)
                    waiting.append(after)

    def story(self, world: World) -> list[str]:
        """The shortest way to this world; in each sentence the trainers are named anew."""
        told = [str(world)]
        while (came := self.came_from[world]) is not None:
            name, world = came
            told = [str(world), name, *told]
        return told


def settle(world: World, rules: Rules, goes_back: bool = False) -> World:
    """The world that comes of one once records arrive at once, nobody dies any more, and the keeper is there.

    All are in one step then, or stay as they are for ever; `goes_back`: an operator has the run go back in that case.
    """
    bounds = Bounds(last_step=3 + max(peer.state.step for peer in world.peers), deaths=world.deaths, records=1)
    if not world.has_keeper:
        world = _counted_from(_publish(world, KEEPER, world.peers[KEEPER].state, bounds))
    while not world.is_together:
        after = _next_when_all_is_known(world, rules, bounds)
        if after is None and goes_back:
            after, goes_back = _undo(world, bounds), False
        if after is None:
            return world
        world = after
    return world


def _undo(world: World, bounds: Bounds) -> World:
    """All return to the keeper's state, which begins another era."""
    keeper = world.peers[KEEPER].state
    return _publish(world, KEEPER, State(keeper.era + 1, keeper.averages), bounds)._replace(recorded=keeper.step)


def _next_when_all_is_known(world: World, rules: Rules, bounds: Bounds) -> World | None:
    abilities = {index: rules.ability(world, index, fresh=True) for index in world.living}
    for index, ability in abilities.items():
        for _, after in _catch_up(world, index, ability, bounds):
            return after
    if _is_resuming(world, KEEPER):
        return _undo(world, bounds)
    groups = list(_groups(world, rules, abilities))
    return next((after for _, after in _endings(world, groups[-1], bounds)), None) if groups else None
