"""Receipts in the ledger: what others received counts, in whatever order it arrives, and who claims more is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations
from pathlib import Path

import pytest
from sqlalchemy import func, select

from coordinator.ledger.judgement import KEPT_OTHERS
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.receipts import WAIT_S
from coordinator.store.engine import Database
from coordinator.store.models import Device, Member, Receipt, Refusal
from peer.reporting.messages import StepReport
from tests.support.clocks import Clock
from tests.support.ledgers import deliver
from tests.support.receipts import key_of, pseudonym_of, receipt_by
from tests.support.stores import Kind, empty_store

DEVICES = {
    "ada": ("Ada", "trainer"),
    "ada-2": ("Ada", "trainer"),
    "bob": ("Bob", "trainer"),
    "eve": ("Eve", "auxiliary"),
    "dan": ("Dan", "trainer"),
    "fay": ("Fay", "trainer"),
    "olga": ("Olga", "observer"),
    "keeper": ("keeper", "keeper"),
}


@pytest.fixture
def database(tmp_path: Path, store_kind: Kind) -> Iterator[Database]:
    """A database that knows some members with their devices, and the keeper."""
    with empty_store(tmp_path, store_kind) as database:
        with database.begin() as session:
            members = {name: Member(name=name, created_at=0.0) for name, _ in DEVICES.values()}
            for number, (device, (name, role)) in enumerate(DEVICES.items()):
                key = key_of(device)
                session.add(
                    Device(
                        id=device,
                        member=members[name],
                        number=number,
                        peer_id=key.peer_id,
                        public_key=key.public_key,
                        receipt_key=pseudonym_of(device),
                        role=role,
                        created_at=0.0,
                    )
                )
        yield database


def report(
    ledger: Ledger,
    device: str,
    samples: int,
    received: Mapping[str, int] | None = None,
    *,
    step: int = 1,
    era: int = 0,
    loss: float = 4.0,
    receipt: str = "",
    completed_at: float = 1000.0,
) -> bool:
    """Report a step as a device, with what it received of others, if it reduced anything."""
    if received is not None:
        receipt = receipt_by(device, step, received, era=era)
    claims = StepReport(step, samples, loss, None, None, 3, None, 0.5, 1.0, receipt=receipt, era=era)
    return deliver(ledger, device, None, 10 * step + era, claims, completed_at).accepted


def counted(ledger: Ledger) -> dict[str, tuple[int, int]]:
    """Member -> samples that count and samples that wait, of those who have any."""
    rows = ledger.contributions()
    return {row.member: (row.samples, row.pending_samples) for row in rows if row.samples or row.pending_samples}


def refused(database: Database) -> list[tuple[str, str, str | None]]:
    with database() as session:
        return [(row.kind, row.code, row.device_id) for row in session.scalars(select(Refusal).order_by(Refusal.id))]


def keeper_receives(ledger: Ledger, received: Mapping[str, int], step: int = 1) -> None:
    ledger.take_receipt("keeper", step, receipt_by("keeper", step, received))


def test_samples_nobody_received_are_not_counted(ledger: Ledger, database: Database) -> None:
    """Bob claims ten times what he brought: what was received counts. He is not accused: a reducer may cut a weight."""
    for step in (1, 2):
        keeper_receives(ledger, {"ada": 30, "bob": 5}, step)
        assert report(ledger, "ada", 30, step=step)
        assert report(ledger, "bob", 50, step=step)
    assert counted(ledger) == {"Ada": (60, 0), "Bob": (10, 0)}
    assert [row.samples for row in ledger.steps()] == [35, 35]
    assert refused(database) == []


def test_who_brought_nothing_moves_no_loss(ledger: Ledger) -> None:
    """An outsider to the group that reports a step has no say about it, before and after the others report."""
    report(ledger, "bob", 90, loss=99.0)
    keeper_receives(ledger, {"ada": 30})
    report(ledger, "ada", 30, loss=4.0)
    assert [(row.loss, row.samples) for row in ledger.steps()] == [(4.0, 30)]
    assert counted(ledger) == {"Ada": (30, 0)}


ARRIVALS = ["ada's report", "bob's report", "keeper's receipt", "dan's report"]


@pytest.mark.parametrize("order", list(permutations(ARRIVALS))[::5])
def test_the_order_of_arrival_changes_nothing(ledger: Ledger, order: tuple[str, ...]) -> None:
    """Reports before their receipts and after them come to the same."""
    for arrival in order:
        match arrival:
            case "ada's report":
                report(ledger, "ada", 30, {"ada": 30, "bob": 20, "dan": 7})
            case "bob's report":
                report(ledger, "bob", 60, {"ada": 30, "bob": 60, "dan": 7})
            case "dan's report":  # in client mode: it reduces nothing
                report(ledger, "dan", 7)
            case _:
                keeper_receives(ledger, {"ada": 30, "bob": 20, "dan": 7})
    assert counted(ledger) == {"Ada": (30, 0), "Bob": (20, 0), "Dan": (7, 0)}
    assert ledger.steps()[0].samples == 57


def test_without_the_keeper_the_others_decide(ledger: Ledger) -> None:
    """Four members reduce; what one says against the first counts only as long as few others have spoken."""
    received = {"ada": 30, "bob": 20, "dan": 10}
    report(ledger, "ada", 30, received)
    assert counted(ledger) == {"Ada": (0, 30)}  # nobody else has spoken yet
    report(ledger, "bob", 20, received | {"ada": 1})
    assert counted(ledger) == {"Ada": (1, 0), "Bob": (20, 0)}
    report(ledger, "dan", 10)
    report(ledger, "eve", 0, received)
    report(ledger, "fay", 0, received)
    assert counted(ledger) == {"Ada": (30, 0), "Bob": (20, 0), "Dan": (10, 0)}


def test_alone_there_is_no_proof(ledger: Ledger, database: Database) -> None:
    """A step that one person's devices took without the keeper waits: on the curve, not on the leaderboard."""
    report(ledger, "ada", 60, {"ada": 60, "ada-2": 40})
    report(ledger, "ada-2", 40, {"ada": 60, "ada-2": 40})
    assert counted(ledger) == {"Ada": (0, 100)}
    assert [(row.samples, row.loss) for row in ledger.steps()] == [(100, 4.0)]
    assert ledger.standing("Ada")[0] == 0
    keeper_receives(ledger, {"ada": 60, "ada-2": 40})
    assert counted(ledger) == {"Ada": (100, 0)}
    assert refused(database) == []


def test_of_two_different_receipts_the_first_counts(ledger: Ledger, database: Database) -> None:
    """A device that was killed right after a step may take the step again, with others' samples: it has not lied."""
    keeper_receives(ledger, {"ada": 30})
    keeper_receives(ledger, {"ada": 99})
    report(ledger, "ada", 99)
    assert counted(ledger) == {"Ada": (30, 0)}
    assert refused(database) == []


def test_receipts_that_prove_nothing_are_refused(ledger: Ledger, database: Database) -> None:
    """Another's, another step's, run's or era's, of strangers, of an observer: recorded, and the report is taken."""
    bad = {
        "bob": receipt_by("ada", 1, {"dan": 9}),
        "dan": receipt_by("dan", 2, {"bob": 9}),
        "fay": receipt_by("fay", 1, {"bob": 9}, run="other"),
        "ada": receipt_by("ada", 1, {"bob": 9}, era=1),
        "ada-2": receipt_by("ada-2", 1, {"stranger": 9}),
        "olga": receipt_by("olga", 1, {"bob": 9}),
        "eve": "nonsense",
    }
    for device, receipt in bad.items():
        assert report(ledger, device, 9, receipt=receipt)
    assert refused(database) == [("receipt", "bad-request", device) for device in bad]
    assert all(waiting and not confirmed for confirmed, waiting in counted(ledger).values())


def test_who_has_told_no_receipt_key_signs_nothing(ledger: Ledger, database: Database) -> None:
    """Its program is of an older version; what others sign of it names nobody here."""
    with database.begin() as session:
        session.get_one(Device, "bob").receipt_key = None
    assert report(ledger, "bob", 9, {"ada": 30})
    ledger.take_receipt("dan", 1, receipt_by("dan", 1, {"bob": 9}))
    assert refused(database) == [("receipt", "bad-request", "bob"), ("receipt", "bad-request", "dan")]


def test_who_was_revoked_signs_nothing_more(ledger: Ledger, database: Database) -> None:
    """What was signed before counts on."""
    report(ledger, "bob", 9, {"ada": 30})
    with database.begin() as session:
        session.get_one(Device, "bob").revoked_at = 1.0
    report(ledger, "bob", 9, {"ada": 30}, step=2)
    for step in (1, 2):
        report(ledger, "ada", 30, step=step)
    assert counted(ledger)["Ada"] == (30, 30)
    assert refused(database) == [("receipt", "revoked", "bob")]


def test_receipts_end_with_their_steps(ledger: Ledger, database: Database) -> None:
    """A return to a checkpoint undoes what was received since; late receipts of that time change nothing."""
    for step in (1, 2):
        report(ledger, "ada", 30, step=step)
        keeper_receives(ledger, {"ada": 30}, step)
    ledger.roll_back(1)
    report(ledger, "ada", 25, step=2, era=1)
    ledger.take_receipt("bob", 2, receipt_by("bob", 2, {"ada": 30}, era=0))
    assert counted(ledger) == {"Ada": (30, 25)}
    ledger.take_receipt("keeper", 2, receipt_by("keeper", 2, {"ada": 20}, era=1))
    assert counted(ledger) == {"Ada": (50, 0)}


def test_a_step_counts_once_for_a_device(ledger: Ledger) -> None:
    """After a return to a checkpoint nobody earns the steps before it again."""
    keeper_receives(ledger, {"ada": 30, "bob": 1})
    report(ledger, "ada", 30)
    ledger.roll_back(1)
    report(ledger, "ada", 30, era=1)
    assert counted(ledger) == {"Ada": (30, 0)}


def test_a_receipt_can_come_too_late(ledger: Ledger, database: Database, clock: Clock) -> None:
    """A step is settled a week after its first report; until then whoever was away may bring a receipt."""
    report(ledger, "ada", 30)
    report(ledger, "bob", 30, step=2)
    clock.now += WAIT_S - 1
    keeper_receives(ledger, {"ada": 30})
    clock.now += 2
    keeper_receives(ledger, {"bob": 30}, 2)
    assert counted(ledger) == {"Ada": (30, 0), "Bob": (0, 30)}
    assert refused(database) == [("receipt", "bad-request", "keeper")]
    with database() as session:
        assert session.scalars(select(Refusal.reason)).one().endswith("came 7 days after its first report.")


def test_a_refused_report_brings_no_receipt(ledger: Ledger, database: Database) -> None:
    """What cannot be true is evidence of nothing."""
    assert not report(ledger, "bob", 10**6, {"ada": 30})
    with database() as session:
        assert session.scalar(select(func.count()).select_from(Receipt)) == 0


def test_few_receipts_are_kept(ledger: Ledger, database: Database) -> None:
    """However many come: the keeper's and those of four other members, one each."""
    kept = []
    for step, order in enumerate(permutations(["ada", "ada-2", "bob", "eve", "dan", "fay", "keeper"]), 1):
        if step % 700 == 1:
            for device in order:
                ledger.take_receipt(device, 1 + step, receipt_by(device, 1 + step, {"bob": 9}))
            with database() as session:
                kept.append(session.scalars(select(Receipt.device_id).where(Receipt.step == 1 + step)).all())
    assert all("keeper" in devices and len(devices) == 1 + KEPT_OTHERS for devices in kept)
    assert not any({"ada", "ada-2"} <= set(devices) for devices in kept)
