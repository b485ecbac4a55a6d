"""Options shared by `recipe` and `plan`, and the function that writes their run files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from auth.errors import ConfigError, StorageError
from peer.runtime.console import say

Out = Annotated[Path | None, typer.Option("--out", "-o", help="Run file to write; default: stdout.")]
Exact = Annotated[
    bool, typer.Option("--exact", help="Wait in each step for the exact mean of the gradients; slow at home.")
]


def refuse_existing(out: Path | None) -> None:
    """Raise `ConfigError` if the `--out` file already exists."""
    if out is not None and out.exists():
        raise ConfigError(f"`--out` ({out}) exists already: remove it, or give another name.")


def write_run_file(text: str, out: Path | None) -> None:
    """Write a run file to `out`, or to stdout if `out` is None. Raises `StorageError`."""
    if out is None:
        say(text.rstrip())
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"`--out` ({out}) cannot be written: {error.strerror}.") from error
    say(f"Written to {out}. Read its comments, then: manyhands rehearse {out}")
