"""The ledger: each report counted once, and the right ones undone; many in one transaction come to the same."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from sqlalchemy import BigInteger, Float, Integer, String, func, select

from auth.errors import RequestError
from auth.receipts import MAX_COUNT
from coordinator.checkpoints.validations import record_validation, validations
from coordinator.ledger.judgement import Delivery, ReportVerdict
from coordinator.ledger.keeper_status import read_swarm_status
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.reading import StepRow
from coordinator.ledger.recorded_checkpoints import checkpoints, record_checkpoint
from coordinator.store.engine import Database
from coordinator.store.ledger_models import LostSamples
from coordinator.store.locks import Lock, beside_others
from coordinator.store.models import Evaluation, Receipt, Refusal, Report
from peer.config.run import RunConfig
from peer.protocol.control_pb2 import StepReport as StepReportMessage
from peer.reporting.messages import CLAIM_BOUNDS, Bound, StepReport
from peer.reporting.wire import report_from_wire
from tests.support.clocks import Clock
from tests.support.ledgers import ACCEPTED, CONFIG, REPORTERS, TARGET, add_members, confirm, deliver, keeper_at, record
from tests.support.receipts import receipt_by
from tests.support.reports import report
from tests.support.served_page import validation_row
from tests.support.stores import empty_store, let_others_wait

pytestmark = pytest.mark.usefixtures("members")


def test_step_is_the_sum_of_its_reports(ledger: Ledger) -> None:
    """Samples add up, and the loss is weighted by samples."""
    assert record(ledger, "ada-1", 1, samples=30, loss=2.0) == ACCEPTED
    assert record(ledger, "bob-1", 1, samples=10, loss=2.4) == ACCEPTED
    assert ledger.steps() == [
        StepRow(step=1, samples=40, loss=pytest.approx(2.1), devices=2, completed_at=1001.0, target_batch_size=TARGET)
    ]


def test_a_step_is_completed_with_its_last_device(ledger: Ledger) -> None:
    """Whatever the order in which the reports arrive."""
    for device, completed_at in (("ada-1", 1002.0), ("bob-1", 1005.0), ("ada-2", 1003.0)):
        deliver(ledger, device, None, 1, report(1), completed_at)
    assert ledger.steps()[0].completed_at == 1005.0


def test_reports_without_a_loss_do_not_move_it(ledger: Ledger) -> None:
    """A peer without samples has no say about the loss, and a step without any loss has none."""
    record(ledger, "ada-1", 1, samples=0, loss=None)
    assert ledger.steps()[0].loss is None
    record(ledger, "bob-1", 1, samples=10, loss=3.0)
    assert (ledger.steps()[0].loss, ledger.steps()[0].devices) == (3.0, 2)


def test_refused_report_is_counted_as_refused(ledger: Ledger, database: Database) -> None:
    """A claim that cannot be true changes no step, and the operator sees who made it and why it was refused."""
    verdict = record(ledger, "bob-1", 1, loss=math.nan)
    assert (verdict.accepted, ledger.steps(), ledger.contributions()[0].samples) == (False, [], 0)
    with database() as session:
        refusal = session.scalars(select(Refusal)).one()
    assert (refusal.kind, refusal.device_id, refusal.reason) == ("report", "bob-1", verdict.reason)


def test_a_step_ahead_of_the_keeper_waits_until_it_is_known(ledger: Ledger, database: Database, clock: Clock) -> None:
    """While the keeper stands still the swarm may go on: a report more than two steps ahead is for later."""
    keeper_at(database, step=24, now=clock.now)
    assert record(ledger, "ada-1", 26) == ACCEPTED
    verdict = record(ledger, "ada-1", 27)
    assert (verdict.accepted, verdict.ahead) == (False, True)
    keeper_at(database, step=25, now=clock.now)
    assert record(ledger, "ada-1", 27) == ACCEPTED
    assert record(ledger, "ada-1", 27) == ACCEPTED
    assert [(row.step, row.samples) for row in ledger.steps()] == [(26, 10), (27, 10)]


def test_who_is_ahead_leaves_no_trace(ledger: Ledger, database: Database, clock: Clock) -> None:
    """Steps that nobody can have reached fill neither the ledger nor the records of refusals, however many come."""
    keeper_at(database, step=24, now=clock.now)
    assert all(record(ledger, "bob-1", 10**9 + step).ahead for step in range(5))
    assert (ledger.steps(), ledger.last_step()) == ([], 0)
    with database() as session:
        for table in (Report, Refusal, LostSamples):
            assert session.scalar(select(func.count()).select_from(table)) == 0


def test_what_is_wrong_with_a_report_does_not_wait(ledger: Ledger, database: Database, clock: Clock) -> None:
    """A report that is ahead and could never be true is refused for good."""
    keeper_at(database, step=24, now=clock.now)
    verdict = record(ledger, "bob-1", 30, loss=math.nan)
    assert (verdict.accepted, verdict.ahead) == (False, False)


def test_a_step_that_its_era_did_not_reach_is_refused_for_good(
    ledger: Ledger, database: Database, clock: Clock
) -> None:
    """A report that was ahead when the run went back can never become true; the same step of the new era can."""
    keeper_at(database, step=24, now=clock.now)
    assert record(ledger, "ada-1", 30).ahead
    ledger.roll_back(20)
    verdict = record(ledger, "ada-1", 30)
    assert (verdict.accepted, verdict.ahead) == (False, False)
    assert "era 0" in verdict.reason
    assert record(ledger, "ada-1", 30, seq=31, era=1).ahead


def test_reports_of_a_time_without_keeper_are_accepted(ledger: Ledger, database: Database, clock: Clock) -> None:
    """While the keeper was away the swarm trained on: its steps are plausible for the time that passed."""
    keeper_at(database, step=10, now=clock.now)
    clock.now += 600
    assert all(record(ledger, "ada-1", step).accepted for step in range(11, 200))


def test_clock_of_a_peer_cannot_lead_ours(ledger: Ledger, clock: Clock) -> None:
    """A completion time in the future becomes now."""
    deliver(ledger, "ada-1", None, 1, report(1), completed_at=clock.now + 1e6)
    assert ledger.steps()[0].completed_at == clock.now


def test_roll_back_undoes_the_later_steps(ledger: Ledger, database: Database, clock: Clock) -> None:
    """After a return to a checkpoint the undone steps are gone, their reports kept, and the work can be done again."""
    keeper_at(database, step=3, now=clock.now)
    for step in (1, 2, 3):
        record(ledger, "ada-1", step, samples=step)
        confirm(ledger, step, ada_1=step)
    assert ledger.roll_back(1) == 1 == ledger.current_era()
    assert ledger.last_step() == 1
    assert ledger.contributions()[0].samples == 1
    status = read_swarm_status(database)
    assert (status.step, status.era, status.samples_accumulated) == (1, 1, 0)
    assert record(ledger, "ada-1", 2, seq=4, era=1, samples=7).accepted
    assert [(row.step, row.samples) for row in ledger.steps()] == [(1, 1), (2, 7)]
    with database() as session:
        superseded = session.execute(select(Report.step).where(Report.superseded).order_by(Report.step)).scalars()
        assert list(superseded) == [2, 3]


def test_a_step_with_a_receipt_is_known_before_anybody_reports_it(ledger: Ledger) -> None:
    """So a keeper that resumes before that step undoes it, and attests no second one under the same number."""
    record(ledger, "ada-1", 1)
    confirm(ledger, 2, ada_1=10)
    assert (ledger.last_step(), ledger.last_known_step()) == (1, 2)
    ledger.roll_back(1)
    assert ledger.last_known_step() == 1


def test_roll_back_undoes_what_was_said_of_later_checkpoints(ledger: Ledger, database: Database, clock: Clock) -> None:
    """Nothing is left of undone checkpoints, nor a receipt of an undone step; those up to the return keep all."""
    keeper_at(database, step=10, now=clock.now)
    for step in (5, 6):
        record(ledger, "ada-1", step)
        confirm(ledger, step, ada_1=10)
        digest = f"{step:064d}"
        assert record_validation(database, validation_row(step))
        record_checkpoint(database, step=step, size_bytes=1, manifest_sha256=digest, now=0.0)
        said = {"evaluator": "", "task_sha256": digest, "result": "{}", "evaluated_at": 0.0}
        with database.begin() as session:
            session.add(Evaluation(manifest_sha256=digest, task="fill", step=step, **said))
    ledger.roll_back(5)
    assert [row.step for row in validations(database)] == [row.step for row in checkpoints(database)] == [5]
    with database() as session:
        assert [list(session.scalars(select(kind.step))) for kind in (Receipt, Evaluation)] == [[5], [5]]


def test_late_report_of_a_kept_step_is_counted(ledger: Ledger) -> None:
    """What an earlier era did before the checkpoint still counts, even if nobody else reported that step."""
    for step in (1, 2, 4):
        record(ledger, "ada-1", step)
    ledger.roll_back(3)
    assert record(ledger, "bob-1", 3, era=0, samples=50) == ACCEPTED
    assert [(row.step, row.samples) for row in ledger.steps()] == [(1, 10), (2, 10), (3, 50)]


def test_each_return_is_an_era_of_its_own(ledger: Ledger) -> None:
    """Two returns to ever earlier checkpoints undo what each must."""
    for step in (1, 2, 3):
        record(ledger, "ada-1", step)
    assert ledger.roll_back(2) == 1
    record(ledger, "ada-1", 3, seq=4, era=1)
    assert ledger.roll_back(1) == 2
    assert record(ledger, "bob-1", 2, era=0).accepted
    assert [row.step for row in ledger.steps()] == [1]


def test_a_return_waits_for_reports_that_are_being_counted(database: Database, ledger: Ledger) -> None:
    """Else one that began before it would count for a step that it undoes; on SQLite there is one writer anyway."""
    with ThreadPoolExecutor(1) as pool:
        with database.begin() as counting:
            beside_others(counting, Lock.ERA)
            returning = pool.submit(ledger.roll_back, 0)
            let_others_wait(counting)
            assert ledger.current_era() == 0
        assert returning.result() == 1


EVENTS = st.one_of(
    st.tuples(st.just("report"), st.sampled_from(REPORTERS), st.integers(1, 6), st.integers(0, 2), st.integers(1, 9)),
    st.tuples(st.just("receipt"), st.sampled_from([*REPORTERS, "keeper-1"]), st.integers(1, 6), st.integers(0, 2)),
    st.integers(0, 4).map(lambda step: ("back", step)),
)


@pytest.mark.parametrize("store_kind", ["sqlite"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(EVENTS, max_size=20))
def test_sums_always_equal_their_reports(tmp_path_factory: pytest.TempPathFactory, events: list[Any]) -> None:
    """Whatever is reported, received, repeated and undone, steps and members agree with the reports that count."""
    with empty_store(tmp_path_factory.mktemp("ledger")) as database:
        add_members(database)
        _play(database, events)


def _play(database: Database, events: list[Any]) -> None:
    ledger = Ledger(database, CONFIG, Clock())
    for event in events:
        match event:
            case ("back", step):
                ledger.roll_back(step)
            case ("receipt", device, step, era):
                received = dict.fromkeys(REPORTERS[: 1 + step % 3], 3 + step)
                ledger.take_receipt(device, step, receipt_by(device, step, received, era=era))
            case (_, device, step, era, samples):
                record(ledger, device, step, seq=step * 10 + era, era=era, samples=samples)
    with database() as session:
        counting = session.scalars(select(Report).where(Report.superseded.is_(False))).all()
    believed = [(row.step, row.samples if row.counted is None else row.counted) for row in counting]
    by_step = {row.step: (row.samples, row.devices) for row in ledger.steps()}
    assert {step: samples for step, (samples, _) in by_step.items()} == _sums(iter(believed))
    assert {step: devices for step, (_, devices) in by_step.items()} == _sums((row.step, 1) for row in counting)
    members = ledger.contributions()
    assert sum(row.samples for row in members) == sum(row.counted or 0 for row in counting)
    assert sum(row.pending_samples for row in members) == sum(row.samples for row in counting if row.counted is None)


def _sums(pairs: Iterator[tuple[int, int]]) -> dict[int, int]:
    sums: dict[int, int] = {}
    for key, value in pairs:
        sums[key] = sums.get(key, 0) + value
    return sums


def test_a_report_is_measured_by_its_steps_phase(database: Database, clock: Clock) -> None:
    """Steps up to the boundary need the old batch, later ones the new; a claim that fits the other is refused."""
    config = RunConfig.from_mapping(
        CONFIG.model_dump() | {"phases": [{"from_step": 2, "target_batch_size": 10 * TARGET}]}
    )
    ledger = Ledger(database, config, clock)
    keeper_at(database, 3, clock())
    assert not record(ledger, "ada-1", 2, seq=1, samples=15 * TARGET).accepted
    assert record(ledger, "ada-1", 2, seq=2, samples=TARGET).accepted
    assert record(ledger, "ada-1", 3, seq=3, samples=15 * TARGET).accepted
    assert [(row.step, row.target_batch_size) for row in ledger.steps()] == [(2, TARGET), (3, 10 * TARGET)]


def column_for(claim: Any, bound: Bound) -> tuple[Any, ...]:
    """The type of the column that holds a claim, how long its texts may be, and whether it may be null."""
    kinds = {*get_args(claim)} or {claim}
    if str in kinds:
        return String, bound.most, False
    whole = BigInteger if bound.storable > MAX_COUNT else Integer
    return Float if float in kinds else whole, None, NoneType in kinds


@pytest.mark.parametrize(("claim", "bound"), CLAIM_BOUNDS.items(), ids=CLAIM_BOUNDS)
def test_each_claim_of_a_report_has_the_column_that_its_declaration_asks_for(claim: str, bound: Bound) -> None:
    """`StepReport` declares type and bound; the receipt goes to a table of its own."""
    if claim == "receipt":
        return
    column = Report.__table__.c[claim]
    found = type(column.type), getattr(column.type, "length", None), column.nullable
    assert found == column_for(get_type_hints(StepReport)[claim], bound)
    if isinstance(column.type, Integer):
        too_large = not isinstance(column.type, BigInteger)
        with pytest.raises(RequestError, match=claim) if too_large else nullcontext():
            report_from_wire(StepReportMessage(**{claim: MAX_COUNT + 1}))


def delivery(device: str, step: int, seq: int = 0, *, era: int = 0, **claims: Any) -> Delivery:
    """A report as it is handed in; the sequence number is the step's unless a test says otherwise."""
    return Delivery(device, None, seq or step, report(step, era=era, **claims), 1000.0 + step)


def test_a_bad_report_spoils_no_other(ledger: Ledger) -> None:
    """One that is refused is told why, one that cannot even be stored has its own error; all others count."""
    outcomes = ledger.record_all(
        [
            delivery("ada-1", 1),
            delivery("bob-1", 1, samples=100 * TARGET),
            delivery("nobody", 1),
            delivery("ada-2", 1),
            delivery("ada-2", 2),
        ]
    )
    assert [outcomes[place] for place in (0, 3, 4)] == [ACCEPTED] * 3
    assert isinstance(outcomes[1], ReportVerdict)
    assert "samples" in outcomes[1].reason
    assert isinstance(outcomes[2], Exception)
    assert [(row.step, row.samples, row.devices) for row in ledger.steps()] == [(1, 20, 2), (2, 10, 1)]


def test_the_same_report_twice_in_a_batch_counts_once(ledger: Ledger) -> None:
    """By its number it is the same and accepted again; under a new number the step is reported already."""
    first, again, other = ledger.record_all(
        [delivery("ada-1", 1), delivery("ada-1", 1), delivery("ada-1", 1, seq=2, samples=5)]
    )
    assert (first, again) == (ACCEPTED, ACCEPTED)
    assert isinstance(other, ReportVerdict)
    assert "already reported" in other.reason
    assert ledger.steps()[0].samples == 10


def test_without_a_keeper_reports_of_a_batch_lead_each_other(ledger: Ledger) -> None:
    """Each accepted step moves what the next may claim, as if they had come one after the other."""
    outcomes = ledger.record_all([delivery("ada-1", step) for step in (2, 4, 6, 9, 8)])
    assert [isinstance(outcome, ReportVerdict) and outcome.accepted for outcome in outcomes] == [True] * 3 + [
        False,
        True,
    ]


def test_batches_side_by_side_lose_and_double_nothing(database: Database) -> None:
    """Two services that record the same steps in different orders, and some reports both, wait in one order."""
    keeper_at(database, step=9, now=Clock().now)
    wanted = [delivery(device, step) for device in REPORTERS for step in range(1, 10)]
    ledgers = [Ledger(database, CONFIG, Clock()) for _ in range(2)]
    orders = [random.Random(seed).sample(wanted, len(wanted)) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda place: ledgers[place % 2].record_all(orders[place]), range(4)))
    assert outcomes == [[ACCEPTED] * len(wanted)] * 4
    assert [(row.samples, row.devices) for row in ledgers[0].steps()] == [(30, 3)] * 9


DELIVERIES = st.tuples(
    st.sampled_from(REPORTERS),
    st.integers(1, 5),  # step
    st.integers(0, 1),  # era
    st.sampled_from([1, 5, 9, 10 * TARGET]),  # samples; the last cannot be
    st.sampled_from([None, None, 3, 9]),  # what its receipt says of everybody
    st.integers(0, 1),  # so that a step is reported under two numbers
)
HISTORIES = st.lists(st.one_of(st.lists(DELIVERIES, min_size=1, max_size=12), st.integers(0, 3)), max_size=4)


@pytest.mark.parametrize("store_kind", ["sqlite"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=HISTORIES)
def test_together_comes_to_the_same_as_one_by_one(tmp_path_factory: pytest.TempPathFactory, history: list[Any]) -> None:
    """Verdicts, reports and what counts of them, receipts, refusals and steps, over returns to checkpoints, too."""
    found = []
    for together in (True, False):
        with empty_store(tmp_path_factory.mktemp("recording")) as database:
            add_members(database)
            found.append(_played(database, history, together))
    assert found[0] == found[1]


def _played(database: Database, history: list[Any], together: bool) -> list[Any]:
    ledger = Ledger(database, CONFIG, Clock())
    outcomes: list[Any] = []
    for event in history:
        if isinstance(event, int):
            ledger.roll_back(event)
            continue
        batch = [_delivery(*claims) for claims in event]
        for part in [batch] if together else [[each] for each in batch]:
            outcomes += ledger.record_all(part)
    columns = (Report.device_id, Report.seq, Report.era, Report.step, Report.samples, Report.counted, Report.superseded)
    witnesses = select(Receipt.device_id, Receipt.era, Receipt.step, Receipt.samples)
    with database() as session:
        rows = [tuple(row) for row in session.execute(select(*columns).order_by(Report.id))]
        kept = sorted(tuple(row) for row in session.execute(witnesses))
        of_reports = Refusal.kind.in_(("report", "receipt"))
        refused = [tuple(row) for row in session.execute(select(Refusal.code, Refusal.reason).where(of_reports))]
    return [outcomes, rows, kept, sorted(refused), ledger.steps(), ledger.contributions()]


def _delivery(device: str, step: int, era: int, samples: int, received: int | None, again: int) -> Delivery:
    said = {} if received is None else dict.fromkeys(REPORTERS, received)
    receipt = receipt_by(device, step, said, era=era) if said else ""
    return delivery(device, step, seq=100 * step + 10 * era + again + 1, era=era, samples=samples, receipt=receipt)
