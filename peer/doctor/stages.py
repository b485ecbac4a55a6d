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
    found: dict[str, Finding] = {}
    for stage in stages:
        on_begin(stage.name)
        obstacle = missing_need(stage, found)
        outcome = await stage.check(context) if obstacle is None else skipped(obstacle)
        found[stage.name] = Finding(stage.name, outcome)
        yield found[stage.name]


def missing_need(stage: Stage, found: Mapping[str, Finding]) -> str | None:
    """Why the stage cannot run; None if it can."""
    for need in stage.needs:
        if found[need].verdict in BLOCKING:
            done = "failed" if found[need].verdict is Verdict.FAILED else "could not be examined"
            return f"Not examined, because `{need}` {done}."
    return None
