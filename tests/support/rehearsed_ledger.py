"""A ledger in memory of a rehearsal's reports and receipts, which are judged and counted by the product's own rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from auth.receipts import whole_samples
from coordinator.ledger.judgement import (
    Delivery,
    Facts,
    KeptReceipt,
    ReportOutcome,
    SampleClaim,
    chosen,
    count,
    judge,
    step_horizon,
)
from peer.config.run import RunConfig
from peer.rehearsal.scenario import KEEPER
from peer.rehearsal.world import TakenStep
from peer.reporting.messages import StepReport


@dataclass(frozen=True)
class _Row:
    """A report that was stored."""

    claim: SampleClaim
    step: int
    average: int
    is_superseded: bool


class RehearsedLedger:
    """Reports of steps, with the receipts that come with them."""

    def __init__(self, config: RunConfig, names: Sequence[str]) -> None:
        self._target = config.averaging.target_batch_size
        self._numbers = {name: number for number, name in enumerate([KEEPER, *names])}
        self._eras: list[tuple[int, int]] = []  # era, and the step after which it begins
        self._rows: list[_Row] = []
        self._receipts: dict[int, list[KeptReceipt]] = {}
        self._signed: set[tuple[str, int, int]] = set()
        self._ahead: list[TakenStep] = []
        self._keeper_at = 0, 0.0  # step and time of its last word
        self.outcomes: Counter[ReportOutcome] = Counter()

    def take(self, taken: TakenStep) -> None:
        """Take in a step that a peer has taken: its report, with its receipt; those that were too early come again."""
        if taken.role == "keeper":
            self._keeper_at = taken.step, taken.at_s
            self._keep_receipt(taken)
        waiting, self._ahead = [*self._ahead, taken], []
        for each in waiting:
            if each.role != "keeper":
                self._judge(each, taken.at_s)

    def settle(self, now: float) -> None:
        """Judge what was too early once more, when time has passed."""
        waiting, self._ahead = self._ahead, []
        for each in waiting:
            self._judge(each, now)

    def roll_back(self, step: int, era: int) -> None:
        """Undo all later steps, as `Ledger.roll_back` does."""
        self._eras.append((era, step))
        self._rows = [replace(row, is_superseded=row.is_superseded or row.step > step) for row in self._rows]
        self._receipts = {at: kept for at, kept in self._receipts.items() if at <= step}
        self._keeper_at = step, self._keeper_at[1]

    def counting_steps(self) -> set[int]:
        """Return the steps of reports that count."""
        return {row.step for row in self._rows if not row.is_superseded}

    def counted(self) -> list[tuple[_Row, int]]:
        """Return each report that counts, with its counted samples."""
        found = []
        for step in sorted(self.counting_steps()):
            rows = [row for row in self._rows if row.step == step and not row.is_superseded]
            counted = count([row.claim for row in rows], self._receipts.get(step, []))
            found += [(row, counted[row.claim.report_id] or 0) for row in rows]
        return found

    def counted_by_device(self) -> Counter[str]:
        """Return the counted samples of each device."""
        sums: Counter[str] = Counter()
        for row, samples in self.counted():
            sums[row.claim.device_id] += samples
        return sums

    def counted_averages(self) -> dict[int, set[int]]:
        """Return the averages of each step of which samples count."""
        averages: dict[int, set[int]] = {}
        for row, samples in self.counted():
            if samples:
                averages.setdefault(row.step, set()).add(row.average)
        return averages

    def _last_counting_step(self, era: int) -> int | None:
        return min((step for begun, step in self._eras if begun > era), default=None)

    def _judge(self, taken: TakenStep, now: float) -> None:
        name, samples = taken.name, taken.samples
        report = StepReport(
            step=taken.step,
            samples=samples,
            loss=1.0,
            mlm_loss=None,
            sop_loss=None,
            group_size=len(taken.group.peers),
            group_samples=taken.group.samples,
            averaging_s=taken.group.seconds,
            samples_per_second=1.0,
            era=taken.era,
        )
        era = self._eras[-1][0] if self._eras else 0
        facts = Facts(
            now=now,
            joined_at=0.0,
            current_era=era,
            last_counting_step=self._last_counting_step(taken.era),
            horizon_step=self._horizon(taken.era, now),
            target_batch_size=self._target,
            known=False,
            reported_already=any(
                (row.claim.device_id, row.claim.era, row.step) == (name, taken.era, taken.step) for row in self._rows
            ),
        )
        number = len(self._rows) + 1
        judgement = judge(Delivery(name, None, number, report, taken.at_s), facts)
        self.outcomes[judgement.outcome] += 1
        if judgement.outcome is ReportOutcome.AHEAD:
            self._ahead.append(taken)
        if judgement.stored:
            claim = SampleClaim(
                number, name, self._numbers[name], self._numbers[name], samples, None, 1.0, taken.era, judgement.at
            )
            undone = judgement.outcome is ReportOutcome.UNDONE
            self._rows.append(_Row(claim, taken.step, taken.group.number, undone))
        if judgement.brings_receipt:
            self._keep_receipt(taken)

    def _horizon(self, era: int, now: float) -> int:
        """Return the highest step that can have been completed by now; an era that is over went further."""
        step, at_s = self._keeper_at
        horizon = step_horizon(step, now - at_s)
        if self._eras and era < self._eras[-1][0]:
            reported = [row.step for row in self._rows if row.claim.era == era]
            horizon = max(horizon, step_horizon(max(reported, default=0), 0.0))
        return horizon

    def _keep_receipt(self, taken: TakenStep) -> None:
        """Keep a reducer's receipt if its lot is drawn, by `coordinator.ledger.receipts`."""
        last, place = self._last_counting_step(taken.era), (taken.name, taken.era, taken.step)
        is_undone = last is not None and taken.step > last
        if taken.name not in taken.group.reducers or is_undone or place in self._signed:
            return
        self._signed.add(place)
        number = self._numbers[taken.name]
        samples = {self._numbers[name]: counted for name, counted in whole_samples(taken.group.counted).items()}
        kept = self._receipts.setdefault(taken.step, [])
        kept.append(KeptReceipt(len(self._signed), taken.name, number, taken.name == KEEPER, samples))
        staying = chosen(taken.step, kept)
        kept[:] = [receipt for receipt in kept if receipt.receipt_id in staying]
