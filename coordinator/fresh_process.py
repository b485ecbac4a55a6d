"""Runs a command that sees the folder it is given and no secret: no token or password of this process's environment."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

TIMEOUT_S = 3600.0  # a large model on one busy core
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "HF_HOME")
SHOWN_CHARACTERS = 300


class EndedBadlyError(Exception):
    """The command's last words, on one line."""


def run_apart(command: Sequence[str]) -> str:
    """What the command prints last, on one line; raises `EndedBadlyError` if it fails, or takes an hour."""
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    environment |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        result = subprocess.run(  # noqa: S603  # what runs is named by our own code
            command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EndedBadlyError(f"it was not done after {TIMEOUT_S:g} s") from error
    if result.returncode:
        raise EndedBadlyError(_last_line(result.stderr) or f"exit code {result.returncode}")
    return _last_line(result.stdout)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return " ".join(lines[-1].split())[:SHOWN_CHARACTERS] if lines else ""
