"""Stages of the doctor's examination: how they run in order, what each finds, and the conclusion from all of them.

A stage runs when the stages it needs have succeeded, and says so when it could not. Its finding says what a person can
do about it. The conclusion says whether this machine can take part, and what it would add.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from peer.doctor.context import Context

Data = Mapping[str, Any]  # what JSON can hold
DIRECT, RELAYED = "a directly reachable peer", "a relayed peer"
OUTGOING = "a client, which opens connections and takes none"


class Verdict(str, Enum):
    """The verdict on a finding; only `failed` keeps a machine from taking part."""

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
    data: Data = field(default_factory=dict)


Check = Callable[[Context], Awaitable[CheckResult]]


@dataclass(frozen=True)
class Stage:
    """One check by its name, and the stages without which it has nothing to work on."""

    name: str
    check: Check
    needs: tuple[str, ...] = ()


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


def ok(found: str, **data: Any) -> CheckResult:
    """Make an outcome without a fault."""
    return CheckResult(Verdict.OK, found, data=data)


def warning(found: str, remedy: str, **data: Any) -> CheckResult:
    """Make the outcome of a check that passed, but could be better."""
    return CheckResult(Verdict.WARNING, found, remedy, data)


def failed(found: str, remedy: str, **data: Any) -> CheckResult:
    """Make the outcome of a check whose failure keeps this machine from taking part."""
    return CheckResult(Verdict.FAILED, found, remedy, data)


def skipped(why: str) -> CheckResult:
    """Make the outcome of a check that could not be made, or that has nothing to examine."""
    return CheckResult(Verdict.SKIPPED, why)


def _nobody(_name: str) -> None:
    """The default of `run_stages`' `on_begin`."""


async def run_stages(
    stages: Sequence[Stage], context: Context, on_begin: Callable[[str], None] = _nobody
) -> AsyncIterator[StageResult]:
    """Yield each stage's finding as soon as it is there; `on_begin` hears which stage is being examined."""
    verdicts: dict[str, Verdict] = {}
    causes: dict[str, str] = {}  # of stages that could not run: the stage at the beginning of the chain
    for stage in stages:
        on_begin(stage.name)
        need = first_missing(stage, verdicts)
        if need is None:
            outcome = await stage.check(context)
        else:
            cause = causes[stage.name] = causes.get(need, need)
            done = "failed" if verdicts[cause] is Verdict.FAILED else "could not be examined"
            outcome = skipped(f"Not examined, because `{cause}` {done}.")
        verdicts[stage.name] = outcome.verdict
        yield StageResult(stage.name, outcome)


def first_missing(stage: Stage, verdicts: Mapping[str, Verdict]) -> str | None:
    """The first stage among those needed that has nothing to build on; None if the stage can run."""
    return next((need for need in stage.needs if verdicts[need] in BLOCKING), None)


@dataclass(frozen=True)
class Conclusion:
    """All findings together."""

    fit: bool  # nothing failed
    text: str
    samples_per_step: int | None = None  # that this machine would add; None where it is not known
    joins_as: str | None = None


def conclude(findings: Sequence[StageResult], context: Context) -> Conclusion:
    """Sum up what was found."""
    failed = [finding.stage for finding in findings if finding.verdict is Verdict.FAILED]
    if failed:
        listed = ", ".join(f"`{stage}`" for stage in failed)
        return Conclusion(False, f"{len(failed)} of {len(findings)} stages failed ({listed}): begin with the first.")
    speed, description = context.speed, context.description
    if speed is None:
        return Conclusion(True, "Nothing stands in the way.")
    if description is None:
        rate = f"{speed.samples_per_second:,.1f}"
        return Conclusion(True, f"This machine would compute about {rate} samples a second of the demo's model.")
    samples = samples_per_step(
        speed.samples_per_second, description.samples_per_second, description.config.averaging.target_batch_size
    )
    joins_as = DIRECT if context.reachable else RELAYED if context.relays else OUTGOING
    text = f"This machine would add about {samples:,} samples a step as {joins_as}."
    return Conclusion(True, text, samples, joins_as)


def samples_per_step(own_rate: float, swarm_rate: float, target_batch_size: int) -> int:
    """This machine's share of the global batch, beside those who train now; rates in samples per second."""
    return round(target_batch_size * own_rate / (own_rate + swarm_rate))
