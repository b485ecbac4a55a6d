"""The ledger: each report counted once, and the right ones undone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from sqlalchemy import func, select

from coordinator.checkpoints.validations import record_validation, validations
from coordinator.ledger.ledger import Contribution, Ledger, StepRow, Verdict, data_wait_share
from coordinator.ledger.presence import checkpoints, close_session, open_session, read_swarm_status, record_checkpoint
from coordinator.store.engine import Sessions
from coordinator.store.ledger_models import LostSamples
from coordinator.store.locks import Lock, beside_others
from coordinator.store.models import Evaluation, Receipt, Refusal, Report
from peer.config.run import RunConfig
from tests.support.clocks import Clock
from tests.support.crowds import touch
from tests.support.ledgers import ACCEPTED, CONFIG, REPORTERS, TARGET, add_members, keeper_at
from tests.support.receipts import receipt_by
from tests.support.reports import report
from tests.support.served_page import validation_row
from tests.support.stores import empty_store, let_others_wait

pytestmark = pytest.mark.usefixtures("members")


def record(ledger: Ledger, device: str, step: int, *, seq: int | None = None, era: int = 0, **claims: Any) -> Verdict:
    """Report as a device; the sequence number is the step's unless a test says otherwise."""
    number = step if seq is None else seq
    return ledger.record(device, None, number, era, report(step, **claims), completed_at=1000.0 + step)


def confirm(ledger: Ledger, step: int, era: int = 0, **samples: int) -> None:
    """The keeper has received so many samples of each device (its id with `_` for `-`)."""
    received = {device.replace("_", "-"): brought for device, brought in samples.items()}
    ledger.take_receipt("keeper-1", step, receipt_by("keeper-1", step, received, era=era))


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
        ledger.record(device, None, 1, 0, report(1), completed_at)
    assert ledger.steps()[0].completed_at == 1005.0


def test_reports_without_a_loss_do_not_move_it(ledger: Ledger) -> None:
    """A peer without samples has no say about the loss, and a step without any loss has none."""
    record(ledger, "ada-1", 1, samples=0, loss=None)
    assert ledger.steps()[0].loss is None
    record(ledger, "bob-1", 1, samples=10, loss=3.0)
    assert (ledger.steps()[0].loss, ledger.steps()[0].devices) == (3.0, 2)


def test_repeated_report_is_counted_once(ledger: Ledger) -> None:
    """A peer that did not hear the acknowledgement sends again, and is told again that all is well."""
    assert [record(ledger, "ada-1", 1, samples=30) for _ in range(3)] == [ACCEPTED] * 3
    assert (ledger.steps()[0].samples, ledger.steps()[0].devices) == (30, 1)


def test_second_report_for_a_step_is_refused(ledger: Ledger) -> None:
    """A new sequence number does not make the same step count twice."""
    record(ledger, "ada-1", 1, seq=1, samples=30)
    verdict = record(ledger, "ada-1", 1, seq=2, samples=30)
    assert not verdict.accepted
    assert "already reported" in verdict.reason
    assert ledger.steps()[0].samples == 30


def test_refused_report_is_counted_as_refused(ledger: Ledger, sessions: Sessions) -> None:
    """A claim that cannot be true changes no step, and the operator sees who made it and why it was refused."""
    verdict = record(ledger, "bob-1", 1, loss=math.nan)
    assert (verdict.accepted, ledger.steps(), ledger.contributions()[0].samples) == (False, [], 0)
    with sessions() as session:
        refusal = session.scalars(select(Refusal)).one()
    assert (refusal.kind, refusal.device_id, refusal.reason) == ("report", "bob-1", verdict.reason)


def test_a_step_ahead_of_the_keeper_waits_until_it_is_known(ledger: Ledger, sessions: Sessions, clock: Clock) -> None:
    """While the keeper stands still the swarm may go on: a report more than two steps ahead is for later."""
    keeper_at(sessions, step=24, now=clock.now)
    assert record(ledger, "ada-1", 26) == ACCEPTED
    verdict = record(ledger, "ada-1", 27)
    assert (verdict.accepted, verdict.ahead) == (False, True)
    keeper_at(sessions, step=25, now=clock.now)
    assert record(ledger, "ada-1", 27) == ACCEPTED
    assert record(ledger, "ada-1", 27) == ACCEPTED
    assert [(row.step, row.samples) for row in ledger.steps()] == [(26, 10), (27, 10)]


def test_who_is_ahead_leaves_no_trace(ledger: Ledger, sessions: Sessions, clock: Clock) -> None:
    """Steps that nobody can have reached fill neither the ledger nor the records of refusals, however many come."""
    keeper_at(sessions, step=24, now=clock.now)
    assert all(record(ledger, "bob-1", 10**9 + step).ahead for step in range(5))
    assert (ledger.steps(), ledger.last_step()) == ([], 0)
    with sessions() as session:
        for table in (Report, Refusal, LostSamples):
            assert session.scalar(select(func.count()).select_from(table)) == 0


def test_what_is_wrong_with_a_report_does_not_wait(ledger: Ledger, sessions: Sessions, clock: Clock) -> None:
    """A report that is ahead and could never be true is refused for good."""
    keeper_at(sessions, step=24, now=clock.now)
    verdict = record(ledger, "bob-1", 30, loss=math.nan)
    assert (verdict.accepted, verdict.ahead) == (False, False)


def test_a_step_that_its_era_did_not_reach_is_refused_for_good(
    ledger: Ledger, sessions: Sessions, clock: Clock
) -> None:
    """A report that was ahead when the run went back can never become true; the same step of the new era can."""
    keeper_at(sessions, step=24, now=clock.now)
    assert record(ledger, "ada-1", 30).ahead
    ledger.roll_back(20)
    verdict = record(ledger, "ada-1", 30)
    assert (verdict.accepted, verdict.ahead) == (False, False)
    assert "era 0" in verdict.reason
    assert record(ledger, "ada-1", 30, seq=31, era=1).ahead


def test_without_a_keeper_the_ledger_goes_by_its_own_steps(ledger: Ledger) -> None:
    """Before the keeper has written, reports may lead the ledger by two."""
    assert record(ledger, "ada-1", 2).accepted
    assert not record(ledger, "ada-1", 5).accepted
    assert record(ledger, "ada-1", 4).accepted


def test_reports_of_a_time_without_keeper_are_accepted(ledger: Ledger, sessions: Sessions, clock: Clock) -> None:
    """While the keeper was away the swarm trained on: its steps are plausible for the time that passed."""
    keeper_at(sessions, step=10, now=clock.now)
    clock.now += 600
    assert all(record(ledger, "ada-1", step).accepted for step in range(11, 200))


def test_late_reports_are_counted(ledger: Ledger, sessions: Sessions, clock: Clock) -> None:
    """Reports that waited while the coordinator was away are counted for their own steps."""
    keeper_at(sessions, step=50, now=clock.now)
    record(ledger, "ada-1", 50)
    assert all(record(ledger, "bob-1", step).accepted for step in range(1, 51))
    assert ledger.steps(after=49)[0].devices == 2
    assert len(ledger.steps()) == 50


def test_clock_of_a_peer_cannot_lead_ours(ledger: Ledger, clock: Clock) -> None:
    """A completion time in the future becomes now."""
    ledger.record("ada-1", None, 1, 0, report(1), completed_at=clock.now + 1e6)
    assert ledger.steps()[0].completed_at == clock.now


def test_roll_back_undoes_the_later_steps(ledger: Ledger, sessions: Sessions, clock: Clock) -> None:
    """After a return to a checkpoint the undone steps are gone, their reports kept, and the work can be done again."""
    keeper_at(sessions, step=3, now=clock.now)
    for step in (1, 2, 3):
        record(ledger, "ada-1", step, samples=step)
        confirm(ledger, step, ada_1=step)
    assert ledger.roll_back(1) == 1 == ledger.current_era()
    assert ledger.last_step() == 1
    assert ledger.contributions()[0].samples == 1
    status = read_swarm_status(sessions)
    assert (status.step, status.era, status.samples_accumulated) == (1, 1, 0)
    assert record(ledger, "ada-1", 2, seq=4, era=1, samples=7).accepted
    assert [(row.step, row.samples) for row in ledger.steps()] == [(1, 1), (2, 7)]
    with sessions() as session:
        superseded = session.execute(select(Report.step).where(Report.superseded).order_by(Report.step)).scalars()
        assert list(superseded) == [2, 3]


def test_roll_back_undoes_what_was_said_of_later_checkpoints(ledger: Ledger, sessions: Sessions, clock: Clock) -> None:
    """Nothing is left of undone checkpoints, nor a receipt of an undone step; those up to the return keep all."""
    keeper_at(sessions, step=10, now=clock.now)
    for step in (5, 6):
        record(ledger, "ada-1", step)
        confirm(ledger, step, ada_1=10)
        digest = f"{step:064d}"
        assert record_validation(sessions, validation_row(step))
        record_checkpoint(sessions, step=step, size_bytes=1, manifest_sha256=digest, now=0.0)
        said = {"evaluator": "", "task_sha256": digest, "result": "{}", "evaluated_at": 0.0}
        with sessions.begin() as session:
            session.add(Evaluation(manifest_sha256=digest, task="fill", step=step, **said))
    ledger.roll_back(5)
    assert [row.step for row in validations(sessions)] == [row.step for row in checkpoints(sessions)] == [5]
    with sessions() as session:
        assert [list(session.scalars(select(kind.step))) for kind in (Receipt, Evaluation)] == [[5], [5]]


def test_late_report_of_an_undone_step_is_kept_but_not_counted(ledger: Ledger) -> None:
    """A peer that was cut off reports a step that was undone meanwhile: accepted, stored, without effect."""
    for step in (1, 2):
        record(ledger, "ada-1", step)
    ledger.roll_back(1)
    record(ledger, "ada-1", 2, seq=3, era=1, samples=20)
    assert record(ledger, "bob-1", 2, era=0, samples=50) == ACCEPTED
    assert ledger.steps(after=1)[0].samples == 20


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


def test_contributions_add_up_by_member(ledger: Ledger, sessions: Sessions, clock: Clock) -> None:
    """A member's devices count together; only those heard of lately are online; the keeper is left out."""
    record(ledger, "ada-1", 1, samples=10, averaged_bytes=100)
    record(ledger, "ada-2", 1, samples=20, averaged_bytes=200)
    record(ledger, "bob-1", 1, samples=5)
    confirm(ledger, 1, ada_1=10, ada_2=20, bob_1=5)
    first = open_session(sessions, "ada-1", "cpu", "0.1", clock.now - 100)
    second = open_session(sessions, "ada-2", "cpu", "0.1", clock.now - 100)
    open_session(sessions, "keeper-1", "cpu", "0.1", clock.now)
    for stay, seen_at in ((first, clock.now - 1), (second, clock.now - 20)):
        touch(sessions, stay, step=1, own_samples=0, samples_per_second=4.0, state="training", now=seen_at)
    assert ledger.contributions() == [
        Contribution(
            "Ada",
            30,
            devices=2,
            online=1,
            last_seen_at=clock.now - 1,
            samples_per_second=4.0,
            elapsed_s=0.0,
            data_wait_s=0.0,
            averaged_bytes=300,
        ),
        Contribution(
            "Bob",
            5,
            devices=1,
            online=0,
            last_seen_at=None,
            samples_per_second=0.0,
            elapsed_s=0.0,
            data_wait_s=0.0,
            averaged_bytes=0,
        ),
    ]
    close_session(sessions, first, clock.now)
    assert ledger.contributions()[0].online == 0


def test_who_only_averages_stands_behind_who_trains(ledger: Ledger) -> None:
    """Bytes are no samples: they order those who have as many of these, and move no step's loss."""
    record(ledger, "ada-1", 1, samples=1)
    record(ledger, "bob-1", 1, samples=0, loss=None, averaged_bytes=10**9)
    confirm(ledger, 1, ada_1=1)
    assert [(row.member, row.samples, row.averaged_bytes) for row in ledger.contributions()] == [
        ("Ada", 1, 0),
        ("Bob", 0, 10**9),
    ]
    [step] = ledger.steps()
    assert (step.samples, step.loss) == (1, 2.0)


def test_many_sessions_do_not_multiply_samples(ledger: Ledger, sessions: Sessions, clock: Clock) -> None:
    """A device that reconnected often has still given what it gave, and is one device."""
    record(ledger, "ada-1", 1, samples=10)
    confirm(ledger, 1, ada_1=10)
    for second in range(5):
        open_session(sessions, "ada-1", "cpu", "0.1", clock.now - 10 + second)
    ada = ledger.contributions()[0]
    assert (ada.samples, ada.devices, ada.online) == (10, 2, 1)


def test_waiting_for_data_is_a_share_of_the_time_trained(ledger: Ledger) -> None:
    """Over all members' steps that count; unknown before anybody has trained, never more than all of it."""
    assert data_wait_share(ledger.contributions()) is None
    record(ledger, "ada-1", 1, elapsed_s=4.0, data_wait_s=1.0)
    record(ledger, "bob-1", 1, elapsed_s=6.0, data_wait_s=0.5)
    ledger.roll_back(1)
    record(ledger, "bob-1", 2, elapsed_s=90.0, data_wait_s=90.0)  # undone
    assert data_wait_share(ledger.contributions()) == pytest.approx(0.15)
    ada, bob = ledger.contributions()[:2]
    assert (data_wait_share([ada]), data_wait_share([bob])) == (0.25, pytest.approx(0.5 / 6))
    assert data_wait_share([replace(ada, data_wait_s=9.0)]) == 1.0


def test_standing_tells_a_member_its_rank(ledger: Ledger) -> None:
    """Rank counts those with more samples; a newcomer is last; equals share a rank."""
    confirm(ledger, 1, ada_1=5, bob_1=5)
    record(ledger, "bob-1", 1, samples=5)
    assert ledger.standing("Bob") == (5, 1, 2)
    assert ledger.standing("Ada") == (0, 2, 2)
    record(ledger, "ada-1", 1, samples=5)
    assert ledger.standing("Ada") == (5, 1, 2)


def test_reports_at_once_are_all_counted(ledger: Ledger) -> None:
    """Threads that report the same step, some of them twice, lose nothing and double nothing."""
    reports = [(device, step) for device in ("ada-1", "ada-2", "bob-1") for step in (1, 2)] * 2
    with ThreadPoolExecutor(4) as pool:
        verdicts = list(pool.map(lambda arguments: record(ledger, *arguments), reports))
    assert verdicts == [ACCEPTED] * len(reports)
    assert [(row.samples, row.devices) for row in ledger.steps()] == [(30, 3), (30, 3)]


def test_a_return_waits_for_reports_that_are_being_counted(sessions: Sessions, ledger: Ledger) -> None:
    """Else one that began before it would count for a step that it undoes; on SQLite there is one writer anyway."""
    with ThreadPoolExecutor(1) as pool:
        with sessions.begin() as counting:
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
    with empty_store(tmp_path_factory.mktemp("ledger")) as sessions:
        add_members(sessions)
        _play(sessions, events)


def _play(sessions: Sessions, events: list[Any]) -> None:
    ledger = Ledger(sessions, CONFIG, Clock())
    for event in events:
        match event:
            case ("back", step):
                ledger.roll_back(step)
            case ("receipt", device, step, era):
                received = dict.fromkeys(REPORTERS[: 1 + step % 3], 3 + step)
                ledger.take_receipt(device, step, receipt_by(device, step, received, era=era))
            case (_, device, step, era, samples):
                record(ledger, device, step, seq=step * 10 + era, era=era, samples=samples)
    with sessions() as session:
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


def test_a_report_is_measured_by_its_steps_phase(sessions: Sessions, clock: Clock) -> None:
    """Steps up to the boundary need the old batch, later ones the new; a claim that fits the other is refused."""
    config = RunConfig.from_mapping(
        CONFIG.model_dump() | {"phases": [{"from_step": 2, "target_batch_size": 10 * TARGET}]}
    )
    ledger = Ledger(sessions, config, clock)
    keeper_at(sessions, 3, clock())
    assert not record(ledger, "ada-1", 2, seq=1, samples=15 * TARGET).accepted
    assert record(ledger, "ada-1", 2, seq=2, samples=TARGET).accepted
    assert record(ledger, "ada-1", 3, seq=3, samples=15 * TARGET).accepted
    assert [(row.step, row.target_batch_size) for row in ledger.steps()] == [(2, TARGET), (3, 10 * TARGET)]
