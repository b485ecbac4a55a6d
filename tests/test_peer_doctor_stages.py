"""The order of stages: each runs with what it needs, or says which stage it missed."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.doctor.checkup import WHY_NO_SWARM, WHY_UNREACHABLE, WITH_LINK, WITHOUT_LINK
from peer.doctor.context import Context, Options
from peer.doctor.findings import Finding, Outcome, Verdict, failed, ok, skipped, warning
from peer.doctor.stages import Check, Stage, run_stages

OK, WARNING, FAILED, SKIPPED = Verdict.OK, Verdict.WARNING, Verdict.FAILED, Verdict.SKIPPED


def saying(outcome: Outcome) -> Check:
    """A check that finds this."""

    async def check(_: Context) -> Outcome:
        return outcome

    return check


FINE, ODD = saying(ok("Fine.")), saying(warning("Odd.", "Look."))
BAD, ABSENT = saying(failed("Bad.", "Mend it.")), saying(skipped("Nothing there."))


async def run(*stages: Stage) -> list[Finding]:
    return [finding async for finding in run_stages(stages, Context(Options(Path("unused"))))]


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


async def test_whoever_watches_hears_what_is_being_examined() -> None:
    """Before each stage, its name."""
    begun: list[str] = []
    stages = (Stage("a", FINE), Stage("b", FINE))
    async for finding in run_stages(stages, Context(Options(Path("unused"))), begun.append):
        assert begun[-1] == finding.stage
    assert begun == ["a", "b"]


@pytest.mark.parametrize("stages", [WITHOUT_LINK, WITH_LINK, WHY_UNREACHABLE, WHY_NO_SWARM])
def test_every_list_of_stages_is_in_order(stages: tuple[Stage, ...]) -> None:
    """What a stage needs comes before it, and each name is there once."""
    names = [stage.name for stage in stages]
    assert len(set(names)) == len(names)
    for number, stage in enumerate(stages):
        assert set(stage.needs) <= set(names[:number])


def test_a_finding_for_scripts_has_everything() -> None:
    """Stage, verdict, the two sentences and the data."""
    finding = Finding("disk", failed("Full.", "Make room.", free_bytes=0))
    assert finding.to_json() == {
        "stage": "disk",
        "verdict": "failed",
        "found": "Full.",
        "remedy": "Make room.",
        "data": {"free_bytes": 0},
    }
    assert finding.sentence == "Full. Make room."
