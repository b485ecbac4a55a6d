"""`manyhands demo`, as a person types it, to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass

from tests.support.waiting import PATIENCE_S


@dataclass(frozen=True)
class Finished:
    """A demo that ended by itself."""

    exit_code: int
    stdout: str
    stderr: str


def run_demo(*options: str) -> Finished:
    """Run it with `--json` and these options; what runs too long is ended with all of its processes."""
    command = [sys.executable, "-m", "manyhands", "demo", "--json", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    return Finished(process.returncode, stdout, stderr)
