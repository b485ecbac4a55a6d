"""The shares of a group's peers in the reduction, computed from the declared bandwidths.

DeDLOC's adaptive averaging (Diskin et al. 2021, arXiv 2106.10207, section 3.2): in a group of n
peers that average V values, a peer that reduces the fraction f sends and receives V * (1 + (n - 2)
* f) values. The round ends with the traffic of the slowest connection. All peers must compute the
same shares, so the shares have a closed form instead of a solver's result, and depend only on
tokens and on the declarations collected by the leader. Declarations are signed
(`peer.averaging.declarations`); otherwise a leader could declare all others slow and reduce
everything.

A peer without samples (the keeper, an auxiliary peer) sends only V * (n - 1) * f values, but
receives V * (1 + (s - 1) * f) from s peers with samples: the same as above if all others have
samples. A declaration contains only the slower direction, so shares do not depend on samples.

A reducer determines the averages of its parts, and its bandwidth is only a claim. Except for the
keeper, no device therefore reduces more than a quarter of the values, or two equal shares if that
is more (`largest_share`). If the keeper, which has no limit, is absent, and one or two connections
are much faster than all others, a round then takes up to twice as long (`round_time`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from auth.tokens import AccessToken
from peer.averaging.declarations import Declaration
from peer.config.training import Compression
from peer.reduction.findings import outvoted
from peer.reduction.sizes import VALUE_BYTES

PARTS_PER_REDUCER = 32
SCALE = 2**20  # number of values in estimates, where only proportions matter
LEAST_PART_BYTES, MOST_PART_BYTES = 2**14, 2**19
PART_VALUES = 4096  # every part but a reducer's last is a multiple of this number of values
LARGEST_SHARE = 1 / 4  # largest fraction of the values for one device in a group of eight or more
QUICK_S, QUICK_REDUCERS = 0.25, 5  # so many reducers, with the keeper, suffice for a round of so few seconds
HOME_RATE = 1.25e6  # bytes/s (10 Mbit/s) assumed for a line that is not known yet
FASTEST = 25e6  # bytes/s (200 Mbit/s); above that, encryption and decoding are the bottleneck
AUXILIARY_RATE = 12.5e6  # bytes/s (100 Mbit/s) assumed for a future auxiliary peer
ROUND_SHARE = 1 / 5  # fraction of a step that a round may take, which leaves enough time for computing
WORTHWHILE = 0.9  # maximum ratio of round durations with and without one more auxiliary peer
TRUSTED_ROLES = frozenset({"keeper"})  # roles run by the operator, like the coordinator
SENDERS_SHARE, REDUCERS_SHARE = 1 / 3, 2 / 3  # shares of the time limit to wait for a sender's or reducer's next part
TIMES_PROMISED = 2.0  # permitted duration of a round relative to the estimate


def believed(claim: float | None) -> float | None:
    """Return a peer's claimed bandwidth (bytes per second), limited to `FASTEST`."""
    return None if claim is None else min(claim, FASTEST)


def largest_share(reducers: int) -> float:
    """Return the largest fraction of all values for an untrusted device, given the number of reducers.

    The limit is at least two equal shares, so half of the reducers can reduce everything. One or
    two reducers have no limit.
    """
    return min(1.0, max(LARGEST_SHARE, 2 / reducers))


def reduction_shares(
    values: int,
    bandwidths: Sequence[float | None],
    reduces: Sequence[bool],
    trusted: Sequence[bool] = (),
    *,
    bound: float | None = None,
) -> tuple[int, ...]:
    """Divide `values` among the reducers to end the round as early as possible.

    `bandwidths`: bytes per second of each peer's slower direction; None (unlimited) is treated as
    the fastest known reducer's. `reduces`: which peers may reduce. `trusted`: peers without a limit
    (the keeper); empty: none. `bound`: the limit, by default `largest_share` of these reducers.
    Raises `ValueError` if no peer may reduce.
    """
    if not any(reduces):
        raise ValueError("nobody in the group accepts connections, so nobody can reduce")
    known = [rate for rate, may in zip(bandwidths, reduces, strict=True) if may and rate is not None]
    fastest = max(known, default=1.0) or 1.0
    rates = [(fastest if rate is None else rate) if may else 0.0 for rate, may in zip(bandwidths, reduces, strict=True)]
    if not any(rates):  # no known positive rate: equal shares
        rates = [float(may) for may in reduces]
    bound = bound or largest_share(sum(rate > 0 for rate in rates))
    limits = [1.0 if is_trusted else bound for is_trusted in trusted or [False] * len(rates)]
    return _whole_shares(values, _fractions(rates, limits))


def planned_shares(values: int, size_bytes: float, lines: GroupLines) -> tuple[int, ...]:
    """Divide `values` among the keeper and few others if the round is quick all the same, otherwise among all.

    Each reducer costs each peer a stream and an attestation, which take longer than few values on
    the lines. `size_bytes`: one sender's bytes. Raises `ValueError` if no peer may reduce.
    """
    rates = [HOME_RATE if rate is None else rate for rate in lines.rates]
    able = [index for index, may in enumerate(lines.reduces) if may and rates[index] > 0]
    few = sorted(able, key=lambda index: (not lines.trusted[index], -rates[index]))[:QUICK_REDUCERS]
    if few and lines.trusted[few[0]]:
        reduces = [index in few for index in range(len(rates))]
        shares = reduction_shares(values, lines.rates, reduces, lines.trusted, bound=largest_share(len(able)))
        if shares[few[0]] and round_time(size_bytes, shares, rates) <= QUICK_S:
            return shares
    return reduction_shares(values, lines.rates, lines.reduces, lines.trusted)


def part_size(values: int, compression: Compression, group_size: int) -> int:
    """Return the size in bytes of the parts into which senders split `values`.

    The last part of each reducer is returned when nothing else is in transit. Parts are therefore
    small compared with a reducer's share, but large enough to limit the overhead. They consist of
    whole blocks (`peer.reduction.compression`), so an average can be encoded again without loss.
    """
    value_bytes = VALUE_BYTES[compression]
    most = min(MOST_PART_BYTES, max(LEAST_PART_BYTES, values * value_bytes / (PARTS_PER_REDUCER * group_size)))
    return round(value_bytes * (int(most / value_bytes) // PART_VALUES * PART_VALUES))


def round_time(values_bytes: float, shares: Sequence[int], bandwidths: Sequence[float | None]) -> float:
    """Return the seconds that the slowest connection needs for a round; 0.0 if no rate is known.

    `values_bytes`: one sender's bytes.
    """
    total, others = sum(shares), len(shares) - 2
    times = [
        values_bytes * (1 + others * share / total) / rate
        for share, rate in zip(shares, bandwidths, strict=True)
        if rate
    ]
    return max(times, default=0.0)


def round_limit(agreed_s: float, promised_s: float) -> float:
    """Return a round's time limit: the agreed limit, but at least twice the expected duration.

    `promised_s`: the expected duration, from the declared rates (`round_time`). The agreed limit is
    based on earlier rounds, possibly without a member with a slower connection.
    """
    return max(agreed_s, TIMES_PROMISED * promised_s)


def missing_auxiliaries(lines: GroupLines, round_s: float, step_s: float) -> int:
    """Return the number of further auxiliary peers that would shorten rounds to a fifth of a step.

    `round_s`: a round's present duration. A peer is added only if it shortens the round by a tenth,
    because a home connection that carries only its own gradients remains the bottleneck.
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
    """Return a round's seconds per byte of a sender's values, with `more` further auxiliary peers.

    Raises `ValueError` if no peer may reduce.
    """
    rates = (*lines.rates, *[AUXILIARY_RATE] * more)
    reduces = (*lines.reduces, *[True] * more)
    shares = reduction_shares(SCALE, rates, reduces, (*lines.trusted, *[False] * more))
    return round_time(1.0, shares, rates)


def _fractions(rates: Sequence[float], limits: Sequence[float]) -> list[float]:
    """Return the fractions, summing to 1, that minimize the longest time within the limits.

    A limited peer's excess goes to the others, which then take longer, so the peer stays limited.
    """
    others = len(rates) - 2
    if others <= 0:  # two peers: the choice of reducers does not change the traffic
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


def _filled_up(rates: Sequence[float], others: int, rest: float) -> list[float]:
    """Divide the fraction `rest` of the values among peers with these rates, fastest first.

    With the k fastest peers reducing, all end at T = (others * rest + k) / (sum of their rates).
    The k-th peer gets a share if it could send its own values in less than T.
    """
    total, time = 0.0, math.inf
    for count, rate in enumerate(sorted(rates, reverse=True), 1):
        if count > 1 and rate * time <= 1:
            break
        total += rate
        time = (others * rest + count) / total
    return [max(0.0, rate * time - 1) / others for rate in rates]


def _whole_shares(values: int, fractions: Sequence[float]) -> tuple[int, ...]:
    """Divide `values` into whole numbers in these proportions; the largest share absorbs the rounding."""
    shares = [int(values * fraction) for fraction in fractions]
    shares[max(range(len(fractions)), key=lambda index: fractions[index])] += values - sum(shares)
    return tuple(shares)


@dataclass(frozen=True)
class GroupLines:
    """The connections and roles of a group's peers, in the group's order, from declarations and tokens."""

    rates: tuple[float | None, ...]
    reduces: tuple[bool, ...]  # whether each peer may reduce
    trusted: tuple[bool, ...]
    second_reducers: tuple[str, ...]  # directly reachable peers, which may audit other reducers
    patience_s: float = math.inf  # time limit of the whole round


NOBODY = GroupLines((), (), (), ())


def group_lines(peers: Sequence[str], tokens: Sequence[AccessToken], said: Sequence[Declaration]) -> GroupLines:
    """Return the connections of a group (peer IDs in its order), from its declarations and tokens.

    A peer reduces nothing if more than half of the other members have caught it cheating or
    received no averages from it, or if the keeper, which every round needs, received none. The
    keeper always has a share.
    """
    members, trusted = [token.member for token in tokens], [token.role in TRUSTED_ROLES for token in tokens]
    return GroupLines(
        rates=tuple(believed(words.rate) for words in said),
        reduces=reducing_peers(peers, members, trusted, said),
        trusted=tuple(trusted),
        second_reducers=tuple(
            peer for peer, words in zip(peers, said, strict=True) if words.takes_connections and words.reduces
        ),
        patience_s=agreed_patience(members, [words.patience_s for words in said]),
    )


@dataclass(frozen=True)
class RoundPlan:
    """A group's shares of the reduction, and its time limit, which are equal at all its peers."""

    lines: GroupLines
    shares: tuple[int, ...]  # values that each peer reduces, in the group's order
    promised_s: float  # time that the round needs by the declared bandwidths
    limit_s: float

    @property
    def sender_s(self) -> float:
        """The seconds for which a reducer waits for a sender's next part."""
        return self.limit_s * SENDERS_SHARE

    @property
    def reducer_s(self) -> float:
        """The seconds for which a sender waits for a reducer's next average, which itself waits for senders."""
        return self.limit_s * REDUCERS_SHARE

    @classmethod
    def of(
        cls,
        peers: Sequence[str],
        tokens: Sequence[AccessToken],
        said: Sequence[Declaration],
        values: int,
        size_bytes: float,
    ) -> RoundPlan:
        """Plan the round of a group (peer IDs in its order), from its tokens and declarations.

        `values`: the number of averaged values; `size_bytes`: of a peer's gradients. Raises `ValueError` if no
        peer may reduce.
        """
        lines = group_lines(peers, tokens, said)
        shares = planned_shares(values, size_bytes, lines)
        promised_s = round_time(size_bytes, shares, lines.rates)
        return cls(lines, shares, promised_s, round_limit(lines.patience_s, promised_s))


def reducing_peers(
    ids: Sequence[str], members: Sequence[str], trusted: Sequence[bool], said: Sequence[Declaration]
) -> tuple[bool, ...]:
    """Return whether each peer may reduce, from IDs, members and declarations; at least one may."""
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
    """Return a round's time limit: the median, over the members, of each member's longest limit.

    With different limits, some peers would give up on a reducer that still awaits a silent sender,
    and treat the reducer as missing.
    """
    longest: dict[str, float] = {}
    for member, seconds in zip(members, patience_s, strict=True):
        longest[member] = max(seconds, longest.get(member, 0.0))
    return statistics.median_high(longest.values())
