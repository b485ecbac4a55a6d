"""A stand-in for systemd's commands, which notes what it is asked: no user's manager runs where tests run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class StandInForSystemd:
    """The commands of a manager, on the PATH, and the place of its units."""

    programs: Path
    log: Path
    units: Path

    def asked(self) -> list[str]:
        """What was asked since the last look."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines

    def refuse(self, reason: str) -> None:
        """Answer as where no manager runs for this user."""
        (self.programs / "systemctl").write_text(f"#!/bin/sh\necho {shlex.quote(reason)} >&2\nexit 1\n")


def stand_in_for_systemd(directory: Path, monkeypatch: pytest.MonkeyPatch) -> StandInForSystemd:
    """Put the stand-in on the PATH, and its units into the directory, for this test."""
    programs, log = directory / "programs", directory / "asked"
    programs.mkdir()
    for name, answer in (("systemctl", ""), ("loginctl", "no")):
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {shlex.quote(str(log))}\necho {answer}\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(directory / "config"))
    return StandInForSystemd(programs, log, directory / "config" / "systemd" / "user")
