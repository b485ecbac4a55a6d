"""Display of the doctor's findings as lines of text or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TextIO

from rich.console import Console
from rich.text import Text

from auth.errors import UnfitError
from peer.doctor.stages import C, Conclusion, Stage, StageResult, Verdict, failures, run_stages

NAME_WIDTH, VERDICT_WIDTH = 14, 9
COLOURS = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILED: "bold red", Verdict.SKIPPED: "dim"}


class CheckupLineDisplay:
    """A display with one line per finding; the output of a failed program is indented below it.

    On a terminal, it uses colors and shows the current stage.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("")

    def begin(self, stage: str) -> None:
        """Show the current stage."""
        if self._console.is_terminal:
            self._status.update(Text(f"examining {stage}"))
            self._status.start()

    def show(self, finding: StageResult) -> None:
        """Print a stage's finding."""
        colour = COLOURS[finding.verdict]
        line = Text.assemble(
            (f"{finding.stage:<{NAME_WIDTH}}", "bold"),
            (f"{finding.verdict.value:<{VERDICT_WIDTH}}", colour),
            finding.outcome.found,
            (f" {finding.outcome.remedy}" if finding.outcome.remedy else "", colour),
        )
        self._print(line)
        for words in finding.outcome.data.get("log", ()):
            self._print(Text(f"{'':<{NAME_WIDTH}}{words}", style="dim"))

    def conclude(self, conclusion: Conclusion) -> None:
        """Print a positive conclusion; the command prints a negative one to stderr as an error."""
        self._status.stop()
        if conclusion.fit:
            self._print(Text(conclusion.text, style="bold"))

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=not self._console.is_terminal)  # lines are wrapped only on a terminal


class CheckupJsonDisplay:
    """A display that prints each finding and the conclusion as a JSON object."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def begin(self, stage: str) -> None:
        """Do nothing; only findings are printed."""

    def show(self, finding: StageResult) -> None:
        print(json.dumps(finding.to_json()), file=self._stream, flush=True)

    def conclude(self, conclusion: Conclusion) -> None:
        print(json.dumps({"conclusion": asdict(conclusion)}), file=self._stream, flush=True)


CheckupDisplay = CheckupLineDisplay | CheckupJsonDisplay


def open_display(as_json: bool) -> CheckupDisplay:
    """Return a display on standard output."""
    return CheckupJsonDisplay(sys.stdout) if as_json else CheckupLineDisplay(Console())


async def examine(
    stages: Sequence[Stage[C]], context: C, display: CheckupDisplay, fit: Callable[[C], Conclusion]
) -> None:
    """Run and show all stages, then the conclusion `fit(context)`. Raises `UnfitError` if one failed."""
    findings = []
    async for finding in run_stages(stages, context, display.begin):
        findings.append(finding)
        display.show(finding)
    conclusion = failures(findings) or fit(context)
    display.conclude(conclusion)
    if not conclusion.fit:
        raise UnfitError(conclusion.text)
