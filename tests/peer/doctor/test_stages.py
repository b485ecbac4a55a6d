"""The doctor's stages run in order, each once its requirements are met, or name the one missing; and the verdict."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

import pytest

from auth.errors import RequestError
from peer.config.run import RunConfig
from peer.doctor.answers import Speed
from peer.doctor.checkup import WHY_NO_SWARM, WHY_UNREACHABLE, WITH_LINK, WITHOUT_LINK, conclude
from peer.doctor.context import Context, Options, RunDescription
from peer.doctor.stages import (
    CheckResult,
    Stage,
    StageResult,
    Verdict,
    failed,
    failures,
    ok,
    run_stages,
    skipped,
    warning,
)

GOOD = [
    StageResult("disk", ok("Fine.")),
    StageResult("quic", skipped("None.")),
    StageResult("proxy", warning("Odd.", "Look.")),
]


def context_with(rate: float | None, reachable: bool | None = None, swarm_rate: float | None = None) -> Context:
    context = Context(Options(Path("unused")))
    context.reachable = reachable
    context.speed = None if rate is None else Speed(samples_per_second=rate)
    if swarm_rate is not None:
        context.description = RunDescription(RunConfig(), (), ip_address("192.0.2.1"), swarm_rate)
    return context


def test_failures_are_counted_and_named() -> None:
    """Whatever else is well."""
    bad = [StageResult("tcp", failed("Closed.", "Open it.")), StageResult("disk", failed("Full.", "Make room."))]
    conclusion = failures([*GOOD, *bad])
    assert conclusion is not None
    assert not conclusion.fit
    assert "2 of 5 stages failed (`tcp`, `disk`)" in conclusion.text
    assert conclusion.samples_per_step is None
    assert failures(GOOD) is None


@pytest.mark.parametrize(
    ("reachable", "relays", "words"),
    [(True, True, "directly reachable"), (False, True, "as a relayed peer"), (False, False, "as a client")],
)
def test_a_fit_machine_hears_what_it_would_add(reachable: bool, relays: bool, words: str) -> None:
    """Its share of a step beside those who train now, and as what kind of peer."""
    context = context_with(10.0, reachable, 30.0)
    context.relays = relays
    conclusion = conclude(context)
    assert conclusion.fit
    assert "about 1,024 samples a step" in conclusion.text
    assert conclusion.samples_per_step == 1024
    assert words in conclusion.text


def test_without_a_run_there_is_a_speed_only() -> None:
    """Of the demo's model, as the person is told."""
    conclusion = conclude(context_with(12.34))
    assert conclusion.fit
    assert "12.3 samples a second of the demo's model" in conclusion.text


def test_without_a_speed_nothing_is_promised() -> None:
    """As after the network's stages alone."""
    assert conclude(context_with(None)).text == "This machine is ready to join."


def test_the_share_is_by_speed() -> None:
    """Alone one fills the whole batch."""
    assert conclude(context_with(2.0, True, 0.0)).samples_per_step == 4096
    assert conclude(context_with(2.0, True, 2.0)).samples_per_step == 2048


OK, WARNING, FAILED, SKIPPED = Verdict.OK, Verdict.WARNING, Verdict.FAILED, Verdict.SKIPPED


def saying(outcome: CheckResult) -> Callable[[None], CheckResult]:
    """A check that finds this."""
    return lambda _: outcome


FINE, ODD = saying(ok("Fine.")), saying(warning("Odd.", "Look."))

BAD, ABSENT = saying(failed("Bad.", "Mend it.")), saying(skipped("Nothing there."))


async def run(*stages: Stage[None]) -> list[StageResult]:
    return [finding async for finding in run_stages(stages, None)]


async def test_stages_run_in_order_with_their_names() -> None:
    """A warning is good enough for what comes after it."""
    findings = await run(Stage("a", ODD), Stage("b", FINE, ("a",)))
    assert [(finding.stage, finding.verdict) for finding in findings] == [("a", WARNING), ("b", OK)]


async def test_a_failure_skips_what_depends_on_it_and_nothing_else() -> None:
    """However long the chain, the stage at its beginning is named."""
    findings = await run(Stage("a", BAD), Stage("b", FINE, ("a",)), Stage("c", FINE, ("b",)), Stage("d", FINE))
    assert [finding.verdict for finding in findings] == [FAILED, SKIPPED, SKIPPED, OK]
    assert {finding.outcome.found for finding in findings[1:3]} == {"Not examined, because `a` failed."}


async def test_what_has_nothing_to_examine_skips_as_well() -> None:
    """But that is not called a failure."""
    findings = await run(Stage("a", ABSENT), Stage("b", FINE, ("a",)))
    assert findings[1].outcome.found == "Not examined, because `a` could not be examined."


async def test_an_error_of_ours_is_the_stages_finding() -> None:
    """A failure, unless the stage says what else it makes of it; a check may have to be waited for."""

    async def refuse(_: None) -> CheckResult:
        raise RequestError("Not now.")

    findings = await run(Stage("a", refuse), Stage("b", refuse, on_error=skipped))
    assert [(finding.verdict, finding.sentence) for finding in findings] == [
        (FAILED, "Not now."),
        (SKIPPED, "Not now."),
    ]


async def test_whoever_watches_hears_what_is_being_examined() -> None:
    """Before each stage, its name."""
    begun: list[str] = []
    stages = (Stage("a", FINE), Stage("b", FINE))
    async for finding in run_stages(stages, None, begun.append):
        assert begun[-1] == finding.stage
    assert begun == ["a", "b"]


@pytest.mark.parametrize("stages", [WITHOUT_LINK, WITH_LINK, WHY_UNREACHABLE, WHY_NO_SWARM])
def test_every_list_of_stages_is_in_order(stages: tuple[Stage[Context], ...]) -> None:
    """What a stage needs comes before it, and each name is there once."""
    names = [stage.name for stage in stages]
    assert len(set(names)) == len(names)
    for number, stage in enumerate(stages):
        assert set(stage.needs) <= set(names[:number])
