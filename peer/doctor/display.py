"""Display of the doctor's findings: coloured lines on a terminal, plain ones elsewhere, or JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Protocol, TextIO

from rich.console import Console
from rich.text import Text

from peer.doctor.stages import Conclusion, StageResult, Verdict

NAME_WIDTH, VERDICT_WIDTH = 14, 9
COLOURS = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILED: "bold red", Verdict.SKIPPED: "dim"}


class CheckupDisplay(Protocol):
    """Shows an examination from its first stage to its conclusion."""

    def begin(self, stage: str) -> None:
        """A stage is being examined."""

    def show(self, finding: StageResult) -> None:
        """A stage is done."""

    def conclude(self, conclusion: Conclusion) -> None:
        """Everything is done."""


class CheckupLineDisplay:
    """A display with a line for each finding, and a failed program's own output indented below."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def begin(self, stage: str) -> None:
        """Show nothing yet."""

    def show(self, finding: StageResult) -> None:
        print(
            f"{finding.stage:<{NAME_WIDTH}}{finding.verdict.value:<{VERDICT_WIDTH}}{finding.sentence}",
            file=self._stream,
        )
        for line in log_of(finding):
            print(f"{'':<{NAME_WIDTH}}{line}", file=self._stream)
        self._stream.flush()

    def conclude(self, conclusion: Conclusion) -> None:
        if conclusion.fit:  # else it is the command's error, on stderr
            print(conclusion.text, file=self._stream, flush=True)


class CheckupJsonDisplay:
    """A display with one JSON object for each finding, and a last one with the conclusion."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def begin(self, stage: str) -> None:
        """Print nothing yet."""

    def show(self, finding: StageResult) -> None:
        print(json.dumps(finding.to_json()), file=self._stream, flush=True)

    def conclude(self, conclusion: Conclusion) -> None:
        print(json.dumps({"conclusion": asdict(conclusion)}), file=self._stream, flush=True)


class CheckupTerminalDisplay:
    """A display with colours and the stage that is being examined."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("")

    def begin(self, stage: str) -> None:
        self._status.update(Text(f"examining {stage}"))
        self._status.start()

    def show(self, finding: StageResult) -> None:
        colour = COLOURS[finding.verdict]
        line = Text.assemble(
            (f"{finding.stage:<{NAME_WIDTH}}", "bold"),
            (f"{finding.verdict.value:<{VERDICT_WIDTH}}", colour),
            finding.outcome.found,
            (f" {finding.outcome.remedy}", colour),
        )
        self._console.print(line)
        for words in log_of(finding):
            self._console.print(Text(f"{'':<{NAME_WIDTH}}{words}", style="dim"))

    def conclude(self, conclusion: Conclusion) -> None:
        self._status.stop()
        if conclusion.fit:
            self._console.print(Text(conclusion.text, style="bold"))


def log_of(finding: StageResult) -> Sequence[str]:
    """Return the output of a program that failed."""
    log: Sequence[str] = finding.outcome.data.get("log", ())
    return log


def open_display(as_json: bool) -> CheckupDisplay:
    """Open the display that suits standard output."""
    if as_json:
        return CheckupJsonDisplay(sys.stdout)
    return CheckupTerminalDisplay(Console()) if sys.stdout.isatty() else CheckupLineDisplay(sys.stdout)
