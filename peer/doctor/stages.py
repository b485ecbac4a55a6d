"""Stages of an examination: a stage's description, its finding, and the order in which a list of stages runs.

The volunteer's doctor (`checkup`) and the operator's (`coordinator.service.doctor`) are lists of stages, each over a
context of its own. A stage runs when the stages it needs have succeeded, and says so when it could not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from inspect import isawaitable
from typing import Any, Generic, TypeVar

from auth.errors import ManyhandsError

C = TypeVar("C")  # the context, in which the stages of a list find what earlier ones have left


class Verdict(str, Enum):
    """The verdict on a finding; only `failed` makes a machine unfit."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


BLOCKING = {Verdict.FAILED, Verdict.SKIPPED}


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check; `found` and `remedy` are a sentence each."""

    verdict: Verdict
    found: str
    remedy: str = ""  # of every warning and failure
    data: Mapping[str, Any] = field(default_factory=dict)  # what JSON can hold


def ok(found: str, **data: Any) -> CheckResult:
    """Make an outcome without a fault."""
    return CheckResult(Verdict.OK, found, data=data)


def warning(found: str, remedy: str, **data: Any) -> CheckResult:
    """Make the outcome of a check that passed, but could be better."""
    return CheckResult(Verdict.WARNING, found, remedy, data)


def failed(found: str, remedy: str = "", **data: Any) -> CheckResult:
    """Make the outcome of a check whose failure keeps this machine from its task."""
    return CheckResult(Verdict.FAILED, found, remedy, data)


def skipped(why: str) -> CheckResult:
    """Make the outcome of a check that could not be made, or that has nothing to examine."""
    return CheckResult(Verdict.SKIPPED, why)


@dataclass(frozen=True)
class Stage(Generic[C]):
    """One check by its name, and the stages without which it has nothing to work on."""

    name: str
    check: Callable[[C], CheckResult | Awaitable[CheckResult]]
    needs: tuple[str, ...] = ()
    on_error: Callable[[str], CheckResult] = failed  # makes the outcome where the check raises a `ManyhandsError`

    async def examine(self, context: C) -> CheckResult:
        """Check, and return the outcome."""
        try:
            outcome = self.check(context)
            return await outcome if isawaitable(outcome) else outcome
        except ManyhandsError as error:
            return self.on_error(str(error))


@dataclass(frozen=True)
class StageResult:
    """An outcome and the stage that it is of."""

    stage: str
    outcome: CheckResult

    @property
    def verdict(self) -> Verdict:
        return self.outcome.verdict

    @property
    def sentence(self) -> str:
        """The finding and its remedy, for people."""
        return f"{self.outcome.found} {self.outcome.remedy}".rstrip()

    def to_json(self) -> dict[str, Any]:
        """Return the finding for scripts."""
        return {"stage": self.stage} | asdict(self.outcome)


@dataclass(frozen=True)
class Conclusion:
    """All findings together."""

    fit: bool  # nothing failed
    text: str
    samples_per_step: int | None = None  # that this machine would add; None where it is not known
    joins_as: str | None = None


async def run_stages(
    stages: Sequence[Stage[C]], context: C, on_begin: Callable[[str], None] = lambda _name: None
) -> AsyncIterator[StageResult]:
    """Yield each stage's finding as soon as it is there; `on_begin` hears which stage is being examined."""
    verdicts: dict[str, Verdict] = {}
    causes: dict[str, str] = {}  # of stages that could not run: the stage at the beginning of the chain
    for stage in stages:
        on_begin(stage.name)
        missing = next((need for need in stage.needs if verdicts[need] in BLOCKING), None)
        if missing is None:
            outcome = await stage.examine(context)
        else:
            cause = causes[stage.name] = causes.get(missing, missing)
            done = "failed" if verdicts[cause] is Verdict.FAILED else "could not be examined"
            outcome = skipped(f"Not examined, because `{cause}` {done}.")
        verdicts[stage.name] = outcome.verdict
        yield StageResult(stage.name, outcome)


def failures(findings: Sequence[StageResult]) -> Conclusion | None:
    """Count and name the stages that have failed; None if none has."""
    names = [f"`{finding.stage}`" for finding in findings if finding.verdict is Verdict.FAILED]
    if not names:
        return None
    return Conclusion(
        False, f"{len(names)} of {len(findings)} stages failed ({', '.join(names)}): begin with the first."
    )
