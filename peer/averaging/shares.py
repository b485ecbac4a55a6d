"""Shares of the reduction: how many values each peer of a group reduces, by the lines that its peers declared.

DeDLOC's adaptive averaging (Diskin et al. 2021, arXiv 2106.10207, section 3.2): in a group of n peers that average V
values, a peer that reduces the fraction f sends (and receives) V * (1 + (n - 2) * f) values, its own and those of the
others. The round ends when the slowest line has passed its traffic. Every peer of the group computes the shares for
itself, and they must be the same everywhere: so this is a closed form in plain arithmetic, not a numerical solver. For
the same reason the shares follow only from what all peers see: the declarations that the leader gathered, and the
tokens. Declarations are signed (`peer.averaging.declarations`), for a leader who could call all others slow would
reduce everything.

A peer without samples (the keeper, an auxiliary peer) sends V * (n - 1) * f values only, but receives V * (1 + (s - 1)
* f) from s peers with samples: as many as before where it is the only one without. A declaration names the line's
slower direction alone, so the shares do not depend on who has samples.

Where averages take r times the bytes of senders' values (`averages_of_own`), a peer that reduces the fraction f sends
V * (1 + ((n - 1) * r - 1) * f), with V the bytes of its own values.

The peer that reduces a part says what its average is, and a line's rate is a claim. So no device but the keeper reduces
more than a quarter of the values, or twice an equal share where that is more (`largest_share`), whatever it claims.
That costs time only where one or two lines are much faster than all others and the keeper, which is bound by nothing,
is away: 8 peers with lines of 200 and 7 x 10 Mbit/s then need 1.64 times as long (16 peers 1.70), with the keeper in
the group as long as ever; so does DeDLOC's 4 x 200, 8 x 100, 4 x 50, where nobody comes near the bound. A bound of a
half would make the 1.64 a 1.43 and let a liar have twice as much. (Both figures: `round_time`; it can at most be
doubled where all who average reduce.)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hivemind.p2p import PeerID

from auth.tokens import AccessToken
from peer.averaging.declarations import Declaration
from peer.config.training import Compression
from peer.reduction.findings import outvoted
from peer.reduction.sizes import AVERAGE_BYTES, CHUNK, VALUE_BYTES

PARTS_PER_REDUCER = 32
SCALE = 2**20  # values, where only proportions matter
LEAST_PART_BYTES, MOST_PART_BYTES = 2**14, 2**19
LARGEST_SHARE = 1 / 4  # of the values, that a device reduces in a group of eight or more
FASTEST = 25e6  # bytes per second (200 Mbit/s); on faster lines processors set the pace: encrypting, decoding, adding
AUXILIARY_RATE = 12.5e6  # bytes per second (100 Mbit/s): an auxiliary peer's line, of those that are still to come
ROUND_SHARE = 1 / 5  # of a step: rounds that take no more of it leave enough to computing
WORTHWHILE = 0.9  # of a round's time, or less, must be left by one more auxiliary peer
TRUSTED_ROLES = frozenset({"keeper"})  # run by the operator, as the coordinator is
TIMES_PROMISED = 2.0  # a round may take so many times what its lines promise


def believed(claim: float | None) -> float | None:
    """Return a peer's claim for its line (bytes per second) as far as it counts."""
    return None if claim is None else min(claim, FASTEST)


def largest_share(reducers: int) -> float:
    """Return the fraction of all values that an untrusted device may reduce at most, among so many reducers.

    It is at least twice an equal share, so that half of them could bear the whole and lines may differ; one or two have
    no bound.
    """
    return min(1.0, max(LARGEST_SHARE, 2 / reducers))


def reduction_shares(
    values: int,
    bandwidths: Sequence[float | None],
    reduces: Sequence[bool],
    trusted: Sequence[bool] = (),
    averages_of_own: float = 1.0,
) -> tuple[int, ...]:
    """Divide `values` among the peers that reduce, so that the round ends as soon as it can.

    `bandwidths`: bytes per second of each peer's line, the slower direction of the two; None is unlimited as far as is
    known, which counts like the fastest known line of those that may reduce. `reduces`: which peers may reduce.
    `trusted`: the peers whose share has no bound (the keeper); empty for none. `averages_of_own`: bytes of an average
    for each byte of a sender's values. Raises `ValueError` if no peer may reduce.
    """
    if not any(reduces):
        raise ValueError("nobody in the group accepts connections, so nobody can reduce")
    known = [rate for rate, may in zip(bandwidths, reduces, strict=True) if may and rate is not None]
    fastest = max(known, default=1.0) or 1.0
    rates = [(fastest if rate is None else rate) if may else 0.0 for rate, may in zip(bandwidths, reduces, strict=True)]
    if not any(rates):  # who may reduce has no line worth naming: they share alike
        rates = [float(may) for may in reduces]
    bound = largest_share(sum(rate > 0 for rate in rates))
    limits = [1.0 if is_trusted else bound for is_trusted in trusted or [False] * len(rates)]
    return _whole_shares(values, _fractions(rates, limits, averages_of_own))


def part_size(values: int, compression: Compression, group_size: int) -> int:
    """Return the size in bytes of the parts in which senders send `values` in a group of this size.

    The last part of each reducer is averaged and returned when nothing else travels any more: so the parts are small
    beside what a reducer has, but not so small that handling them takes longer than sending them. A part is of whole
    chunks, and so of whole blocks: a whole average has the blocks of its parts, and encodes again to the same values.
    """
    value_bytes = AVERAGE_BYTES[compression]
    returned = min(MOST_PART_BYTES, max(LEAST_PART_BYTES, values * value_bytes / (PARTS_PER_REDUCER * group_size)))
    chunks = int(returned / value_bytes) // CHUNK
    return round(VALUE_BYTES[compression] * CHUNK * chunks)


def round_time(
    values_bytes: float, shares: Sequence[int], bandwidths: Sequence[float | None], averages_of_own: float = 1.0
) -> float:
    """Seconds that the slowest line needs for its traffic in a round with these shares; 0.0 where no rate is known.

    `values_bytes`: of one sender's values; `averages_of_own`: the bytes of an average for each of them.
    """
    total, others = sum(shares), (len(shares) - 1) * averages_of_own - 1
    times = [
        values_bytes * (1 + others * share / total) / rate
        for share, rate in zip(shares, bandwidths, strict=True)
        if rate
    ]
    return max(times, default=0.0)


def round_limit(agreed_s: float, promised_s: float) -> float:
    """Return the seconds that a round may take: as agreed, and no fewer than its lines need with some room.

    `promised_s`: what the declared lines need (`round_time`). The members' patience follows their last rounds, which a
    peer on a slower line may have missed.
    """
    return max(agreed_s, TIMES_PROMISED * promised_s)


def missing_auxiliaries(lines: GroupLines, round_s: float, step_s: float) -> int:
    """Return how many auxiliary peers more would let a group like this one average within a fifth of a step.

    `round_s`: what the lines need for a round as they are. Each counts only as far as it shortens the round by a tenth:
    a home line that passes its own gradients, and no more, stays as slow as it is.
    """
    missing, before = 0, relative_time(lines)
    longest = before * ROUND_SHARE * step_s / round_s if round_s > 0 else math.inf
    while before > longest:
        after = relative_time(lines, missing + 1)
        if after > WORTHWHILE * before:
            break
        missing, before = missing + 1, after
    return missing


def relative_time(lines: GroupLines, more: int = 0) -> float:
    """Return the seconds of a round for each byte of one sender's values, with so many auxiliary peers more.

    Raises `ValueError` if no peer may reduce.
    """
    rates = (*lines.rates, *[AUXILIARY_RATE] * more)
    reduces = (*lines.reduces, *[True] * more)
    shares = reduction_shares(SCALE, rates, reduces, (*lines.trusted, *[False] * more), lines.averages_of_own)
    return round_time(1.0, shares, rates, lines.averages_of_own)


def _fractions(rates: Sequence[float], limits: Sequence[float], averages_of_own: float) -> list[float]:
    """The fractions that minimize the longest time, none above its limit; they sum to 1.

    The excess above a limit falls to the other peers, which then need longer; so a peer above its limit stays at it.
    """
    others = (len(rates) - 1) * averages_of_own - 1
    if others <= 0:  # two peers pass all their values whoever reduces
        return [rate / math.fsum(rates) for rate in rates]
    fractions, rest = [0.0] * len(rates), 1.0
    open_to_more = [index for index, rate in enumerate(rates) if rate > 0]
    while open_to_more:
        shares = _filled_up([rates[index] for index in open_to_more], others, rest)
        found = dict(zip(open_to_more, shares, strict=True))
        full = [index for index in open_to_more if found[index] > limits[index]]
        for index in full or open_to_more:
            fractions[index] = min(found[index], limits[index])
        if not full:
            break
        rest = max(0.0, rest - math.fsum(limits[index] for index in full))
        open_to_more = [index for index in open_to_more if index not in full]
    return fractions


def _filled_up(rates: Sequence[float], others: float, rest: float) -> list[float]:
    """Divide the fraction `rest` among these lines, by filling up the fastest first.

    With the k fastest reducing, all of them end at T = (others * rest + k) / (the sum of their rates); the k-th has a
    share if it could pass its own values in less than T.
    """
    total, time = 0.0, math.inf
    for count, rate in enumerate(sorted(rates, reverse=True), 1):
        if count > 1 and rate * time <= 1:
            break
        total += rate
        time = (others * rest + count) / total
    return [max(0.0, rate * time - 1) / others for rate in rates]


def _whole_shares(values: int, fractions: Sequence[float]) -> tuple[int, ...]:
    """Divide `values` into whole numbers in these proportions; the rest of rounding goes to the largest fraction."""
    shares = [int(values * fraction) for fraction in fractions]
    shares[max(range(len(fractions)), key=lambda index: fractions[index])] += values - sum(shares)
    return tuple(shares)


@dataclass(frozen=True)
class GroupLines:
    """The lines and roles of a group's peers, in its order, as they follow from declarations and tokens."""

    rates: tuple[float | None, ...]
    reduces: tuple[bool, ...]  # which may
    trusted: tuple[bool, ...]
    second_reducers: tuple[PeerID, ...]  # who looks after others: all with connections of their own, not over a relay
    patience_s: float = math.inf  # for the whole round
    averages_of_own: float = 1.0  # bytes of an average for each byte of a sender's values


NOBODY = GroupLines((), (), (), ())


def group_lines(peers: Sequence[PeerID], tokens: Sequence[AccessToken], said: Sequence[Declaration]) -> GroupLines:
    """Return what follows from a group's declarations, and from the tokens of its peers, in the group's order.

    A peer reduces nothing if more than half of the other members have caught it or missed its averages, or if the
    keeper has missed them, without whom there is no round. The keeper itself always has its share.
    """
    members, trusted = [token.member for token in tokens], [token.role in TRUSTED_ROLES for token in tokens]
    return GroupLines(
        rates=tuple(believed(words.rate) for words in said),
        reduces=reducing_peers([peer.to_base58() for peer in peers], members, trusted, said),
        trusted=tuple(trusted),
        second_reducers=tuple(
            peer for peer, words in zip(peers, said, strict=True) if words.takes_connections and words.reduces
        ),
        patience_s=agreed_patience(members, [words.patience_s for words in said]),
    )


def reducing_peers(
    ids: Sequence[str], members: Sequence[str], trusted: Sequence[bool], said: Sequence[Declaration]
) -> tuple[bool, ...]:
    """Return which peers of a group (peer IDs, with their members and words) may reduce; at least one can."""
    against = [{*words.accused, *words.missed} for words in said]
    out = outvoted(ids, members, against, trusted)
    kept_from = {peer for words, by_keeper in zip(said, trusted, strict=True) if by_keeper for peer in words.missed}
    out = [is_out or (peer in kept_from and not safe) for peer, is_out, safe in zip(ids, out, trusted, strict=True)]
    able = tuple(words.takes_connections and words.reduces for words in said)
    if not any(able):
        able = tuple(words.takes_connections for words in said)
    reduces = tuple(can and not is_out for can, is_out in zip(able, out, strict=True))
    return reduces if any(reduces) else able


def agreed_patience(members: Sequence[str], patience_s: Sequence[float]) -> float:
    """Return the seconds that a round may take: the median of the members' patience, each with its longest.

    All have the same limits, or a reducer that still waits for a silent sender would be missed by those who no longer
    wait for the reducer.
    """
    longest: dict[str, float] = {}
    for member, seconds in zip(members, patience_s, strict=True):
        longest[member] = max(seconds, longest.get(member, 0.0))
    return statistics.median_high(longest.values())
