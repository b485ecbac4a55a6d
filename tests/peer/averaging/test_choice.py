"""The choice of the way to average."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from peer.averaging.choice import (
    AMPLE,
    SUFFICIENT,
    TOO_LITTLE,
    WORTH_SHUTTING_OUT,
    RoundPace,
    choose,
    reconsider,
)
from peer.averaging.shares import NOBODY, GroupLines
from peer.averaging.ways import DENSE, LOW_RANK, AveragingWay, fewest_bytes, way_of, ways_of
from peer.config.training import Averaging
from peer.reduction.sizes import values_sent

NETWORK = Path(__file__).parents[3] / "docs" / "operators" / "network.md"
SHAPES = ((16_000, 128), (128, 512), (512, 512), (512, 2048), (2048, 512), (512,))
MBIT = 125_000.0
FLOAT16, EIGHT_BITS = DENSE
COMMON = ways_of(Averaging())
rates = st.lists(st.none() | st.floats(1e4, 1e8), min_size=1, max_size=12)


def lines(*rates: float | None, keeper: float | None = None) -> GroupLines:
    """The keeper, and volunteers with these lines who all may reduce."""
    return GroupLines((keeper, *rates), (True,) * (1 + len(rates)), (True, *[False] * len(rates)), ())


def pace(
    group: GroupLines, batch_s: float = 10.0, shapes: Any = SHAPES, waiting: int = 0, **averaging: Any
) -> RoundPace:
    """Volunteers of one speed; the last `waiting` of them stand by."""
    patient = Averaging(**{"averaging_timeout_s": 1e6} | averaging)
    speeds = tuple(float(not is_trusted) for is_trusted in group.trusted)
    values = cache(lambda rank: values_sent(shapes, rank))
    return RoundPace(patient, values, group, speeds, batch_s, sum(speeds) - waiting)


def homes(mbit: float, **keys: Any) -> RoundPace:
    """Four volunteers with such lines."""
    return pace(lines(*[mbit * MBIT] * 4), **keys)


def test_the_losses_are_those_of_the_guide() -> None:
    """Each way's ratio stands in the guide's table, in the column of the steps that it is chosen for."""
    table = {}
    for line in NETWORK.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 4 and cells[0].startswith("`") and "," not in cells[0]:
            table[cells[0].strip("`")] = cells[2:]
    for way in COMMON:
        assert re.findall(r"^× ([\d.]+)", table[str(way)][0]) == [f"{way.loss:.3f}"]
    for way in DENSE:
        assert re.findall(r"^× ([\d.]+)", table[str(way)][1]) == [f"{way.loss:.3f}"]
    assert [way.loss for way in COMMON] == sorted(way.loss for way in COMMON)


def test_the_ways_keep_the_rules_of_the_run_file() -> None:
    """Clipping and local steps leave PowerSGD out."""
    clipping, local = Averaging(aggregation="centered_clipping"), Averaging(local_steps=8)
    assert ways_of(Averaging(compression="auto")) == DENSE + LOW_RANK
    assert ways_of(clipping) == ways_of(local) == DENSE
    for averaging in (Averaging(), clipping, local):
        for way in ways_of(averaging):
            content = averaging.model_dump() | way.keys
            assert way_of(Averaging.model_validate(content)) == way


def test_fast_lines_send_sixteen_bits_and_slow_ones_less() -> None:
    """The way is the first that leaves nine tenths of the time, whose number is in the reason."""
    fast, slow = choose(homes(1000), COMMON), choose(homes(20), COMMON)
    assert fast.way == FLOAT16
    assert fast.why.startswith("`float16`: a round takes ")
    assert slow.way in LOW_RANK
    assert slow.why.startswith(f"`{slow.way}`: a round takes ")
    assert "`float16` would leave " in slow.why
    assert "after 10.0 s of training" in slow.why


def test_the_reason_says_that_a_line_is_too_slow_for_sixteen_bits() -> None:
    """In place of what they would leave to those whose lines pass them, who may be none."""
    found = choose(pace(lines(*[15 * MBIT] * 4), 1.0, LARGE, **USUAL, powersgd_rank=16), COMMON)
    assert found.way == LOW_RANK[-1]
    assert "of that time to training; a present line is too slow for `float16`, and no way leaves 90 %." in found.why


def test_where_no_way_suffices_the_best_one_is_chosen() -> None:
    """The reason says so."""
    found = choose(homes(0.1), COMMON)
    assert found.way == LOW_RANK[-1]
    assert found.why.endswith("and no way leaves 90 %.")


def test_delay_hides_rounds_that_are_shorter_than_a_batch() -> None:
    """A round as long as a batch costs half the time, and with delay nothing."""
    late = homes(10, delay=True)
    batch_s = late.round_s(FLOAT16)
    late, waiting = replace(late, batch_s=batch_s), homes(10, batch_s=batch_s)
    assert waiting.utilisation(FLOAT16) == pytest.approx(0.5)
    assert late.utilisation(FLOAT16) == pytest.approx(1.0)
    assert choose(late, COMMON).way == FLOAT16
    assert "beside" in choose(late, COMMON).why


@pytest.mark.parametrize("group", [NOBODY, lines(), lines(None, None), lines(keeper=MBIT)])
def test_without_known_lines_of_several_peers_nothing_is_compressed_further(group: GroupLines) -> None:
    """An empty group, one peer, and lines of unknown rates limit no round."""
    found = choose(pace(group), COMMON)
    assert (found.way, found.why) == (FLOAT16, "`float16`: no known line limits the rounds.")


def test_a_model_without_large_matrices_has_no_use_for_factors() -> None:
    """PowerSGD would send its tensors as they are, so the fewest bytes are those of 8 bits."""
    assert choose(homes(0.1, shapes=((1_000_000,), (4, 4))), COMMON).way == EIGHT_BITS


def test_a_claim_of_almost_no_line_decides_nothing() -> None:
    """Its peer stands by in the run, as an honest one does."""
    usual, group = {"averaging_timeout_s": 60.0}, lines(*[1000 * MBIT] * 4)
    beside = lines(*[1000 * MBIT] * 4, 100.0, 0.0)
    assert choose(pace(beside, waiting=2, **usual), COMMON) == choose(pace(group, **usual), COMMON)


@pytest.mark.parametrize("batch_s", [math.nan, 0.0, -1.0])
def test_no_pace_has_an_impossible_batch(batch_s: float) -> None:
    """Such a time is refused, not compared."""
    with pytest.raises(ValueError, match="batches of"):
        homes(10, batch_s=batch_s)


@pytest.mark.parametrize("rate", [math.nan, math.inf, -1.0])
def test_no_pace_has_an_impossible_line(rate: float) -> None:
    """Such a rate is refused, not compared."""
    with pytest.raises(ValueError, match="bytes per second"):
        pace(lines(MBIT, rate))


@given(rates, st.floats(1e-3, 1e5), st.booleans())
def test_the_choice_is_never_worse_than_sixteen_bits(rates: list[float | None], batch_s: float, delay: bool) -> None:
    """By the promised rounds; and what it leaves to training is a share of the time."""
    found = pace(lines(*rates), batch_s, delay=delay)
    chosen = found.utilisation(choose(found, COMMON).way)
    assert 0 < chosen <= 1
    assert chosen >= found.utilisation(FLOAT16)
    assert chosen >= SUFFICIENT or chosen == max(map(found.utilisation, COMMON))


@given(rates, st.floats(1e-3, 1e5), st.floats(1.0, 100.0))
def test_faster_lines_never_cost_more_of_the_loss(rates: list[float | None], batch_s: float, times: float) -> None:
    """Where all lines are faster by a factor, the chosen way stands no later in the order."""
    faster = [None if rate is None else times * rate for rate in rates]
    slow, fast = (COMMON.index(choose(pace(lines(*each), batch_s), COMMON).way) for each in (rates, faster))
    assert fast <= slow


@given(rates, st.floats(1e-3, 1e5), st.sampled_from(COMMON))
def test_a_change_is_worth_it_and_is_the_last(rates: list[float | None], batch_s: float, now: AveragingWay) -> None:
    """It mends too little training by a tenth, or returns with ample time; then nothing is left to change."""
    found = pace(lines(*rates), batch_s)
    change = reconsider([found], COMMON, now)
    if change is None:
        return
    before, after = found.utilisation(now), found.utilisation(change.way)
    if before < TOO_LITTLE:
        assert after >= 1.1 * before
    else:
        assert after >= AMPLE
        assert COMMON.index(change.way) < COMMON.index(now)
    assert reconsider([found], COMMON, change.way) is None


def test_a_way_that_was_not_measured_is_chosen_anew() -> None:
    """An operator's rank of 32, given back to the choice, is no way of its own."""
    found = reconsider([homes(1000)], COMMON, AveragingWay("float16", 32))
    assert found is not None
    assert found.way == FLOAT16


LARGE = ((32_000, 768), *[(768, 768)] * 48)  # 53 million values: 106 MB in 16 bits
USUAL = {"averaging_timeout_s": 60.0}
RANK_16 = AveragingWay("float16", 16)


@pytest.mark.parametrize(
    ("averaging", "mbit", "expected"),
    [
        ({"compression": "auto", "delay": True}, 15, None),
        ({"compression": "auto"}, 15, None),
        ({"powersgd_rank": 16}, 4, None),
        ({"powersgd_rank": 8}, 4, RANK_16),
        ({"powersgd_rank": 16}, 1000, FLOAT16),
    ],
)
def test_no_run_changes_to_what_its_lines_do_not_pass_in_time(
    averaging: dict[str, Any], mbit: float, expected: AveragingWay | None
) -> None:
    """However long a batch takes: all peers would stand by, and the run would wait for ever."""
    found = pace(lines(*[mbit * MBIT] * 4), 3000.0, LARGE, **USUAL | averaging)
    change = reconsider([found], COMMON, way_of(found.averaging))
    assert (change and change.way) == expected


def test_a_run_without_a_counted_line_keeps_its_way() -> None:
    """The keeper alone, or volunteers that all stand by, tell nothing of the lines to come."""
    for group in NOBODY, lines(), lines(100.0, 100.0):
        assert reconsider([pace(group, 10.0, LARGE, **USUAL)], COMMON, EIGHT_BITS) is None


def test_where_every_way_is_too_slow_the_fewest_bytes_are_chosen() -> None:
    """8 bits with factors pass, which are no way of the order."""
    found = pace(lines(0.12 * MBIT), 10.0, LARGE, **USUAL, compression="8bit-blockwise", powersgd_rank=4)
    assert not any(map(found.contribution, COMMON))
    assert choose(found, COMMON).way == LOW_RANK[-1]


CODES_OF_8_BITS = {"compression": "auto", **USUAL}
HOME = 5 * MBIT  # the uplink of a home: too slow for 8 bits of the large model


def test_volunteers_who_stand_by_are_let_in_by_a_way_that_their_lines_pass() -> None:
    """The reason names them; those who trained before lose less than the others bring."""
    mixed = pace(lines(*[30 * MBIT] * 2, *[HOME] * 2), 300.0, LARGE, waiting=2, **CODES_OF_8_BITS)
    assert mixed.volunteers(EIGHT_BITS) == 2
    found = reconsider([mixed], COMMON, EIGHT_BITS)
    assert found is not None
    assert mixed.volunteers(found.way) == 4
    assert found.why.startswith(
        f"`{found.way}`: 2 volunteers whose lines are too slow for `8bit-blockwise` can take part; a round takes "
    )
    assert "after 150.0 s of training" in found.why
    now = replace(mixed, averaging=Averaging(**USUAL, **found.way.keys))
    assert reconsider([now], COMMON, found.way) is None


def test_a_line_that_costs_the_others_more_than_it_brings_is_not_let_in() -> None:
    """Twenty volunteers with short batches would wait most of their time for it."""
    found = pace(lines(*[1000 * MBIT] * 20, 0.2 * MBIT), 5.0, LARGE, waiting=1, **CODES_OF_8_BITS)
    assert found.volunteers(LOW_RANK[-1]) == 21
    assert found.volunteers(choose(found, COMMON).way) == 20
    change = reconsider([found], COMMON, EIGHT_BITS)
    assert change is None or found.volunteers(change.way) == 20


def test_a_line_that_was_there_first_is_shut_out_only_for_much() -> None:
    """By the last groups alike, when a finer way may be chosen; then it is not let in again."""
    first = pace(lines(*[1000 * MBIT] * 20, 0.2 * MBIT), 5.0, LARGE, **USUAL, powersgd_rank=4)
    beside = pace(lines(0.2 * MBIT), 100.0, LARGE, **USUAL, powersgd_rank=4)
    assert reconsider([beside, first], COMMON, LOW_RANK[-1]) is None
    assert reconsider([first, first], COMMON, LOW_RANK[-1], may_return=False) is None
    found = reconsider([first, first], COMMON, LOW_RANK[-1])
    assert found is not None
    assert first.volunteers(found.way) == 20
    assert "1 volunteer stands by, whose line is too slow for it: the others train much more without" in found.why
    batch_s = first.round_and_batch_s(found.way)[1]
    after = replace(first, averaging=Averaging(**USUAL, **found.way.keys), batch_s=batch_s, present_speed=20.0)
    again = reconsider([after], COMMON, found.way)
    assert again is None or after.volunteers(again.way) == 20


def test_slow_devices_decide_less_where_speeds_are_known() -> None:
    """One card trains three hundred times as fast as each of the laptops, whose lines would hold it up."""
    alike = pace(lines(1000 * MBIT, *[0.2 * MBIT] * 12), 50.0, LARGE, **CODES_OF_8_BITS)
    speeds = (0.0, 300.0, *[1.0] * 12)
    known = replace(alike, speeds=speeds, present_speed=sum(speeds), batch_s=1.0)
    assert alike.volunteers(choose(alike, COMMON).way) == 13
    assert known.volunteers(choose(known, COMMON).way) == 1


def test_where_nobody_trains_the_first_way_that_all_pass_is_chosen() -> None:
    """No batch has been computed, so only the lines count."""
    waiting = pace(lines(HOME, HOME, 100.0), math.inf, LARGE, waiting=3, **CODES_OF_8_BITS)
    found = reconsider([waiting], COMMON, EIGHT_BITS)
    assert found is not None
    assert found.way == LOW_RANK[0]
    assert re.fullmatch(
        r"`powersgd_rank: 16`: 2 volunteers whose .* can take part; a round takes [\d.]+ s\.", found.why
    )


@given(rates, rates, st.floats(1e-3, 1e5) | st.just(math.inf), st.booleans())
def test_a_change_for_those_who_stand_by_makes_all_together_train_more(
    present: list[float | None], waiting: list[float | None], batch_s: float, delay: bool
) -> None:
    """None of the others is shut out, unless that makes for much more; and the next look does not undo the change."""
    group = pace(lines(*present, *waiting), batch_s, LARGE, delay=delay, **CODES_OF_8_BITS)
    found = replace(group, present_speed=float(group.volunteers(EIGHT_BITS)))
    change = reconsider([found], COMMON, EIGHT_BITS)
    if change is None:
        return
    before, after = found.contribution(EIGHT_BITS), found.contribution(change.way)
    if found.volunteers(change.way) > found.volunteers(EIGHT_BITS):
        assert after > before
    if found.shuts_out(change.way):
        assert after >= WORTH_SHUTTING_OUT * before
    now = replace(
        found,
        averaging=found.averaging.model_copy(update=change.way.keys),
        present_speed=found.speed(change.way),
        batch_s=found.round_and_batch_s(change.way)[1],
    )
    again = reconsider([now], COMMON, change.way)
    assert again is None or again.way != EIGHT_BITS


def test_the_fewest_bytes_are_those_of_the_ways_that_a_run_may_change_to() -> None:
    """A run that names its code keeps it; factors that save nothing leave 8 bits."""
    model, vector = torch.nn.Linear(512, 512, bias=False), torch.nn.LayerNorm(512)
    auto = Averaging(compression="auto")
    assert fewest_bytes(auto, model) == 2 * 4 * (512 + 512)
    assert fewest_bytes(Averaging(), model) == 2 * 512 * 512
    assert fewest_bytes(auto, vector) == round(1024 * (1 + 4 / 128))


def test_a_return_asks_all_of_the_newest_groups() -> None:
    """A peer that is missing from one group may be in the next one; and a return may have to wait."""
    fast, slow = homes(1000), homes(20)
    assert reconsider([slow, fast], COMMON, RANK_16) is None
    assert reconsider([fast, fast], COMMON, RANK_16, may_return=False) is None
    found = reconsider([fast, fast], COMMON, RANK_16)
    assert found is not None
    assert found.way == FLOAT16
