"""Judgement of reports, counting of claims by receipts, and the sums of a step, without a database."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from coordinator.ledger.judgement import (
    KEPT_OTHERS,
    LEAST_SPREAD,
    SPREAD,
    Delivery,
    Facts,
    Judgement,
    KeptReceipt,
    ReportOutcome,
    ReportVerdict,
    SampleClaim,
    StepSums,
    chosen,
    count,
    judge,
    judge_lost,
    loss_sums,
    step_horizon,
    step_sums,
)
from peer.reporting.messages import CLAIM_BOUNDS, Lost, StepReport

TARGET = 100
FACTS = Facts(
    now=100.0,
    joined_at=20.0,
    current_era=1,
    last_counting_step=None,
    horizon_step=12,
    target_batch_size=TARGET,
    known=False,
    reported_already=False,
)
REPORT = StepReport(
    step=10,
    samples=50,
    loss=2.5,
    mlm_loss=2.0,
    sop_loss=0.5,
    group_size=3,
    group_samples=100,
    averaging_s=1.5,
    samples_per_second=20.0,
    lost_samples=4,
    lost_reason="out of sync",
    data_wait_s=0.1,
    elapsed_s=4.0,
)


def judged(facts: Facts = FACTS, seq: int = 1, era: int = 1, completed_at: float = 50.0, **claims: Any) -> Judgement:
    return judge(Delivery("ada-1", None, seq, replace(REPORT, era=era, **claims), completed_at), facts)


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"samples": 0, "loss": None, "mlm_loss": None, "sop_loss": None},
        {"samples": 1000},
        {"loss": 100.0},
        {"step": 12},
        {"step": 1},
        {"group_samples": None},
    ],
)
def test_plausible_claims_pass(claims: dict[str, Any]) -> None:
    """Ordinary reports, and those at the very limits, are stored, with the losses they tell of."""
    judgement = judged(**claims)
    assert judgement == Judgement(ReportOutcome.COUNTED, "", REPORT.lost, 50.0)
    assert judgement.verdict == ReportVerdict(accepted=True)


@pytest.mark.parametrize(
    "name",
    ["loss", "mlm_loss", "sop_loss", "averaging_s", "samples_per_second", "data_wait_s", "elapsed_s", "completed_at"],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_refused(name: str, value: float) -> None:
    """Not a number, or an infinite one, is named."""
    assert judged(**{name: value}).reason == f"`{name}` is not finite"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss", 100.1),
        ("loss", -0.1),
        ("mlm_loss", 101.0),
        ("sop_loss", -1.0),
        ("samples", 1001),
        ("samples", -1),
        ("step", 0),
        ("step", -1),
        ("group_size", 10_001),
        ("group_size", -1),
        ("group_samples", 2**31),
        ("averaging_s", -1.0),
        ("averaging_s", 1e9),
        ("samples_per_second", 1e8),
        ("lost_samples", 10_001),
        ("lost_samples", -1),
        ("lost_reason", "x" * 41),
        ("lost_reason", "two\nlines"),
        ("data_wait_s", -0.5),
        ("elapsed_s", 1e9),
        ("seq", -1),
        ("seq", 2**63),
        ("era", 2),
        ("era", -1),
    ],
)
def test_claims_out_of_range_are_refused(name: str, value: object) -> None:
    """One bad value refuses the report, and the reason names it."""
    judgement = judged(**{name: value})
    assert judgement.outcome is ReportOutcome.REFUSED
    assert f"`{name}`" in judgement.reason


def test_every_claim_has_a_bound() -> None:
    """A new field of the report needs one, too; losses by cause add up to a number that has."""
    assert {each.name for each in fields(StepReport)} - CLAIM_BOUNDS.keys() == {"lost"}
    for name in CLAIM_BOUNDS.keys() - {"lost_reason", "receipt"}:
        assert judged(**{name: 10**15}).outcome is ReportOutcome.REFUSED


@pytest.mark.parametrize(
    ("step", "era", "outcome"),
    [
        (12, 1, ReportOutcome.COUNTED),
        (13, 1, ReportOutcome.AHEAD),
        (10**9, 1, ReportOutcome.AHEAD),
        (12, 0, ReportOutcome.COUNTED),
        (13, 0, ReportOutcome.REFUSED),
    ],
)
def test_a_step_ahead_is_no_wrong_claim_while_its_era_lasts(step: int, era: int, outcome: ReportOutcome) -> None:
    """The swarm may reach it yet; of an era that is over nothing comes any more."""
    assert judged(step=step, era=era).outcome is outcome


def test_a_report_ahead_is_to_be_sent_again() -> None:
    """Nothing is kept of it, and the answer names the step that is known."""
    judgement = judged(step=13)
    assert judgement.verdict == ReportVerdict(
        False, "step 13 is ahead of the keeper, which knows those up to 12", ahead=True
    )
    assert (judgement.stored, judgement.refused, judgement.brings_receipt, judgement.lost) == (False, False, False, {})


def test_a_report_of_an_era_that_is_over_says_so() -> None:
    """Its step can never become true."""
    assert judged(step=13, era=0).reason == "step 13 was not reached in era 0, which is over"


def test_a_report_that_comes_again_is_accepted_again() -> None:
    """Whatever it says: it is in the ledger."""
    judgement = judged(replace(FACTS, known=True, reported_already=True), samples=-1)
    assert (judgement.verdict, judgement.stored, judgement.refused) == (ReportVerdict(accepted=True), False, False)


def test_a_second_report_of_a_step_brings_its_receipt_only() -> None:
    """A device does one part of each step; its samples are no loss, for the first report has them."""
    judgement = judged(replace(FACTS, reported_already=True))
    assert judgement == Judgement(ReportOutcome.SECOND, "step 10 was already reported by this device")
    assert (judgement.refused, judgement.brings_receipt) == (True, True)


def test_a_refused_report_is_a_loss_as_far_as_it_is_believed() -> None:
    """One device can have computed so much; its receipt is evidence of nothing."""
    judgement = judged(samples=10**6)
    assert (judgement.lost, judgement.at, judgement.brings_receipt) == ({"refused": 10 * TARGET}, FACTS.now, False)
    assert judged(loss=-1.0).lost == {"refused": REPORT.samples}


@pytest.mark.parametrize(("step", "outcome"), [(10, ReportOutcome.COUNTED), (11, ReportOutcome.UNDONE)])
def test_what_a_return_has_undone_is_stored_without_counting(step: int, outcome: ReportOutcome) -> None:
    """An earlier era counts up to the checkpoint."""
    judgement = judged(replace(FACTS, last_counting_step=10), era=0, step=step)
    assert (judgement.outcome, judgement.stored, judgement.verdict.accepted) == (outcome, True, True)


@pytest.mark.parametrize(("said", "believed"), [(-5.0, 20.0), (50.0, 50.0), (1e9, 100.0)])
def test_a_peers_clock_is_believed_between_its_joining_and_now(said: float, believed: float) -> None:
    """A step was done while the device was a member's, and not in the future."""
    assert judged(completed_at=said).at == believed


def test_losses_beside_reports_have_a_limit() -> None:
    """No device can have computed more."""
    assert judge_lost(Lost(3, {"left": 100 * TARGET}), TARGET) == ""
    assert judge_lost(Lost(3, {"left": 100 * TARGET, "late": 1}), TARGET) == "10001 lost samples are more than 10000"


@pytest.mark.parametrize(("known_for_s", "horizon"), [(0.0, 12), (0.4, 12), (1.0, 14), (60.0, 132), (-5.0, 12)])
def test_horizon_moves_with_time(known_for_s: float, horizon: int) -> None:
    """The older the knowledge, the further the swarm may have come; a clock set back takes nothing away."""
    assert step_horizon(10, known_for_s) == horizon


def claim(number: int, samples: int, *, member: int | None = None, report_id: int = 0, **known: Any) -> SampleClaim:
    """A claim by device `number`, by default its member's only one."""
    values = {"counted": None, "loss": 4.0, "era": 0, "completed_at": 10.0 + number} | known
    member_id = number if member is None else member
    return SampleClaim(report_id or number, f"device-{number}", number, member_id, samples, **values)


def receipt(number: int, samples: dict[int, int], *, member: int | None = None, keeper: bool = False) -> KeptReceipt:
    """A receipt by device `number`, by default its member's only one."""
    return KeptReceipt(number, f"device-{number}", number if member is None else member, keeper, samples)


def test_without_receipts_nothing_counts_yet() -> None:
    """Claims wait; what was counted before there were receipts stays."""
    assert count([claim(1, 30), claim(2, 20, counted=15)], []) == {1: None, 2: 15}


def test_the_keepers_receipt_decides() -> None:
    """Nobody counts more than it received, nor more than was claimed, whatever others say."""
    receipts = [receipt(9, {1: 30, 2: 5, 3: 99}, keeper=True), receipt(1, {2: 50})]
    assert count([claim(1, 30), claim(2, 50), claim(3, 7), claim(4, 8)], receipts) == {1: 30, 2: 5, 3: 7, 4: 0}


def test_a_members_own_devices_confirm_nothing() -> None:
    """The median of other members' receipts decides, the lower of two."""
    claims = [claim(1, 30, member=7), claim(2, 20)]
    assert count(claims, [receipt(3, {1: 30}, member=7)]) == {1: None, 2: 0}
    assert count(claims, [receipt(2, {1: 25, 2: 20}), receipt(4, {1: 28, 2: 18})]) == {1: 25, 2: 18}


def test_a_devices_second_claim_of_a_step_counts_nothing() -> None:
    """It reported the step in another era; the first to arrive counts."""
    receipts = [receipt(9, {1: 30}, keeper=True)]
    assert count([claim(1, 30), claim(1, 30, report_id=2, era=1)], receipts) == {1: 30, 2: 0}


def test_a_steps_sums_do_not_wait_for_receipts() -> None:
    """Samples are those that count, or those claimed while none says anything; unconfirmed claims move no time."""
    claims = [claim(1, 30), claim(2, 20), claim(3, 10, loss=None)]
    assert step_sums(claims, {1: 25, 2: None, 3: 0}, None) == StepSums(3, 11.0, 45, 100.0, 25)
    assert step_sums(claims, {1: None, 2: None, 3: None}, None) == StepSums(3, 13.0, 60, 200.0, 50)


def mean(reported: list[tuple[float, int]], before: float | None = None) -> float:
    total, samples = loss_sums(reported, before)
    return total / samples


def test_honest_losses_are_weighted_by_samples() -> None:
    """Nothing is changed where losses lie as close as devices' of one step do."""
    assert loss_sums([(5.0, 10), (6.0, 30)], None) == (230.0, 40)


def test_without_samples_there_is_no_loss() -> None:
    """Who brought nothing says nothing."""
    assert loss_sums([(5.0, 0)], 4.0) == (0.0, 0)


@pytest.mark.parametrize("lie", [0.0, 1e-9, 100.0])
@pytest.mark.parametrize("share", [1, 10, 40, 49])
def test_a_false_loss_moves_the_mean_by_its_share_of_the_spread(lie: float, share: int) -> None:
    """Whatever it is, and however many samples less than half were really brought with it."""
    moved = mean([(4.0, (100 - share) // 2), (4.0, 100 - share - (100 - share) // 2), (lie, share)]) - 4.0
    assert abs(moved) <= (SPREAD * 4.0 + LEAST_SPREAD) * share / 100 + 1e-9


def test_of_two_equal_halves_the_one_near_the_step_before_is_right() -> None:
    """Two devices with the same samples and different losses: the curve goes on where it was."""
    assert mean([(100.0, 8), (4.0, 8)], before=4.2) < 4.6
    assert mean([(0.0, 8), (4.0, 8)], before=4.2) > 3.4


def test_a_model_that_blows_up_is_seen() -> None:
    """When all losses jump there is nothing to correct."""
    assert mean([(60.0, 8), (66.0, 8), (58.0, 4)], before=4.0) > 58.0


def test_the_lot_knows_no_order() -> None:
    """Which receipts stay follows from the step and the members, and over the steps everybody's do."""
    receipts = [KeptReceipt(number, f"device-{number}", number, False, {}) for number in range(8)]
    drawn = [chosen(step, receipts) for step in range(60)]
    assert drawn == [chosen(step, receipts[::-1]) for step in range(60)]
    assert set().union(*drawn) == set(range(8))
    assert all(len(each) == KEPT_OTHERS for each in drawn)


def test_the_lot_knows_no_number_of_devices() -> None:
    """A member with a hundred devices is drawn in the same steps as with one."""
    others = [KeptReceipt(member, f"device-{member}", member, False, {}) for member in range(8)]
    more = [KeptReceipt(100 + number, f"more-{number}", 0, False, {}) for number in range(100)]
    for step in range(60):
        drawn = chosen(step, others + more)
        assert (0 in chosen(step, others)) == any(receipt == 0 or receipt >= 100 for receipt in drawn)
        assert len(drawn) == KEPT_OTHERS
