"""Many reports in one transaction: the same results as one after the other, whoever else is in it."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from sqlalchemy import select

from coordinator.ledger.intake import Delivery, Verdict, target_batch_size
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.steering import Steersman
from coordinator.store.engine import Sessions
from coordinator.store.models import Receipt, Refusal, Report
from peer.config.run import RunConfig
from tests.support.clocks import Clock
from tests.support.ledgers import ACCEPTED, CONFIG, REPORTERS, TARGET, add_members, keeper_at
from tests.support.receipts import receipt_by
from tests.support.reports import report
from tests.support.stores import empty_store

pytestmark = pytest.mark.usefixtures("members")


def delivery(device: str, step: int, seq: int = 0, *, era: int = 0, **claims: Any) -> Delivery:
    """A report as it is handed in; the sequence number is the step's unless a test says otherwise."""
    return Delivery(device, None, seq or step, era, report(step, **claims), 1000.0 + step)


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
    assert isinstance(outcomes[1], Verdict)
    assert "samples" in outcomes[1].reason
    assert isinstance(outcomes[2], Exception)
    assert [(row.step, row.samples, row.devices) for row in ledger.steps()] == [(1, 20, 2), (2, 10, 1)]


def test_the_same_report_twice_in_a_batch_counts_once(ledger: Ledger) -> None:
    """By its number it is the same and accepted again; under a new number the step is reported already."""
    first, again, other = ledger.record_all(
        [delivery("ada-1", 1), delivery("ada-1", 1), delivery("ada-1", 1, seq=2, samples=5)]
    )
    assert (first, again) == (ACCEPTED, ACCEPTED)
    assert isinstance(other, Verdict)
    assert "already reported" in other.reason
    assert ledger.steps()[0].samples == 10


def test_without_a_keeper_reports_of_a_batch_lead_each_other(ledger: Ledger) -> None:
    """Each accepted step moves what the next may claim, as if they had come one after the other."""
    outcomes = ledger.record_all([delivery("ada-1", step) for step in (2, 4, 6, 9, 8)])
    assert [isinstance(outcome, Verdict) and outcome.accepted for outcome in outcomes] == [True] * 3 + [False, True]


def test_a_step_needs_the_batch_that_was_in_force_before_it(sessions: Sessions) -> None:
    """A phase from step 4 on, and an operator's change from step 6 on, first count for the steps after these."""
    phases = [{"from_step": 4, "target_batch_size": 2 * TARGET}]
    config = RunConfig.from_mapping(CONFIG.model_dump() | {"phases": phases})
    Steersman(sessions, config, "os:tester", Clock()).change(6, target_batch_size=3 * TARGET)
    with sessions() as session:
        needed = [target_batch_size(session, config, step) for step in range(4, 8)]
    assert needed == [TARGET, 2 * TARGET, 2 * TARGET, 3 * TARGET]


def test_batches_side_by_side_lose_and_double_nothing(sessions: Sessions) -> None:
    """Two services that record the same steps in different orders, and some reports both, wait in one order."""
    keeper_at(sessions, step=9, now=Clock().now)
    wanted = [delivery(device, step) for device in REPORTERS for step in range(1, 10)]
    ledgers = [Ledger(sessions, CONFIG, Clock()) for _ in range(2)]
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
        with empty_store(tmp_path_factory.mktemp("recording")) as sessions:
            add_members(sessions)
            found.append(_played(sessions, history, together))
    assert found[0] == found[1]


def _played(sessions: Sessions, history: list[Any], together: bool) -> list[Any]:
    ledger = Ledger(sessions, CONFIG, Clock())
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
    with sessions() as session:
        rows = [tuple(row) for row in session.execute(select(*columns).order_by(Report.id))]
        kept = sorted(tuple(row) for row in session.execute(witnesses))
        of_reports = Refusal.kind.in_(("report", "receipt"))
        refused = [tuple(row) for row in session.execute(select(Refusal.code, Refusal.reason).where(of_reports))]
    return [outcomes, rows, kept, sorted(refused), ledger.steps(), ledger.contributions()]


def _delivery(device: str, step: int, era: int, samples: int, received: int | None, again: int) -> Delivery:
    said = {} if received is None else dict.fromkeys(REPORTERS, received)
    receipt = receipt_by(device, step, said, era=era) if said else ""
    return delivery(device, step, seq=100 * step + 10 * era + again + 1, era=era, samples=samples, receipt=receipt)
