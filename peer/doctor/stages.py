"""The stages in order: each runs when the stages it needs have succeeded, and says so when it could not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from peer.doctor.context import Context
from peer.doctor.findings import Finding, Outcome, Verdict, skipped

Check = Callable[[Context], Awaitable[Outcome]]
BLOCKING = {Verdict.FAILED, Verdict.SKIPPED}


@dataclass(frozen=True)
class Stage:
    """One check by its name, and the stages without which it has nothing to work on."""

    name: str
    check: Check
    needs: tuple[str, ...] = ()


def _nobody(_name: str) -> None:
    """The default of `run_stages`' `on_begin`."""


async def run_stages(
    stages: Sequence[Stage], context: Context, on_begin: Callable[[str], None] = _nobody
) -> AsyncIterator[Finding]:
    """Each stage's finding as soon as it is there; `on_begin` hears which one is being examined."""
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
        yield Finding(stage.name, outcome)


def first_missing(stage: Stage, verdicts: Mapping[str, Verdict]) -> str | None:
    """The first stage among those needed that has nothing to build on; None if the stage can run."""
    return next((need for need in stage.needs if verdicts[need] in BLOCKING), None)
