"""Recomputation of a leaderboard from receipts; only samples confirmed by other peers count.

The functions are pure. The coordinator credits samples with the same function that `manyhands
verify` uses to check them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

from auth.errors import RequestError
from auth.receipts import ReceiptBody, SignedReceipt, open_receipt
from peer.verification.published import (
    Page,
    Published,
    PublishedContribution,
    PublishedDevice,
    PublishedStep,
    SignedWord,
)


@dataclass(frozen=True)
class Confirmation:
    """The samples of one device as confirmed by one receipt."""

    member: str  # member that owns the signing device
    is_keeper: bool
    samples: int  # confirmed samples; 0 if the receipt does not contain the device


def credited(claim: int, member: str, words: Sequence[Confirmation]) -> int | None:
    """Return the samples to credit for a member's claim, or None if no other member confirmed it.

    The keeper's confirmation alone suffices, because the operator runs the keeper and must trust it
    anyway. Otherwise the credit is the median of the confirmations by *other* members' devices, or
    the smaller if there are two. One dishonest member among three therefore has no effect.
    Confirmations among a member's own devices are ignored. The credit never exceeds the claim.
    """
    keepers = [word.samples for word in words if word.is_keeper]
    others = [word.samples for word in words if not word.is_keeper and word.member != member]
    evidence = keepers or others
    if claim == 0:
        return 0
    return min(claim, median_low(evidence)) if evidence else None


@dataclass
class Verification:
    """The result of recomputing a leaderboard."""

    steps: int = 0
    receipts: int = 0  # number of valid receipts
    samples: Counter[str] = field(default_factory=Counter)  # member -> confirmed samples
    unsigned: Counter[str] = field(default_factory=Counter)  # part of `samples` credited before receipts existed
    pending: Counter[str] = field(default_factory=Counter)  # member -> claimed but unconfirmed samples
    withheld: int = 0  # steps with unpublished receipts
    problems: list[str] = field(default_factory=list)


def verify(published: Published) -> Verification:
    """Verify every signature, recompute every credit with the ledger's rule, and compare the totals."""
    found = Verification()
    after = 0
    for page in published.pages:
        if (page.run, page.era) != (published.pages[0].run, published.pages[0].era):
            found.problems.append("the run returned to a checkpoint while it was read: read it again")
            break
        for step in page.steps:
            if step.step <= after:
                found.problems.append(f"step {step.step} is out of order")
            after = max(after, step.step)
            _verify_step(page, step, found)
    _compare(published, found)
    return found


def _verify_step(page: Page, step: PublishedStep, found: Verification) -> None:
    found.steps += 1
    found.withheld += step.withheld
    receipts = _opened(page, step, found)
    seen: set[str] = set()
    for claim in step.claims:
        device = page.devices.get(claim.device)
        if device is None:
            found.problems.append(f"step {step.step}: the owner of {claim.device} is unknown")
            continue
        words = [
            Confirmation(signer.member, signer.keeper, said.samples.get(claim.device, 0)) for signer, said in receipts
        ]
        counted = credited(claim.claimed, device.member, words) if claim.device not in seen else 0
        seen.add(claim.device)
        if not step.receipts and claim.counted is not None:
            found.unsigned[device.member] += claim.counted
            counted = claim.counted
        if counted != claim.counted:
            found.problems.append(
                f"step {step.step}: of {device.member}'s {claim.claimed} samples {claim.counted} are counted, "
                f"and the receipts confirm {counted}"
            )
        found.samples[device.member] += counted or 0
        found.pending[device.member] += claim.claimed if counted is None else 0


def _opened(page: Page, step: PublishedStep, found: Verification) -> list[tuple[PublishedDevice, ReceiptBody]]:
    """Return a step's valid receipts with their signers, one per member; report all others."""
    opened: dict[str, tuple[PublishedDevice, ReceiptBody]] = {}
    for word in step.receipts:
        try:
            signer, receipt = _open(page, step, word)
        except RequestError as error:
            found.problems.append(f"step {step.step}, receipt of {word.device}: {error}")
            continue
        if signer.member in opened:
            found.problems.append(f"step {step.step}: {signer.member} signed more than once")
            continue
        found.receipts += 1
        opened[signer.member] = (signer, receipt)
    return list(opened.values())


def _open(page: Page, step: PublishedStep, word: SignedWord) -> tuple[PublishedDevice, ReceiptBody]:
    signer = page.devices.get(word.device)
    if signer is None:
        raise RequestError("The owner of the signing device is unknown.")
    receipt = open_receipt(SignedReceipt(word.body, word.signature), word.device)
    if (receipt.run, receipt.step) != (page.run, step.step):
        raise RequestError("It is of another run or step.")
    return signer, receipt


def _compare(published: Published, found: Verification) -> None:
    """Check that each member's total lies between its totals on the two leaderboards."""
    before, after = _leaderboard(published.before.contributions), _leaderboard(published.after.contributions)
    for member in sorted(before.keys() | after.keys() | found.samples.keys()):
        least, most = before.get(member, 0), after.get(member, 0)
        if not min(least, most) <= found.samples[member] <= max(least, most):
            found.problems.append(
                f"the leaderboard says {most} samples of {member}, and the receipts confirm {found.samples[member]}"
            )


def _leaderboard(rows: Sequence[PublishedContribution]) -> Mapping[str, int]:
    return {row.member: row.samples for row in rows}
