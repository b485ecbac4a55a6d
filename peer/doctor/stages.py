"""Stages of an examination, their results, and a function that runs a list of stages.

The volunteer's doctor (`checkup`) and the operator's (`coordinator.service.doctor`) are lists of
stages, each with its own context. A stage is skipped if a stage that it depends on did not pass.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from inspect import isawaitable
from typing import Any, Generic, TypeVar

from auth.errors import ManyhandsError

C = TypeVar("C")  # the context with the results of earlier stages


class Verdict(str, Enum):
    """The verdict of a check; only `failed` makes a machine unfit."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


BLOCKING = {Verdict.FAILED, Verdict.SKIPPED}


@dataclass(frozen=True)
class CheckResult:
    """The result of one check; `found` and `remedy` are one sentence each."""

    verdict: Verdict
    found: str
    remedy: str = ""  # required for a warning or failure
    data: Mapping[str, Any] = field(default_factory=dict)  # JSON-serializable


def ok(found: str, **data: Any) -> CheckResult:
    """Return the result of a check that passed."""
    return CheckResult(Verdict.OK, found, data=data)


def warning(found: str, remedy: str, **data: Any) -> CheckResult:
    """Return the result of a check that passed with a warning."""
    return CheckResult(Verdict.WARNING, found, remedy, data)


def failed(found: str, remedy: str = "", **data: Any) -> CheckResult:
    """Return the result of a check whose failure makes the machine unfit."""
    return CheckResult(Verdict.FAILED, found, remedy, data)


def skipped(why: str) -> CheckResult:
    """Return the result of a check that could not run or had nothing to check."""
    return CheckResult(Verdict.SKIPPED, why)


@dataclass(frozen=True)
class Stage(Generic[C]):
    """A named check, with the names of the stages that must pass first."""

    name: str
    check: Callable[[C], CheckResult | Awaitable[CheckResult]]
    needs: tuple[str, ...] = ()
    on_error: Callable[[str], CheckResult] = failed  # creates the result if the check raises a `ManyhandsError`

    async def examine(self, context: C) -> CheckResult:
        """Run the check and return its result."""
        try:
            outcome = self.check(context)
            return await outcome if isawaitable(outcome) else outcome
        except ManyhandsError as error:
            return self.on_error(str(error))


@dataclass(frozen=True)
class StageResult:
    """The name of a stage and its result."""

    stage: str
    outcome: CheckResult

    @property
    def verdict(self) -> Verdict:
        return self.outcome.verdict

    @property
    def sentence(self) -> str:
        """The finding and its remedy, as text."""
        return f"{self.outcome.found} {self.outcome.remedy}".rstrip()

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a JSON object."""
        return {"stage": self.stage} | asdict(self.outcome)


@dataclass(frozen=True)
class Conclusion:
    """The conclusion from all findings, shown last."""

    fit: bool  # true if no stage failed
    text: str
    samples_per_step: int | None = None  # expected contribution to each step; None if unknown
    joins_as: str | None = None


async def run_stages(
    stages: Sequence[Stage[C]], context: C, on_begin: Callable[[str], None] = lambda _name: None
) -> AsyncIterator[StageResult]:
    """Run the stages in order and yield each result; call `on_begin` with each stage's name."""
    verdicts: dict[str, Verdict] = {}
    causes: dict[str, str] = {}  # skipped stage -> the earlier stage that caused the skip
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
    """Return a negative conclusion that names the failed stages, or None if no stage failed."""
    names = [f"`{finding.stage}`" for finding in findings if finding.verdict is Verdict.FAILED]
    if not names:
        return None
    return Conclusion(
        False, f"{len(names)} of {len(findings)} stages failed ({', '.join(names)}): begin with the first."
    )
