"""Members who report losses and contributions they did not earn, against a real coordinator and its real sessions.

Every member has a valid token, a session of its own and an outbox; the insider's program says what it wants. What
others received is what a round of `tests/security/test_course.py` gives them to sign. Plain hivemind has no ledger, so
there is nothing that the same attacks could succeed against.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from sqlalchemy import select

from auth.keys import ReceiptKey
from auth.receipts import ReceiptBody, sign_receipt
from coordinator.store.models import Device, Refusal
from peer.reporting.messages import StepReport
from tests.support.control_plane import Member, TestCoordinator, a_report, joined, serving
from tests.support.receipts import key_of
from tests.support.waiting import eventually

HONEST_LOSS, LIE = 7.5, 99.0


@dataclass
class Run:
    """A coordinator, three honest members and the insider."""

    coordinator: TestCoordinator
    ada: Member
    bob: Member
    dan: Member
    mallory: Member

    def receipt(self, signer: Member, step: int, **samples: int) -> str:
        """What a member signs that others have brought."""
        return str(sign_receipt(receipt_key(signer), self._received(step, samples)))

    def keeper_signs(self, step: int, **samples: int) -> None:
        """As the keeper does when it has taken a step."""
        services, key = self.coordinator.services, key_of("keeper")
        signing = key.receipt_key("test")
        device_id = services.membership.grant_keeper(key.public_key, signing.pseudonym).device_id
        services.ledger.take_receipt(device_id, step, str(sign_receipt(signing, self._received(step, samples))))

    async def report(self, member: Member, report: StepReport) -> None:
        """Send it over the member's session until the coordinator has answered."""
        member.outbox.put(report, 1000.0)
        await eventually("the outbox is empty", lambda: len(member.outbox) == 0)

    def counted(self) -> dict[str, tuple[int, int]]:
        """Member -> samples that count, and that wait."""
        rows = self.coordinator.services.ledger.contributions()
        return {row.member: (row.samples, row.pending_samples) for row in rows if row.samples or row.pending_samples}

    def loss(self, step: int) -> float | None:
        return self.coordinator.services.ledger.steps(after=step - 1)[0].loss

    def named(self) -> set[tuple[str, str]]:
        """Member and code of everything that was held against somebody."""
        query = select(Device, Refusal.code).join(Refusal, Refusal.device_id == Device.id)
        with self.coordinator.services.database() as session:
            return {(device.member.name, code) for device, code in session.execute(query)}

    def _received(self, step: int, samples: dict[str, int]) -> ReceiptBody:
        received = {receipt_key(getattr(self, name)).pseudonym: brought for name, brought in samples.items()}
        return ReceiptBody(run="test", era=0, step=step, samples=received)


def receipt_key(member: Member) -> ReceiptKey:
    """The key of a member's receipts in this run."""
    return member.credentials.device_key.receipt_key("test")


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Run]:
    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(serving(tmp_path))
        members = {
            name: await stack.enter_async_context(joined(coordinator, tmp_path, name))
            for name in ("ada", "bob", "dan", "mallory")
        }
        for member in members.values():
            member.start()
        yield Run(coordinator, **members)


def claim(step: int, samples: int, loss: float = HONEST_LOSS, receipt: str = "") -> StepReport:
    return replace(a_report(step, samples), loss=loss, receipt=receipt)


async def test_samples_that_nobody_received_are_not_counted(run: Run) -> None:
    """An insider reports thousands, brings none, and signs for herself: nothing counts, and no loss moves."""
    await run.report(run.mallory, claim(1, 4000, LIE, run.receipt(run.mallory, 1, mallory=4000)))
    run.keeper_signs(1, ada=30, bob=20)
    await run.report(run.ada, claim(1, 30, receipt=run.receipt(run.ada, 1, ada=30, bob=20)))
    await run.report(run.bob, claim(1, 20))
    assert run.counted() == {"ada": (30, 0), "bob": (20, 0)}
    assert run.loss(1) == HONEST_LOSS
    assert run.named() == set()


async def test_more_samples_than_were_brought_are_cut(run: Run) -> None:
    """She brings some, claims more, and an absurd loss: what she brought counts, and the curve hardly moves."""
    run.keeper_signs(1, ada=30, bob=20, mallory=10)
    await run.report(run.mallory, claim(1, 1000, LIE))
    await run.report(run.ada, claim(1, 30))
    await run.report(run.bob, claim(1, 20))
    assert run.counted() == {"ada": (30, 0), "bob": (20, 0), "mallory": (10, 0)}
    assert run.loss(1) == pytest.approx(HONEST_LOSS, rel=0.05)
    assert run.named() == set()


async def test_without_the_keeper_one_liar_decides_nothing(run: Run) -> None:
    """She signs that she brought much and others little; three members say otherwise."""
    brought = {"ada": 30, "bob": 20, "dan": 10, "mallory": 1}
    lie = run.receipt(run.mallory, 1, ada=1, bob=1, dan=1, mallory=4000)
    await run.report(run.mallory, claim(1, 4000, LIE, lie))
    for name in ("ada", "bob", "dan"):
        member = getattr(run, name)
        await run.report(member, claim(1, brought[name], receipt=run.receipt(member, 1, **brought)))
    assert run.counted() == {"ada": (30, 0), "bob": (20, 0), "dan": (10, 0), "mallory": (1, 0)}
    assert run.loss(1) == pytest.approx(HONEST_LOSS, rel=0.05)
    assert run.named() == set()


async def test_anothers_receipt_is_of_no_use(run: Run) -> None:
    """What Ada signed proves nothing in Mallory's session, nor does an old step's receipt for a new one."""
    old = run.receipt(run.mallory, 1, bob=5000)
    await run.report(run.mallory, claim(1, 50, receipt=run.receipt(run.ada, 1, mallory=50)))
    await run.report(run.mallory, claim(2, 50, receipt=old))
    await run.report(run.bob, claim(1, 5000))
    assert run.counted() == {"bob": (0, 5000), "mallory": (0, 100)}
    assert run.named() == {("mallory", "bad-request")}


async def test_of_two_words_on_one_step_the_first_counts(run: Run) -> None:
    """She signs for a friend what she did not receive, then more."""
    await run.report(run.mallory, claim(1, 10, receipt=run.receipt(run.mallory, 1, bob=20)))
    await run.report(run.mallory, claim(1, 10, receipt=run.receipt(run.mallory, 1, bob=5000)))
    await run.report(run.bob, claim(1, 5000))
    assert run.counted()["bob"] == (20, 0)
