"""A model of the swarm's protocol, small enough that each of its states can be visited.

`Quorum`, `ruling` and whom a leader deems possible holders are the product's. The model adds what they decide upon: a
keeper and a few trainers; rounds of which any members of the group come to hold the average, one after another; holders
that stay with the round's leader or meet others; leaders that see any of those that may be there, and whose rulings
reach any of those concerned; peers that die, return or join. Time is replaced by its purpose: a peer is only taken to
be gone when it is, and by peers that have seen all steps taken before; so have peers that return or join.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from peer.node.quorum import GroupRound, KnownAverages, Quorum, Ruling, ruling
from peer.progress.view import SwarmCourse

KEEPER = "k"  # its ID; the trainers' are "a", "b", ...


class Average(NamedTuple):
    """The average of a round."""

    group_id: int
    group: frozenset[str]
    leader: str = ""  # of a round; the average of a step has none


class Peer(NamedTuple):
    """A device: the averages of its steps, one after another, and its newest round until there is a ruling."""

    name: str
    averages: tuple[Average, ...]
    held: Average | None = None
    runs: bool = False  # whether the round is under way, so that this peer does not hold the average yet
    has_met: bool = False  # whether this peer has left the round's leader
    has_given_up: bool = False  # an average that may be the next step's
    led: int = 0  # the newest round that this peer has led
    certified: int = 0  # the newest average whose certificate it holds
    alive: bool = True
    knows: int = 0  # the newest step that it has seen others take; of a dead peer: that others may know

    @property
    def step(self) -> int:
        return len(self.averages)

    @property
    def state(self) -> tuple[int, ...]:
        return tuple([average.group_id for average in self.averages])

    @property
    def may_decide(self) -> bool:
        """Whether this peer may be a leader, to itself at least."""
        is_held = self.held is not None and (self.runs or not (self.has_met or self.held.leader == self.name))
        return self.alive and not (is_held or self.has_given_up)

    def may_follow(self, leader: Peer) -> bool:
        """Whether this peer may be there for a leader: who leaves its round's leader does so for ever; it stays."""
        if self.held is None:
            return not self.has_given_up
        return self.held.leader == leader.name if not self.has_met else not self.runs

    def without_round(self) -> Peer:
        """This peer, which may average again."""
        return self._replace(held=None, runs=False, has_met=False)

    def with_(self, *averages: Average) -> Peer:
        """This peer after these steps."""
        return self.without_round()._replace(averages=averages, has_given_up=False)

    def after(self, average: Average) -> Peer:
        """This peer, one step further, with the certificate."""
        after = self.with_(*self.averages, average._replace(leader=""))
        return after._replace(certified=average.group_id)


class World(NamedTuple):
    """A moment of a small swarm; the keeper comes first."""

    peers: tuple[Peer, ...]
    deaths: int = 0

    @property
    def keeper(self) -> Peer:
        return self.peers[0]

    @property
    def living(self) -> list[Peer]:
        return [peer for peer in self.peers if peer.alive]

    @property
    def is_together(self) -> bool:
        """Whether all who are there have one state, and nobody waits for a ruling."""
        return len({peer.state for peer in self.living}) == 1 and all(peer.held is None for peer in self.living)

    def with_(self, *changed: Peer, deaths: int = 0) -> World:
        """The same world with these peers as they are now."""
        now = {peer.name: peer for peer in changed}
        return World(tuple([now.get(peer.name, peer) for peer in self.peers]), self.deaths + deaths)


Moved = tuple[str, World]


def begin(trainers: int, newcomers: int = 0, voters: str = "") -> World:
    """A keeper and so many trainers after their first step, and peers that may join them; `voters`: who took it."""
    names = [KEEPER, *"abcdefg"[: trainers + newcomers]]
    there = names[: 1 + trainers]
    first = Average(0, frozenset(voters or there))
    return World(tuple(Peer(name, (first,), alive=name in there) for name in names))


def is_split(peers: Iterable[Peer]) -> bool:
    """Whether two of these peers have taken one step from different averages."""
    states = itertools.combinations({peer.state for peer in peers}, 2)
    return any(ours != theirs for pair in states for ours, theirs in zip(*pair, strict=False))


@cache
def _quorum(voters: frozenset[str], gone: frozenset[str]) -> Quorum:
    return Quorum(voters, gone, frozenset({KEEPER}))


@dataclass(frozen=True)
class Rules:
    """The rules that the model searches for a fault; tests put weaker ones in their place.

    The first two are the product's code. The model takes it for granted that peers obey the others.
    """

    quorum: Callable[[frozenset[str], frozenset[str]], Quorum] = _quorum
    possible: Callable[..., set[str]] = KnownAverages.possible_holders
    confirms: bool = True
    takes_for_gone: bool = True
    heeds_later_steps: bool = True
    averages_no_more: bool = True  # who has given up an average
    shows_certificates: bool = True  # who has gone on, to those in doubt
    only_holders_certify: bool = True  # a leader that does not hold an average forgets that it has confirmed it

    def quorums(self, world: World, peer: Peer) -> set[Quorum]:
        """The quorums in the eyes of this peer, which knows of some of the dead that they are gone."""
        voters = peer.averages[-1].group
        dead = [one for one in world.peers if one.name in voters and not one.alive and self.takes_for_gone]
        is_behind = any(one.step > peer.step for one in (world.keeper, *world.living)) and self.heeds_later_steps
        gone = [one.name for one in dead if one.knows <= peer.step or not is_behind]
        return {self.quorum(voters, frozenset(some)) for some in subsets(gone)}

    def are_enough(self, world: World, peer: Peer, others: Collection[str]) -> bool:
        """Whether a quorum is among the others in the eyes of this peer."""
        return any(quorum.is_in(others) for quorum in self.quorums(world, peer))

    def is_here(self, peer: Peer, step: int) -> bool:
        """Whether this peer is there, and works towards the step after `step`."""
        return peer.alive and peer.step == step and (peer.knows <= step or not self.heeds_later_steps)

    def is_behind(self, world: World, peer: Peer) -> bool:
        """Whether the keeper is at a later step, or enough of the voters that are there."""
        later = {one.name for one in world.living if one.step > peer.step}
        quorum = _quorum(peer.averages[-1].group, frozenset(one.name for one in world.peers if not one.alive))
        course = SimpleNamespace(
            _voters=quorum.voters, _keepers={KEEPER}, _members={}, _are_inferred=False, quorum=lambda *_: quorum
        )
        return KEEPER in later or SwarmCourse._suffice(cast("Any", course), later)


@dataclass(frozen=True)
class Bounds:
    """The part of the protocol that a search visits."""

    steps: int = 1
    deaths: int = 1
    rounds: int = 2  # that are not forgotten
    returns: bool = True
    unseen: bool = False  # nobody has seen the last step of who dies


def successors(world: World, rules: Rules, bounds: Bounds) -> Iterator[Moved]:
    """All that may happen next."""
    yield from _rounds(world, rules, bounds)
    for peer in world.living:
        if peer.runs:
            yield f"the round fails for {peer.name}", world.with_(peer.without_round())
            assert peer.held is not None
            after = peer._replace(runs=False) if rules.confirms else peer.after(peer.held)
            yield f"{peer.name} holds the average", world.with_(after)
        elif peer.held is not None:
            if not peer.has_met and peer.held.leader != peer.name:
                yield f"{peer.name} leaves its leader", world.with_(peer._replace(has_met=True))
            if rules.is_behind(world, peer):
                after = peer.without_round()._replace(has_given_up=rules.averages_no_more)
                yield f"{peer.name} gives up its average", world.with_(after)
        if peer.may_decide:
            yield from _rulings(world, peer, rules)
        yield from _shown(world, peer, rules)
        yield from _caught_up(world, peer, rules)
    yield from _deaths_and_returns(world, rules, bounds)


def _rounds(world: World, rules: Rules, bounds: Bounds) -> Iterator[Moved]:
    """Each group that its members accept begins to average, with any of them as its leader."""
    known = {average.group_id for peer in world.peers for average in (*peer.averages, peer.held) if average}
    number, held = 1 + max(known), {peer.held.group_id for peer in world.living if peer.held}
    for step in range(1, bounds.steps + 1 if len(held) < bounds.rounds else 1):
        free = {
            peer.name: peer
            for peer in world.peers
            if rules.is_here(peer, step) and peer.held is None and not peer.has_given_up
        }
        for group in subsets(free)[1:]:
            if not all(rules.are_enough(world, free[name], group) for name in group):
                continue
            if len(group) == 1:
                if group != (KEEPER,):
                    alone = free[group[0]].after(Average(number, frozenset(group)))
                    yield f"{group[0]} averages alone", world.with_(alone)
                continue
            for leader in group:
                average = Average(number, frozenset(group), leader)
                members = [free[name]._replace(held=average, runs=True) for name in group]
                led = next(peer for peer in members if peer.name == leader)._replace(led=number)
                yield f"{leader} leads {_names(group)}", world.with_(*members, led)


def _rulings(world: World, leader: Peer, rules: Rules) -> Iterator[Moved]:
    """The leader decides on each average that it sees, and its ruling reaches any of those concerned."""
    if not rules.is_here(leader, leader.step):
        return
    around = {
        peer.name: peer
        for peer in world.living
        if peer.name != leader.name and rules.is_here(peer, leader.step) and peer.may_follow(leader)
    }
    for held in {peer.held for peer in (leader, *around.values()) if peer.held is not None and not peer.runs}:
        for seen in subsets(around):
            concerned = [around[name] for name in seen if around[name].held == held]
            holders = {peer.name for peer in (leader, *concerned) if peer.held == held and not peer.runs}
            for given in _given(world, leader, held, {around[name] for name in seen}, holders, rules):
                keeps = given is Ruling.CONFIRMED and not rules.only_holders_certify
                decided = leader._replace(certified=held.group_id) if keeps else leader
                says = f"{leader.name} sees {_names(seen)}: {given.value} is what {_names(holders)} hold"
                for told in subsets(concerned):
                    lost = [peer._replace(has_met=True) for peer in concerned if peer not in told]
                    all_told = [*told, leader] if leader.name in holders else told
                    after = [_told(world, peer, held, given, holders, rules) for peer in all_told]
                    hear = _names(peer.name for peer in all_told)
                    yield f"{says}, for {hear}", world.with_(decided, *lost, *after)


def _given(world: World, leader: Peer, held: Average, seen: set[Peer], holders: set[str], rules: Rules) -> set[Ruling]:
    """The rulings that a leader may give on an average."""
    if leader.certified == held.group_id:
        return {Ruling.CONFIRMED} if holders else set()
    here = {peer.name for peer in seen}
    members = {peer.name for peer in seen if peer.held == held and not peer.has_met}
    is_running = any(peer.runs and peer.held == held for peer in world.living)
    known = KnownAverages(leader.name, lambda: 0.0)
    known.led = GroupRound(cast(Any, leader.led), set(held.group), math.inf * (is_running or -1))
    may_hold = holders | {leader.name} if leader.held == held else holders
    given = set()
    for quorum in rules.quorums(world, leader) if holders else ():
        known.quorum = quorum
        given.add(ruling(quorum, holders, rules.possible(known, held, may_hold, here, members)))
    return given - {Ruling.OPEN}


def _told(world: World, peer: Peer, held: Average, given: Ruling, holders: set[str], rules: Rules) -> Peer:
    """A peer after a ruling, which it checks itself."""
    if given is Ruling.VOID:
        return peer.without_round()
    is_certain = rules.are_enough(world, peer, holders) and not peer.runs
    return peer.after(held) if is_certain else peer._replace(has_met=True)


def _shown(world: World, peer: Peer, rules: Rules) -> Iterator[Moved]:
    """A peer in doubt meets one that has gone on, and that has the certificate of what it holds."""
    if peer.held is None or peer.runs or not rules.shows_certificates:
        return
    for other in world.living:
        if other.step > peer.step and other.certified == peer.held.group_id:
            yield f"{other.name} shows {peer.name} the certificate", world.with_(peer.after(peer.held))


def _caught_up(world: World, peer: Peer, rules: Rules) -> Iterator[Moved]:
    """A trainer follows the keeper or takes its state; the keeper takes the state of voters at a later step."""
    keeper = world.keeper
    if peer.name == KEEPER:
        later = [one for one in world.living if one.step > peer.step] if rules.is_behind(world, peer) else []
        for other in later:
            yield f"the keeper takes the state of {other.name}", world.with_(peer.with_(*other.averages))
    elif keeper.alive and (keeper.step > peer.step or (keeper.step == peer.step and keeper.state != peer.state)):
        follows = peer.state == keeper.state[: peer.step]
        averages = keeper.averages[: peer.step + 1] if follows else keeper.averages
        yield f"{peer.name} follows the keeper", world.with_(peer.with_(*averages))


def _deaths_and_returns(world: World, rules: Rules, bounds: Bounds) -> Iterator[Moved]:
    for peer in world.peers:
        if peer.alive and world.deaths < bounds.deaths:
            seen = [one for one in world.peers if one is not peer or not bounds.unseen]
            left = [one._replace(has_met=True) for one in world.peers if one.held and one.held.leader == peer.name]
            dead = peer.with_(*peer.averages)._replace(
                alive=False, led=0, certified=0, knows=max(one.step for one in seen)
            )
            yield f"{peer.name} dies", world.with_(*left, dead, deaths=1)
        elif not peer.alive and bounds.returns and (world.keeper.alive or peer.name == KEEPER):
            yield f"{peer.name} returns", returned(world, peer)


def returned(world: World, peer: Peer) -> World:
    """The same world, in which a keeper is back with its state, or a trainer with the keeper's."""
    after = peer._replace(averages=world.keeper.averages, alive=True)
    return world.with_(after._replace(knows=max(one.step for one in (after, *world.living))))


def subsets(items: Iterable[Any]) -> list[tuple[Any, ...]]:
    """All subsets, from the empty one to the whole."""
    items = tuple(items)
    return [some for size in range(len(items) + 1) for some in itertools.combinations(items, size)]


def _names(group: Iterable[str]) -> str:
    return ", ".join(sorted(group)) or "nobody"


def canonical(world: World) -> World:
    """The same world with averages numbered anew, and without knowledge that does not matter."""
    numbers: dict[int, int] = {}

    def renumbered(average: Average) -> Average:
        return average._replace(group_id=numbers.setdefault(average.group_id, len(numbers)))

    peers = []
    for peer in world.peers:
        averages = tuple([renumbered(average) for average in peer.averages])
        knows = 0 if peer.alive and peer.knows <= peer.step else peer.knows
        peers.append(peer._replace(averages=averages, held=peer.held and renumbered(peer.held), knows=knows))
    held = {peer.held.group_id for peer in world.living if peer.held}
    known = {number: numbers[number] for number in held}
    peers = [peer._replace(led=known.get(peer.led, 0), certified=known.get(peer.certified, 0)) for peer in peers]
    return World(tuple(peers), world.deaths)


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
        """The shortest way to this world."""
        told = list[str]()
        while (came := self.came_from[world]) is not None:
            name, world = came
            told = [name, *told]
        return told


def goes_on(world: World, rules: Rules) -> bool:
    """Whether all who are there, the keeper too, may come to one state once all see all, and take a step together."""
    if not world.keeper.alive:
        world = returned(world, world.keeper)
    world = world.with_(*(peer._replace(knows=0) for peer in world.living))
    while not world.is_together:
        moved = next(_last_moves(world, rules), None)
        if moved is None:
            return False
        _, world = moved
    everybody = [peer.name for peer in world.living]
    return all(rules.are_enough(world, peer, everybody) for peer in world.living)


def _last_moves(world: World, rules: Rules) -> Iterator[Moved]:
    """Moves that bring a swarm together: rounds end, peers catch up, rulings reach all, and holders leave leaders."""
    for peer in world.living:
        if peer.runs:
            yield "", world.with_(peer.without_round())
        yield from _shown(world, peer, rules)
        yield from _caught_up(world, peer, rules)
    for peer in world.living:
        if peer.may_decide:
            yield from list(_rulings(world, peer, rules))[-1:]
    for peer in world.living:
        if peer.held is not None and not peer.has_met and peer.held.leader != peer.name:
            yield "", world.with_(peer._replace(has_met=True))
