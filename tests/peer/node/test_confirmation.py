"""Confirmations: who may take a step with a round's average, in virtual time and over a network in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import replace

import pytest

from peer.averaging.meetings import GONE_ON, HOLDS, LOOK_S, RETRY_S, STALLED_S
from peer.averaging.requirements import Heard
from peer.node.quorum import (
    ALL_HOLD_S,
    CONFIRMED,
    GROUP_ID_BYTES,
    HeldAverage,
    Quorum,
    certificate,
    read_average,
    read_certificate,
)
from peer.reduction.attestation import DIGEST_BYTES
from peer.transport.memory import DIAL_S, SILENCE_S
from tests.support.meeting_scene import (
    ALICE,
    ALL,
    BOB,
    CAROL,
    DAVE,
    DIGEST,
    MALLORY,
    NAME,
    POSITION,
    ROUND_S,
    SOON_S,
    STEP,
    Scene,
    begin,
    declared_by,
    id_of,
    play,
    played,
)
from tests.support.receipts import key_of
from tests.support.virtual_tests import run_heard

QUORUM = Quorum(frozenset(ALL), keepers=frozenset({ALICE}))  # Alice and one other are most of the voters
OTHER = b"o" * DIGEST_BYTES
LEFT_S = LOOK_S + DIAL_S + RETRY_S + SOON_S  # to leave a leader, and to follow the next one


@played
async def test_an_average_that_most_hold_is_confirmed_soon(scene: Scene) -> None:
    """Once all hold it or a moment has passed, also to those that hold it later."""
    scene.want(quorum=QUORUM)
    await scene.meet(*ALL)
    scene.hold(BOB, CAROL)
    assert await scene.ruled() == {}
    scene.hold(ALICE)
    assert await scene.ruled() == {}  # Dave may soon hold it, too
    assert await scene.ruled(ALL_HOLD_S) == dict.fromkeys((ALICE, BOB, CAROL), True)
    scene.hold(DAVE)
    assert await scene.ruled(0.1) == dict.fromkeys(ALL, True)
    word = scene.peers[DAVE].meetings._leader.ruling.result()
    held = HeldAverage(NAME, *POSITION, scene.searches[ALICE].result().group_id, DIGEST)
    named = CONFIRMED + held.group_id + DIGEST
    assert word.startswith(named)
    signers = read_certificate(word[len(named) :], held, lambda peer: key_of(peer).public_key.decode())
    assert signers == {ALICE, BOB, CAROL}


@pytest.mark.parametrize("is_passed_over", [False, True])
@played
async def test_a_leader_confirms_what_it_does_not_hold(scene: Scene, is_passed_over: bool) -> None:
    """And tells its trainer to go on; if it does not lead any more, the next leader confirms it."""
    scene.want(quorum=Quorum(frozenset(ALL)))
    await scene.meet(*ALL)
    scene.hold(BOB, CAROL, DAVE)
    assert await scene.ruled() == {}
    if is_passed_over:
        scene.peers[ALICE].meetings.group_ended(came_about=False)
    scene.seek(ALICE)
    ruled = await scene.ruled(ROUND_S + LEFT_S if is_passed_over else SOON_S)
    assert ruled == dict.fromkeys((BOB, CAROL, DAVE), True)
    if not is_passed_over:
        assert Heard(POSITION, gone_on=True) in scene.peers[ALICE].heard
    for name in (BOB, CAROL, DAVE):
        scene.peers[name].want(step=STEP + 1)
    assert not scene.searches[ALICE].done()


@played
async def test_an_average_that_too_few_hold_is_void_once_no_other_peer_can_hold_it(scene: Scene) -> None:
    """When the others seek another one; then they meet again."""
    scene.want(quorum=QUORUM)
    await scene.meet(*ALL)
    scene.hold(BOB, CAROL)
    scene.seek(ALICE, required=4)
    assert await scene.ruled(ROUND_S - 3 * LOOK_S) == {}  # Dave may yet hold it
    scene.seek(DAVE)
    assert await scene.ruled(SOON_S) == {BOB: False, CAROL: False}
    await scene.meet(*ALL)
    scene.hold(*ALL)
    assert await scene.ruled() == dict.fromkeys(ALL, True)


@played
async def test_a_leader_that_knows_no_other_voters_waits_for_half_of_its_group(scene: Scene) -> None:
    """As a keeper that has just restarted; a certificate with its own signature alone would convince nobody."""
    scene.want(quorum=QUORUM)
    scene.peers[ALICE].want(quorum=Quorum(frozenset({ALICE}), keepers=frozenset({ALICE})))
    await scene.meet(*ALL)
    scene.hold(ALICE)
    assert await scene.ruled(ALL_HOLD_S) == {}
    scene.hold(BOB)
    assert await scene.ruled() == {ALICE: True, BOB: True}


@played
async def test_the_next_leader_confirms_what_most_hold(scene: Scene) -> None:
    """The first one has died."""
    scene.want(quorum=Quorum(frozenset(ALL)))
    await scene.meet(*ALL, leaders=(DAVE, ALICE))
    scene.hold(ALICE, BOB, CAROL)
    scene.network.kill(DAVE)
    assert await scene.ruled(LEFT_S) == dict.fromkeys((ALICE, BOB, CAROL), True)


@pytest.mark.parametrize("parted_s", [ROUND_S, 2 * SILENCE_S])
@played
async def test_a_holder_that_returns_learns_that_its_average_is_confirmed(scene: Scene, parted_s: float) -> None:
    """On the same stream, or after a longer silence from a leader that has gone on."""
    scene.want(quorum=QUORUM)
    await scene.meet(*ALL)
    scene.network.part((ALICE, BOB, CAROL), (DAVE,))
    scene.hold(*ALL)
    assert await scene.ruled(parted_s) == dict.fromkeys((ALICE, BOB, CAROL), True)
    for name in (ALICE, BOB, CAROL):
        scene.peers[name].want(step=STEP + 1)
    scene.network.part()
    assert (await scene.ruled(2 * DIAL_S))[DAVE]


@played
async def test_the_next_leader_confirms_what_has_been_confirmed_to_it(scene: Scene) -> None:
    """Once its trainer has taken the step."""
    scene.want(quorum=QUORUM)
    await scene.meet(*ALL)
    scene.network.part((ALICE, BOB), (CAROL, DAVE))
    scene.hold(*ALL)
    assert await scene.ruled(2 * ALL_HOLD_S) == {ALICE: True, BOB: True}
    scene.network.kill(ALICE)
    scene.network.part()
    assert await scene.ruled(LEFT_S) == {ALICE: True, BOB: True}
    scene.peers[BOB].want(step=STEP + 1)
    assert await scene.ruled(LEFT_S) == dict.fromkeys(ALL, True)


@played
async def test_a_leader_in_doubt_is_shown_that_its_average_is_confirmed(scene: Scene) -> None:
    """By a follower that has gone on."""
    scene.want(quorum=QUORUM)
    await scene.meet(*ALL, leaders=(ALICE, BOB))
    scene.network.part((ALICE, CAROL), (BOB, DAVE))
    scene.hold(ALICE, BOB, CAROL)
    assert await scene.ruled(2 * ALL_HOLD_S) == {ALICE: True, CAROL: True}
    scene.network.kill(ALICE)
    scene.network.part()
    scene.peers[CAROL].want(leaders=(BOB,))
    scene.searches[CAROL] = scene.peers[CAROL].seek((0, STEP + 1))
    assert (await scene.ruled(LEFT_S + 2 * STALLED_S))[BOB]


@played
async def test_holders_stay_in_doubt_while_absent_voters_may_know_more(scene: Scene) -> None:
    """Once these are there without it, it is void."""
    scene.want(quorum=QUORUM)
    await scene.meet(*ALL, leaders=(ALICE, BOB, CAROL))
    scene.network.part((ALICE, DAVE), (BOB, CAROL))
    scene.hold(BOB, CAROL)
    assert await scene.ruled(10 * ROUND_S) == {}
    scene.seek(DAVE)
    scene.network.part()
    assert await scene.ruled(STALLED_S) == {}
    scene.seek(ALICE)
    assert await scene.ruled(STALLED_S) == {BOB: False, CAROL: False}


@pytest.mark.parametrize("keeper", [ALICE, CAROL])
@played
async def test_voters_that_are_gone_do_not_count_beside_the_keeper(scene: Scene, keeper: str) -> None:
    """Without it, they may have taken the step with it."""
    scene.want(quorum=Quorum(frozenset(ALL), keepers=frozenset({keeper})))
    await scene.meet(*ALL, leaders=(CAROL, ALICE))
    scene.hold(ALICE)
    for name in (BOB, CAROL, DAVE):
        scene.network.silence(name)
    assert await scene.ruled(10 * ROUND_S) == {}
    scene.want(quorum=Quorum(frozenset(ALL), frozenset((BOB, CAROL, DAVE)), frozenset({keeper})))
    assert await scene.ruled(LOOK_S) == ({ALICE: True} if keeper == ALICE else {})


Say = Callable[[str, HeldAverage, dict[str, bytes]], list[bytes]]


def mislead(scene: Scene, count: int, say: Say) -> None:
    """Let Mallory lead everybody; once `count` of them hold an average, she `say`s something to each of these."""
    signed: dict[str, bytes] = {}
    all_hold = asyncio.Event()

    async def lead(caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        await anext(requests)
        yield begin([*ALL, MALLORY])
        async for message in requests:
            if message.startswith(HOLDS):
                held, signed[caller] = read_average(message.removeprefix(HOLDS), NAME, POSITION)
                if len(signed) == count:
                    all_hold.set()
                await all_hold.wait()
                for word in say(caller, held, signed):
                    yield word

    scene.mallory.handlers[NAME] = lead


def confirmed(held: HeldAverage, signatures: Mapping[str, bytes]) -> bytes:
    """A leader's ruling."""
    return CONFIRMED + held.group_id + held.digest + certificate(signatures)


def signed_by(held: HeldAverage, *names: str) -> dict[str, bytes]:
    """True signatures."""
    return {name: held.signature(key_of(name).sign) for name in names}


@pytest.mark.parametrize(
    "say",
    [
        lambda caller, held, signed: [confirmed(held, {caller: signed[caller]})],
        lambda caller, held, signed: [confirmed(held, dict.fromkeys(ALL, signed[caller]))],
        lambda caller, held, _: [confirmed(held, signed_by(held, caller, MALLORY, id_of("x"), id_of("y")))],
        lambda _, held, signed: [confirmed(held, signed | signed_by(replace(held, digest=OTHER), DAVE))],
        lambda _, held, signed: [confirmed(held, signed)[:-1]],
        lambda _, held, __: [CONFIRMED + held.group_id + held.digest],
        lambda *_: [b"garbage"],
        lambda *_: [GONE_ON],
        lambda *_: [],
    ],
)
@played
async def test_holders_leave_a_leader_without_a_certificate(scene: Scene, say: Say) -> None:
    """And follow the next one, which confirms what they hold."""
    scene.want(quorum=Quorum(frozenset(ALL)))
    mislead(scene, 3, say)
    await scene.meet(*ALL, leaders=(MALLORY, ALICE))
    scene.hold(ALICE, BOB, CAROL)
    assert await scene.ruled(STALLED_S + LEFT_S) == dict.fromkeys((ALICE, BOB, CAROL), True)


@played
async def test_a_leader_outside_the_voters_may_bring_a_true_certificate(scene: Scene) -> None:
    """Also several times."""
    scene.want(quorum=QUORUM)
    mislead(scene, 2, lambda _, held, signed: [confirmed(held, signed)] * 3)
    await scene.meet(*ALL, leaders=(MALLORY, ALICE))
    scene.hold(ALICE, BOB)
    assert await scene.ruled() == {ALICE: True, BOB: True}


@played
async def test_a_leader_cannot_tell_some_that_another_average_was_confirmed(scene: Scene) -> None:
    """Else they would take the same step with another one; they stay in doubt."""
    scene.want(quorum=Quorum(frozenset(ALL)))
    mislead(
        scene,
        3,
        lambda caller, held, signed: [
            confirmed(held, signed) if caller == ALICE else confirmed(other_than(held), signed_by(held, MALLORY))
        ],
    )
    await scene.meet(*ALL, leaders=(MALLORY,))
    scene.hold(ALICE, BOB, CAROL)
    assert await scene.ruled(STALLED_S) == {ALICE: True}


def other_than(held: HeldAverage) -> HeldAverage:
    """Another average of the same group."""
    return replace(held, digest=OTHER)


@pytest.mark.parametrize(
    "lie",
    [
        lambda held: held.message(bytes(256)),
        lambda held: held.message(held.signature(key_of(ALICE).sign)),
        lambda held: held.message(replace(held, step=STEP + 1).signature(key_of(MALLORY).sign)),
        lambda held: held.message(replace(held, group_id=held.group_id[::-1]).signature(key_of(MALLORY).sign)),
        lambda held: held.message(replace(held, run="run").signature(key_of(MALLORY).sign)),
        lambda held: held.message(bytes(1000)),
        lambda held: replace(held, digest=OTHER).message(replace(held, digest=OTHER).signature(key_of(MALLORY).sign)),
    ],
)
@pytest.mark.parametrize("is_first", [False, True])
@played
async def test_a_false_signature_is_not_counted(
    scene: Scene, lie: Callable[[HeldAverage], bytes], is_first: bool
) -> None:
    """Nor one for something else; a true one is."""
    scene.want(quorum=Quorum(frozenset((*ALL, MALLORY))))
    await scene.meet(*ALL)
    scene.hold(ALICE, BOB)
    held = HeldAverage(NAME, *POSITION, scene.searches[ALICE].result().group_id, DIGEST)
    messages = [declared_by(MALLORY), HOLDS + lie(held)][:: -1 if is_first else 1]
    following = asyncio.create_task(scene.follow(ALICE, *messages, lasts_s=LOOK_S))
    assert await scene.ruled(LOOK_S) == {}
    true = HOLDS + held.message(held.signature(key_of(MALLORY).sign))
    assert (await scene.follow(ALICE, true, declared_by(MALLORY), lasts_s=LOOK_S))[-1].startswith(CONFIRMED)
    assert await scene.ruled() == {ALICE: True, BOB: True}
    assert not any(word.startswith(CONFIRMED) for word in await following)


@pytest.mark.parametrize("seed", range(30))
@played
async def test_a_confirmation_may_be_cancelled_at_any_time(scene: Scene, seed: int) -> None:
    """Nothing is left behind (`play`); who has given up an average takes part again once it has the step."""
    rng = random.Random(seed)
    scene.want(quorum=QUORUM)
    await scene.meet(*ALL)
    for name in rng.sample(ALL, rng.randint(1, 4)):
        scene.hold(name)
        await asyncio.sleep(rng.uniform(0.0, 0.05))
    if rng.random() < 0.5:
        scene.network.part([ALICE])
        await asyncio.sleep(rng.uniform(0.0, 2 * SILENCE_S))
    cancelled = {name for name in scene.held if not scene.held[name].done()}
    for name in cancelled:
        scene.held[name].cancel()
    await asyncio.sleep(SOON_S)
    scene.network.part()
    scene.seek(*ALL, leaders=[name for name in ALL if name not in cancelled][:1] or ALL)
    found = await scene.after(SOON_S + ROUND_S)
    assert cancelled.isdisjoint(found)
    for search in scene.searches.values():
        search.cancel()
    scene.want(leaders=ALL, expected=4, required=4)
    searches = [peer.seek((0, STEP + 1)) for peer in scene.peers.values()]
    await asyncio.sleep(STALLED_S + ROUND_S)
    assert len({search.result().group_id for search in searches}) == 1


@played
async def test_a_leader_voids_an_average_of_an_earlier_group_that_it_has_never_held(scene: Scene) -> None:
    """Else no group begins as long as its holder is there."""
    scene.want(quorum=QUORUM)
    await scene.meet(*ALL)
    scene.network.part((ALICE, CAROL, DAVE), (BOB,))
    scene.hold(BOB)
    await scene.meet(ALICE, CAROL, DAVE)
    scene.network.part()
    scene.seek(ALICE, CAROL, DAVE)
    assert await scene.ruled(2 * STALLED_S) == {BOB: False}


@played
async def test_nobody_stops_a_swarm_with_an_average_of_a_group_that_never_was(scene: Scene) -> None:
    """Of all voters, none holds it."""
    scene.want(quorum=QUORUM)
    held = HeldAverage(NAME, *POSITION, bytes(GROUP_ID_BYTES), DIGEST)
    invented = HOLDS + held.message(held.signature(key_of(MALLORY).sign))
    following = asyncio.create_task(scene.follow(ALICE, invented, declared_by(MALLORY), lasts_s=10 * STALLED_S))
    scene.want(step=STEP)
    await asyncio.sleep(LOOK_S)
    scene.trigger()
    scene.seek(ALICE, BOB)
    await scene.after(2 * STALLED_S)
    following.cancel()
    assert scene.searches[ALICE].done()


@played
async def test_a_leader_never_confirms_two_averages(scene: Scene) -> None:
    """Also if all voters are gone, so that everybody may decide."""
    scene.want(quorum=Quorum(frozenset({DAVE})))
    await scene.meet(*ALL, leaders=(DAVE, ALICE))
    scene.network.part((ALICE, CAROL, DAVE), (BOB,))
    scene.hold(BOB)
    await scene.meet(ALICE, CAROL, DAVE, leaders=(DAVE, ALICE))
    scene.network.kill(DAVE)
    scene.network.part()
    scene.hold(ALICE)
    assert await scene.ruled(LEFT_S) == {}
    scene.want(quorum=Quorum(frozenset({DAVE}), frozenset({DAVE})))
    assert sum((await scene.ruled(STALLED_S)).values()) <= 1


TROUBLE_S = 120.0
MOST_DECIDING_S = 600.0  # from the end of all trouble until everybody has taken the step


class Vote:
    """Peers that repeat the rounds of one step until they take it, while some die, fall silent, and are parted."""

    def __init__(self, scene: Scene, rng: random.Random) -> None:
        self._scene, self._rng, self._names = scene, rng, list(scene.peers)
        voters = frozenset(rng.sample(self._names, rng.randint(1, len(self._names))))
        self._quorum = Quorum(voters, keepers=frozenset(rng.sample(self._names, rng.choice((0, 0, 1)))))
        self._dead: set[str] = set()
        self._living: dict[str, asyncio.Task[None]] = {}
        self._confirmed: dict[str, bytes] = {}
        self._gone_on: set[str] = set()

    async def run(self) -> None:
        """Live through the trouble; then wait until all living peers have taken the step, all the same."""
        rng, scene = self._rng, self._scene
        lasting = rng.sample(self._names, 2)
        leaders = rng.sample([*lasting, *rng.sample(self._names, 1)], 3)
        scene.want(leaders=tuple(dict.fromkeys(leaders)), expected=len(self._names), quorum=self._quorum)
        self._living = {name: asyncio.create_task(self._live(name)) for name in self._names}
        watching = [asyncio.create_task(self._watch(name)) for name in self._names]
        while (now := scene.now()) < TROUBLE_S:
            await asyncio.sleep(min(rng.expovariate(1 / 8.0), TROUBLE_S - now))
            self._trouble({*lasting, *self._quorum.voters, *self._quorum.keepers})
        scene.network.part()
        for name in self._names:
            scene.network.resume(name)
        scene.want(quorum=replace(self._quorum, gone=frozenset(self._dead)))
        alive = [task for name, task in zip(self._names, watching, strict=True) if name not in self._dead]
        await asyncio.wait(alive, timeout=MOST_DECIDING_S)
        for task in (*self._living.values(), *watching):
            task.cancel()
        ends = await asyncio.gather(*self._living.values(), *watching, return_exceptions=True)
        assert [end for end in ends if isinstance(end, Exception)] == []
        assert len(set(self._confirmed.values())) <= 1
        assert self._gone_on >= set(self._names) - self._dead

    def _trouble(self, lasting: set[str]) -> None:
        rng, network = self._rng, self._scene.network
        name = rng.choice(self._names)
        match rng.choice(("death", "silence", "silence", "parting", "parting", "healing")):
            case "death" if name not in lasting | self._dead:
                self._dead.add(name)
                network.kill(name)
            case "silence":
                network.silence(name)
                asyncio.get_running_loop().call_later(rng.uniform(1.0, 60.0), network.resume, name)
            case "parting":
                side = rng.sample(self._names, rng.randint(1, len(self._names) - 1))
                network.part(side, set(self._names) - set(side))
            case "healing":
                network.part()

    async def _live(self, name: str) -> None:
        """Average until an average is confirmed; in some rounds, not all have the same one."""
        peer, rng, scene = self._scene.peers[name], self._rng, self._scene
        peer.due.set()
        while True:
            scene.searches[name] = peer.seek()
            group = await scene.searches[name]
            peer.meetings.round_began(scene.now() + ROUND_S)
            await asyncio.sleep(rng.uniform(0.0, ROUND_S))
            if rng.random() < 0.3:
                peer.meetings.group_ended(came_about=False)
                continue
            digest = DIGEST if rng.random() < 0.9 else OTHER
            if await peer.confirm(digest):
                self._confirmed[name] = group.group_id + digest
                await asyncio.sleep(rng.uniform(0.0, LOOK_S))
                return

    async def _watch(self, name: str) -> None:
        """Take the step once an average is confirmed, or others have taken it, as records tell."""
        scene = self._scene
        while not self._living[name].done():
            await asyncio.sleep(self._rng.uniform(LOOK_S, STALLED_S))
            if any(scene.network.connects(name, other) for other in self._gone_on - self._dead):
                self._living[name].cancel()
                scene.searches[name].cancel()
                break
        self._gone_on.add(name)
        scene.peers[name].want(step=STEP + 1)


@pytest.mark.parametrize("seed", range(60))
def test_no_two_averages_of_a_step_are_confirmed_and_one_is_after_all_trouble(seed: int) -> None:
    """Whoever dies, falls silent, or is parted from others."""
    rng = random.Random(seed)
    names = [id_of(f"peer {number}") for number in range(rng.randint(3, 7))]
    run_heard(play(lambda scene: Vote(scene, rng).run(), names, seed))


@played
async def test_a_leader_that_has_lost_its_round_rules_on_it_although_it_seeks_no_other(scene: Scene) -> None:
    """Its trainer may be about to leave."""
    scene.want(quorum=QUORUM)
    await scene.meet(*ALL)
    scene.hold(BOB, CAROL, DAVE)
    scene.peers[ALICE].meetings.round_failed()
    assert await scene.ruled(2 * LOOK_S) == dict.fromkeys((BOB, CAROL, DAVE), True)
