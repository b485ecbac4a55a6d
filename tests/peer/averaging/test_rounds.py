"""Searches for groups and their rounds, in virtual time, with stand-ins for meetings and for the inside of a round."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from auth.tokens import AccessToken
from peer.averaging.absences import Attendance
from peer.averaging.deadline import LEAST_KNOWN, LEAST_S
from peer.averaging.declarations import Declaration, DeclaredGroup, open_declaration
from peer.averaging.meetings import UnconfirmedAverageError
from peer.averaging.requirements import Requirements
from peer.averaging.rounds import (
    AveragedGroup,
    AveragingRounds,
    OwnSide,
    PlannedRound,
    RoundError,
    RoundSearch,
    SearchStage,
)
from peer.config.training import Averaging
from peer.node.quorum import Quorum
from peer.reduction.findings import Accusations
from tests.support.receipts import key_of
from tests.support.virtual_tests import P, Played, played_by

GROUP = AveragedGroup(size=2, samples=12, averaged_bytes=900, seconds=2.0, digest=b"digest")
LOST = RoundError("a line is cut")
LONGEST_S = 3600.0
Ending = AveragedGroup | Exception | float  # a number: seconds until the exchange would end


class FakeMeetings:
    """Meetings that let this peer meet another one at once, and confirm an average once they `may_confirm`."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.may_confirm = asyncio.Event()
        self.may_confirm.set()
        self.is_void = False
        self.wanted = list[Requirements]()
        self.declared = list[tuple[tuple[int, int], bytes]]()
        self.changes: Mapping[int, bytes] = {}  # what the leader makes of the declarations of a group, by place
        self.ends_at = list[float]()
        self.held = list[bytes]()
        self.came_about = list[bool]()
        self.reasons = list[str]()
        self.lacking = 0  # rounds whose average this peer does not have

    def want(self, wanted: Requirements) -> None:
        self.wanted.append(wanted)

    def declare(self, position: tuple[int, int], declared: bytes) -> None:
        self.declared.append((position, declared))

    async def look_for_group(self, _due: asyncio.Event) -> DeclaredGroup:
        await asyncio.sleep(1.0)
        others = self.scene.others
        declared = [self.declared[-1][1], *[self.scene.others_declaration()] * len(others)]
        declared = [self.changes.get(place, each) for place, each in enumerate(declared)]
        return DeclaredGroup(b"group", ("own", *others), tuple(declared))

    def group_ended(self, came_about: bool) -> None:
        self.came_about.append(came_about)

    def distrust_leader(self, reason: str) -> None:
        self.reasons.append(reason)

    def round_began(self, ends_at: float) -> None:
        self.ends_at.append(ends_at)

    def round_failed(self) -> None:
        self.lacking += 1

    async def confirm(self, digest: bytes) -> None:
        self.held.append(digest)
        await self.may_confirm.wait()
        if self.is_void:
            raise UnconfirmedAverageError("too few peers hold it")


class Scene:
    """A peer at step 4 that meets one on a line three times as fast; its exchanges end as they are told to."""

    def __init__(self, *endings: Ending) -> None:
        self.key, self.endings = key_of("own"), list(endings)
        self.other: dict[str, Any] = {}  # what the other one declares differently
        self.others: tuple[str, ...] = ("other",)
        self.values, self.size_bytes = 8, 600.0
        self.codes = list[tuple[str, int]]()
        self.rounds_begun = list[PlannedRound]()
        self.ended_early = 0  # exchanges that were cancelled
        self.came_about = True
        self.are_members = True
        self.stages = list[SearchStage]()
        self.meetings = FakeMeetings(self)
        self.attendance = Attendance("own")
        self.accusations = Accusations(asyncio.get_running_loop().time)
        self.rounds = AveragingRounds(
            self.meetings,  # type: ignore[arg-type]
            self,
            self.attendance,
            self.accusations,
            self,
            OwnSide("own", "run", takes_connections=True, reduces=True),
            Averaging(compression="float16", averaging_timeout_s=LONGEST_S),
            opened=lambda declared, token: open_declaration(declared, token.public_key, "run"),
            signed=self.signed,
            changed=lambda search: self.stages.append(search.stage),
        )
        self.rounds.want(Requirements(step=4, code=("float16", 0), target=12))

    def signed(self, said: Declaration) -> bytes:
        """Sign what this peer says, as the other one does."""
        return said.signed(self.key.sign)

    def others_declaration(self) -> bytes:
        """What the other peer declares."""
        own = open_declaration(self.meetings.declared[-1][1], self.key.public_key.decode(), "run")
        return self.signed(own.model_copy(update={"rate": 30.0, "patience_s": LONGEST_S} | self.other))

    def token_of(self, peer: str) -> AccessToken | None:
        """Both are members, unless they are not any more."""
        public_key = self.key.public_key.decode()
        token = AccessToken(peer, "1", peer, public_key, "trainer", "run", 0.0, 1.0, f"pseudonym of {peer}")
        return token if self.are_members else None

    async def admitted(self, peers: Any, _roles: Any) -> set[str]:
        """Everybody."""
        return set(peers)

    def take_up(self, averaging: Averaging) -> None:
        """Use another code."""
        self.codes.append(averaging.code)

    async def average(self, round_: PlannedRound) -> AveragedGroup:
        """End as told."""
        self.rounds_begun.append(round_)
        ending = self.endings.pop(0)
        try:
            await asyncio.sleep(ending if isinstance(ending, float) else 2.0)
        except asyncio.CancelledError:
            self.ended_early += 1
            raise
        finally:
            round_.came_about = self.came_about
        if isinstance(ending, Exception):
            raise ending
        return GROUP

    async def search(self, samples: float = 12.0) -> AveragedGroup:
        """Seek a group, and average with it."""
        return await asyncio.wrap_future(self.begun(samples).outcome)

    def begun(self, samples: float = 12.0) -> RoundSearch:
        """A search with a full batch."""
        search = self.rounds.seek(10.0)
        self.rounds.begin(search, samples)
        return search

    def declared(self) -> Declaration:
        """What this peer has declared last."""
        return open_declaration(self.meetings.declared[-1][1], self.key.public_key.decode(), "run")


def played(*endings: Ending) -> Played[Scene, P]:
    """Run a test with a scene of these endings."""

    async def play(test: Callable[[Scene], Awaitable[None]]) -> None:
        await test(Scene(*endings))

    return played_by(play)


@played(GROUP)
async def test_a_group_averages_once_the_batch_is_full(scene: Scene) -> None:
    """Shares are those of the lines; the trainer's side learns each stage, and the group in the end."""
    search = scene.rounds.seek(10.0)
    await asyncio.sleep(5.0)
    assert (search.stage, search.has_averaged, scene.rounds_begun) == (SearchStage.MET, False, [])
    scene.rounds.begin(search, 7.0)
    found = await asyncio.wrap_future(search.outcome)
    [round_] = scene.rounds_begun
    assert (round_.weight, round_.due_since, round_.position, round_.target) == (7.0, 5.0, (0, 4), 12)
    assert (round_.plan.shares, round_.plan.promised_s) == ((2, 6), 60.0)
    assert search.has_averaged
    assert scene.stages == [
        SearchStage.LOOKING,
        SearchStage.MET,
        SearchStage.AVERAGING,
        SearchStage.CONFIRMING,
        SearchStage.ENDED,
    ]
    assert found == replace(
        GROUP,
        lines=round_.plan.lines,
        peers=frozenset({"own", "other"}),
        pseudonyms={peer: f"pseudonym of {peer}" for peer in ("own", "other")},
    )
    assert (scene.meetings.came_about, scene.meetings.held) == ([True], [b"digest"])
    assert (scene.rounds.failed_rounds, scene.meetings.lacking) == (0, 0)


@played(GROUP, GROUP, GROUP)
async def test_each_search_is_for_the_step_and_the_code_that_the_trainer_wants(scene: Scene) -> None:
    """Both are declared, with what is known of this peer."""
    wanted = [
        Requirements(1, 5, ("8bit-blockwise", 0)),
        Requirements(1, 6, ("float16", 8)),
        Requirements(1, 7, ("float16", 8)),
    ]
    scene.accusations.accuse("mallory")
    for each in wanted:
        scene.rounds.want(each)
        await scene.search()
        said = scene.declared()
        assert scene.meetings.declared[-1][0] == said.position == each.position
        assert (said.code, said.rate, said.accused) == (each.code, 10.0, ["mallory"])
        assert (said.takes_connections, said.reduces, said.patience_s) == (True, True, LONGEST_S)
    assert scene.meetings.wanted[1:] == wanted
    assert scene.codes == [("8bit-blockwise", 0), ("float16", 8)]


@pytest.mark.parametrize(
    ("voters", "averages"),
    [(["own", "other"], True), (["own", "other", "third"], True), (["a third", "own"], False), (["third"], False)],
)
@played(GROUP)
async def test_a_group_that_is_no_quorum_does_not_average(scene: Scene, voters: list[str], averages: bool) -> None:
    """Beside it others may take the same step; nothing was begun then, and who leads such groups is passed over."""
    scene.rounds.want(replace(scene.rounds.wanted, quorum=Quorum(frozenset(voters))))
    search = scene.begun()
    await asyncio.sleep(1.5)
    assert (bool(scene.rounds_begun), search.has_averaged) == (averages, averages)
    assert (scene.meetings.came_about, scene.rounds.failed_rounds) == ([False] * (not averages), 0)


@pytest.mark.parametrize("is_void", [False, True])
@played(GROUP)
async def test_an_average_waits_until_it_is_confirmed(scene: Scene, is_void: bool) -> None:
    """Without a time limit here; a void one makes the round a failed one, and ends the search."""
    scene.meetings.may_confirm.clear()
    scene.meetings.is_void = is_void
    search = scene.begun()
    await asyncio.sleep(2 * LONGEST_S)
    assert (search.stage, search.outcome.done()) == (SearchStage.CONFIRMING, False)
    scene.meetings.may_confirm.set()
    with pytest.raises(UnconfirmedAverageError) if is_void else contextlib.nullcontext():
        await asyncio.wrap_future(search.outcome)
    assert (scene.rounds.failed_rounds, scene.meetings.lacking) == (is_void, is_void)


@played(GROUP, GROUP)
async def test_an_average_of_too_few_samples_waits_for_nobody(scene: Scene) -> None:
    """It leads to no step, of which the trainer then tells; nine tenths of a batch are enough."""
    scene.rounds.want(replace(scene.rounds.wanted, target=14))
    assert (await scene.search()).samples == 12
    assert (scene.meetings.held, scene.stages[-2:]) == ([], [SearchStage.AVERAGING, SearchStage.ENDED])
    scene.rounds.want(replace(scene.rounds.wanted, target=13))
    assert (await scene.search()).samples == 12
    assert len(scene.meetings.held) == 1


@pytest.mark.parametrize(
    ("agreed_s", "promised_s", "limit_s"),
    [
        (3.0, 1.0, LEAST_S),
        (30.0, 1.0, 30.0),
        (30.0, 40.0, 80.0),
        (LONGEST_S, 1.0, LONGEST_S),
        (30.0, 1e6, LONGEST_S),
    ],
)
@played(GROUP)
async def test_a_round_has_the_limits_that_its_group_agrees_on(
    scene: Scene, agreed_s: float, promised_s: float, limit_s: float
) -> None:
    """Within this run's bounds; a silent sender is given up before those who wait for its reducer give that up."""
    scene.others, scene.other = ("other", "third"), {"patience_s": agreed_s, "rate": None}
    scene.size_bytes = 10.0 * promised_s / 1.5  # two have no known rate
    await scene.search()
    [round_] = scene.rounds_begun
    assert round_.plan.limit_s == pytest.approx(limit_s)
    assert (round_.plan.sender_s, round_.plan.reducer_s) == pytest.approx((limit_s / 3, 2 * limit_s / 3))
    assert scene.meetings.ends_at == pytest.approx([1.0 + limit_s])


@pytest.mark.parametrize("ending", [LOST, 2 * LONGEST_S])
@played()
async def test_after_a_failed_round_another_group_is_looked_for(scene: Scene, ending: Ending) -> None:
    """Also after one that has come to its limit, as soon as it has ended here."""
    scene.came_about, scene.endings = False, [ending, GROUP]
    search = scene.begun()
    found = await asyncio.wrap_future(search.outcome)
    assert found.samples == GROUP.samples
    assert (len(scene.rounds_begun), scene.ended_early) == (2, isinstance(ending, float))
    assert (scene.rounds.failed_rounds, scene.meetings.lacking) == (1, 1)
    assert scene.stages.count(SearchStage.LOOKING) == 2
    assert scene.meetings.came_about == [False, False]


@played(*[GROUP] * LEAST_KNOWN)
async def test_only_an_unexplained_failure_asks_for_more_time(scene: Scene) -> None:
    """A reducer that is missing is not too slow a line, and has cost enough time already."""
    for _ in range(LEAST_KNOWN):
        await scene.search()
    usual_s = scene.rounds._deadline.seconds
    assert usual_s == LEAST_S
    scene.attendance.round_ended(missed=["mallory"], reducers=["mallory", "bob", "carol"])
    scene.endings = [LOST, 1e9]
    search = scene.begun()
    await asyncio.sleep(5.0)
    assert (scene.declared().patience_s, scene.declared().missed) == (usual_s, ["mallory"])
    scene.rounds.give_up(search)
    scene.rounds._attendance = Attendance("own")
    scene.endings = [LOST, 1e9]
    scene.begun()
    await asyncio.sleep(5.0)
    assert scene.declared().patience_s == 2 * usual_s


@played(*[GROUP] * (LEAST_KNOWN + 1))
async def test_another_code_begins_with_what_is_usual_in_it(scene: Scene) -> None:
    """Times of rounds are learnt anew."""
    for code in (*[("float16", 0)] * LEAST_KNOWN, ("8bit-blockwise", 0)):
        scene.rounds.want(replace(scene.rounds.wanted, code=code))
        await scene.search()
    assert scene.declared().patience_s == LONGEST_S


@pytest.mark.parametrize(
    ("changes", "other", "reason"),
    [
        ({0: b"changed"}, {}, "changed what this peer"),
        ({1: b"changed"}, {}, "The declaration is not one"),
        ({}, {"step": 3}, "another step"),
        ({}, {"compression": "none"}, "another code"),
        ({}, {"run": "other"}, "another run"),
    ],
)
@played()
async def test_a_group_with_changed_words_is_given_up(
    scene: Scene, changes: dict[int, bytes], other: dict[str, Any], reason: str
) -> None:
    """One's own, or another's; and the leader is distrusted."""
    scene.meetings.changes, scene.other = changes, other
    scene.begun()
    await asyncio.sleep(1.5)
    assert scene.rounds_begun == []
    [found] = scene.meetings.reasons
    assert reason in found


@played()
async def test_a_group_with_a_peer_that_is_shut_out_is_given_up(scene: Scene) -> None:
    """The leader may not know of that yet."""
    scene.are_members = False
    scene.begun()
    await asyncio.sleep(1.5)
    assert (scene.rounds_begun, scene.meetings.reasons) == ([], [])
    assert len(scene.meetings.declared) == 2


@pytest.mark.parametrize("after_s", [0.5, 1.5])
@played(LONGEST_S / 2)
async def test_a_search_that_was_given_up_takes_part_in_no_round(scene: Scene, after_s: float) -> None:
    """Also when its round has begun: else its samples would be averaged here, and by the next attempt once more."""
    search = scene.begun()
    await asyncio.sleep(after_s)
    scene.rounds.give_up(search)
    await asyncio.sleep(2 * LONGEST_S)
    has_begun = after_s > 1.0
    assert (search.outcome.cancelled(), len(scene.rounds_begun), scene.ended_early) == (True, has_begun, has_begun)
    assert [round_.is_given_up() for round_ in scene.rounds_begun] == [True] * has_begun
    assert (scene.rounds.failed_rounds, scene.meetings.came_about) == (0, [])


@played()
async def test_who_leaves_gives_up_its_search(scene: Scene) -> None:
    """And nothing before it has begun one."""
    scene.rounds.stop()
    search = scene.begun()
    scene.rounds.stop()
    assert search.outcome.cancelled()


@played()
async def test_a_search_that_is_given_up_at_once_has_ended_too(scene: Scene) -> None:
    """Before its first look for a group."""
    scene.rounds.give_up(scene.rounds.seek(None))
    await asyncio.sleep(1.0)
    assert scene.stages == [SearchStage.ENDED]


@played()
async def test_a_search_that_breaks_off_tells_the_trainer_why(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """It is no failed round, after which the search would go on."""
    scene.meetings.look_for_group = partial(_broken)  # type: ignore[assignment]
    with pytest.raises(RoundError, match="broken"):
        await scene.search()
    assert scene.rounds.failed_rounds == 0
    assert "a search for a group has failed" in caplog.text


async def _broken(_due: asyncio.Event) -> DeclaredGroup:
    raise RoundError("broken")
