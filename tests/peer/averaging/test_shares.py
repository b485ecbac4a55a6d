"""Shares of the reduction: as good as a solver's best, the same at all peers, and robust against false claims."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import scipy.optimize
from hivemind.p2p import PeerID
from hypothesis import given, strategies as st

from auth.tokens import AccessToken, Role
from peer.averaging.declarations import Declaration
from peer.averaging.shares import (
    FASTEST,
    LARGEST_SHARE,
    GroupLines,
    agreed_patience,
    believed,
    group_lines,
    largest_share,
    missing_auxiliaries,
    part_size,
    planned_shares,
    reduction_shares,
    round_limit,
    round_time,
)

VALUES = 17_800_000
MBIT = 125_000.0  # bytes per second


def best_time(rates: list[float], most: list[float]) -> float:
    """The shortest possible round where nobody reduces more than `most`, by linear programming, for one byte in all."""
    count = len(rates)
    aim = np.zeros(count + 1)
    aim[-1] = 1.0
    reducers = [index for index, rate in enumerate(rates) if rate]
    rows, bounds = np.zeros((len(reducers), count + 1)), np.zeros(len(reducers))
    for row, index in enumerate(reducers):
        rows[row, index], rows[row, -1], bounds[row] = (count - 2) / rates[index], -1.0, -1 / rates[index]
    limits = [(0, limit if rate else 0) for rate, limit in zip(rates, most, strict=True)] + [(0, None)]
    sums = np.concatenate([np.ones(count), [0.0]])[None]
    solution = scipy.optimize.linprog(aim, rows, bounds, sums, [1.0], limits, method="highs")
    return float(solution.x[-1])


@given(st.lists(st.tuples(st.floats(0.1, 1000.0), st.booleans()), min_size=3, max_size=12))
def test_no_shares_end_a_round_sooner(peers: list[tuple[float, bool]]) -> None:
    """The closed form reaches what linear programming finds to be the shortest round, within the bounds."""
    rates, trusted = map(list, zip(*peers, strict=True))
    most = [1.0 if is_trusted else largest_share(len(rates)) for is_trusted in trusted]
    shares = reduction_shares(VALUES, rates, [True] * len(rates), trusted)
    assert sum(shares) == VALUES
    assert all(share <= limit * VALUES + len(rates) for share, limit in zip(shares, most, strict=True))
    assert round_time(1, shares, rates) <= best_time(rates, most) * 1.0001 + 1e-9


@pytest.mark.parametrize(("reducers", "most"), [(1, 1.0), (2, 1.0), (3, 2 / 3), (5, 0.4), (8, 0.25), (100, 0.25)])
def test_who_is_not_trusted_has_a_bounded_share(reducers: int, most: float) -> None:
    """However fast a line is claimed to be; one reducer or two, which cannot do otherwise, have no bound."""
    assert largest_share(reducers) == pytest.approx(most)
    rates = [FASTEST, *[1e4] * (reducers - 1)]
    shares = reduction_shares(VALUES, [*rates, 0.0], [True] * (reducers + 1))
    assert shares[0] == pytest.approx(most * VALUES, abs=reducers)
    assert (sum(shares), shares[-1]) == (VALUES, 0)


def test_the_keeper_reduces_what_others_may_not() -> None:
    """With it in the group one fast line among slow ones costs no time, and has its bounded share."""
    rates = [25e6, 25e6, *[1.25e6] * 7]
    shares = reduction_shares(VALUES, rates, [True] * 9, [True, *[False] * 8])
    assert shares[1] == pytest.approx(LARGEST_SHARE * VALUES, abs=9)
    assert shares[0] == pytest.approx((1 - LARGEST_SHARE) * VALUES, abs=9)
    assert round_time(2 * VALUES, shares, rates) == pytest.approx(2 * VALUES / 1.25e6)


def test_who_accepts_no_connections_reduces_nothing() -> None:
    """A peer in client mode has no share, however fast it claims to be."""
    shares = reduction_shares(VALUES, [1e9, 1e6, 1e6], [False, True, True])
    assert shares[0] == 0
    assert sum(shares) == VALUES


def test_lines_of_peers_that_do_not_reduce_change_no_share() -> None:
    """However fast a relayed peer's line is, the keeper of an unknown one reduces as much."""
    rates = [None, *[10 * MBIT] * 4]
    alone = reduction_shares(VALUES, [*rates, 10 * MBIT], [True] * 5 + [False], [True] + [False] * 5)
    beside = reduction_shares(VALUES, [*rates, 200 * MBIT], [True] * 5 + [False], [True] + [False] * 5)
    assert beside == alone


def test_an_unlimited_line_counts_like_the_fastest_known() -> None:
    """The keeper, against which all were measured, names no rate of its own."""
    assert reduction_shares(1000, [None, 4e6, 1e6], [True] * 3) == reduction_shares(1000, [4e6, 4e6, 1e6], [True] * 3)


@pytest.mark.parametrize("rates", [[None] * 4, [0.0] * 4, [5e6] * 4])
def test_lines_of_which_nothing_tells_one_from_another_share_alike(rates: list[float | None]) -> None:
    """Nothing known, nothing to tell, or all alike: equal shares."""
    assert reduction_shares(1000, rates, [True] * 4) == (250,) * 4


def test_two_peers_share_by_their_lines() -> None:
    """In a group of two the time is the same whoever reduces; work goes by the lines."""
    assert reduction_shares(1000, [3e6, 1e6], [True, True]) == (750, 250)


def test_a_group_in_which_nobody_can_reduce_is_refused() -> None:
    """Clients alone cannot average."""
    with pytest.raises(ValueError, match="nobody"):
        reduction_shares(1000, [1.0, 1.0], [False, False])


def test_a_plain_claim_is_taken() -> None:
    """Zero, too, which means: leave me out; and none."""
    assert [believed(rate) for rate in (0.0, 12.5e6, None)] == [0.0, 12.5e6, None]


def test_lines_faster_than_processors_count_alike() -> None:
    """Whatever a measurement within one machine room says: all of them reduce."""
    assert believed(1e9) == believed(5e7) == FASTEST


def test_the_time_of_a_round_counts_the_lines_whose_rate_is_known() -> None:
    """The slowest of them decides; without any there is nothing to say."""
    assert round_time(1000, [500, 500, 0], [1000.0, None, 100.0]) == pytest.approx(10.0)
    assert round_time(1000, [500, 500], [None, 0.0]) == 0.0


def test_parts_are_small_beside_a_reducer_s_share_within_bounds() -> None:
    """18 million values in a group of 16 travel in parts of some 70 KB; tiny and huge models stay within the bounds.

    Parts are of multiples of 4096 values, in 2 bytes, or in one and a share of a scale.
    """
    assert part_size(18_000_000, "float16", 16) == 8 * 4096 * 2
    assert part_size(18_000_000, "8bit-blockwise", 16) == 8 * 4224
    assert [part_size(5_000, "none", 3), part_size(5_000, "float16", 3)] == [2**14, 2**14]
    assert part_size(5_000, "8bit-blockwise", 3) == 3 * 4224
    assert part_size(5 * 10**9, "float16", 3) == 2**19


PEERS = tuple(PeerID(b"\x12\x20" + bytes([number]) * 32).to_base58() for number in range(4))


def token(member: str, role: Role = "trainer") -> AccessToken:
    return AccessToken(member, "1", "peer", "key", role, "run", 0.0, 1.0, "a" * 64)


def said(
    rate: float | None = None,
    *,
    client: bool = False,
    relayed: bool = False,
    accused: Sequence[int] = (),
    missed: Sequence[int] = (),
    patience_s: float = 60.0,
) -> Declaration:
    """A declaration; others are named by their places in the group."""
    return Declaration(
        run="run",
        era=0,
        step=4,
        compression="float16",
        powersgd_rank=0,
        rate=rate,
        takes_connections=not client,
        reduces=not relayed,
        patience_s=patience_s,
        accused=[PEERS[index] for index in accused],
        missed=[PEERS[index] for index in missed],
    )


TOKENS = [token("op", "keeper"), token("alice"), token("bob"), token("mallory")]


def lines_of(*words: Declaration, tokens: Sequence[AccessToken] = TOKENS) -> GroupLines:
    return group_lines(PEERS, tokens, words)


def test_who_reduces_and_who_looks_after_it() -> None:
    """Neither clients nor relayed peers do."""
    lines = lines_of(said(), said(1e6), said(5e6, client=True), said(2e6, relayed=True))
    assert lines.rates == (None, 1e6, 5e6, 2e6)
    assert lines.reduces == (True, True, False, False)
    assert lines.trusted == (True, False, False, False)
    assert lines.second_reducers == PEERS[:2]


@pytest.mark.parametrize(
    ("words", "reduces"),
    [
        ([said(), said(accused=[3]), said(missed=[3]), said(1e9)], (True, True, True, False)),  # two votes of three
        ([said(), said(1e6), said(1e6, missed=[3]), said(1e9)], (True,) * 4),
        ([said(missed=[3]), said(), said(), said()], (True, True, True, False)),  # without the keeper there is no round
        ([said(accused=[3]), said(), said(), said()], (True,) * 4),
        ([said(), *[said(missed=[0])] * 3], (True,) * 4),  # members that are many do not decide alone
    ],
)
def test_who_was_caught_or_missed_reduces_nothing(words: Sequence[Declaration], reduces: tuple[bool, ...]) -> None:
    """Where most say so, whatever line it claims, or where the keeper missed it; the keeper itself keeps its share."""
    assert lines_of(*words).reduces == reduces


def test_a_member_s_devices_have_one_vote() -> None:
    """Two of them against another's device are one member of two."""
    tokens = [token("alice"), token("mallory"), token("mallory"), token("bob")]
    mallorys = [said(missed=[0])] * 2
    assert lines_of(said(), *mallorys, said(), tokens=tokens).reduces == (True,) * 4


def test_somebody_must_reduce() -> None:
    """Where most accuse everybody who could, all who can do."""
    everybody = range(4)
    words = [said(client=True, accused=everybody), *[said(1e6, accused=everybody)] * 3]
    assert lines_of(*words).reduces == (False, True, True, True)
    relayed = [said(1e6, relayed=True)] * 3
    assert lines_of(said(client=True), *relayed).reduces == (False, True, True, True)


def test_a_round_has_one_limit_for_all() -> None:
    """The median of the members' patience: neither a single member nor one with many devices sets it."""
    assert lines_of(said(patience_s=9.0), said(patience_s=9.0), said(), said(patience_s=9.0)).patience_s == 9.0
    assert agreed_patience(["a", "b", "m", "m", "m"], [20.0, 30.0, 1.0, 2.0, 1.0]) == 20.0


@pytest.mark.parametrize(("promised_s", "limit_s"), [(0.0, 15.0), (6.0, 15.0), (20.0, 40.0)])
def test_a_round_may_take_as_long_as_its_lines_need(promised_s: float, limit_s: float) -> None:
    """A newcomer on a slower line than all before would else fail the round for all."""
    assert round_limit(15.0, promised_s) == limit_s


def homes(count: int, reachable: int = 0) -> GroupLines:
    """A keeper of 25 Mbit/s and homes of 10, of which some accept connections."""
    rates = (25 * MBIT, *[10 * MBIT] * count)
    reduces = (True, *[index < reachable for index in range(count)])
    return GroupLines(rates, reduces, (True, *[False] * count), ())


@pytest.mark.parametrize(
    ("count", "reachable", "step_s", "missing"),
    [
        (2, 0, 600.0, 0),  # the keeper alone is quick enough
        (30, 0, 600.0, 1),
        (30, 0, 300.0, 2),
        (30, 30, 300.0, 0),  # they reduce themselves
        (30, 0, 60.0, 3),  # a fourth would hardly shorten the homes' own 29 s
    ],
)
def test_auxiliary_peers_are_missing_where_they_shorten_the_rounds(
    count: int, reachable: int, step_s: float, missing: int
) -> None:
    """Of ALBERT-large's gradients in fp16; rounds shall take a fifth of a step."""
    lines = homes(count, reachable)
    shares = reduction_shares(VALUES, lines.rates, lines.reduces, lines.trusted)
    found = missing_auxiliaries(lines, round_time(2 * VALUES, shares, lines.rates), step_s)
    assert found == missing


def test_nothing_is_said_of_unknown_lines() -> None:
    """They may be as fast as any."""
    lines = GroupLines((None, None, None), (True, False, False), (True, False, False), ())
    assert missing_auxiliaries(lines, 0.0, 60.0) == 0


@pytest.mark.parametrize(("values", "rate", "some"), [(10_000, None, 5), (10_000, MBIT, 31), (100_000, None, 31)])
def test_few_reduce_a_round_that_is_quick_all_the_same(values: int, rate: float | None, some: int) -> None:
    """The keeper and the fastest members, none of them more than in another round; unknown lines may be slow."""
    rates = (rate, *[rate] * 10, *[rate and rate / 2] * 20)
    shares = planned_shares(values, 2.0 * values, GroupLines(rates, (True,) * 31, (True, *[False] * 30), ()))
    assert sum(share > 0 for share in shares) == some
    assert shares[0] > 0
    assert sum(shares) == values
    assert max(shares[1:]) <= values / 4
