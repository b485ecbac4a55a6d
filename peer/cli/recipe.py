"""The command `manyhands recipe`: the run file of a published model, in any language, to be read and edited."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from auth.errors import ConfigError, StorageError
from peer.config.recipes import RECIPES, recipe_text
from peer.runtime.console import say

Out = Annotated[Path | None, typer.Option("--out", "-o", help="Run file to write; without it, to stdout.")]
app = typer.Typer(pretty_exceptions_enable=False)


@app.command("recipe", epilog="Example: manyhands recipe modernbert-small --language fi --out run.yaml")
def write_recipe(
    name: Annotated[str, typer.Argument(help=f"The recipe: {', '.join(RECIPES)}.")],
    language: Annotated[
        str | None, typer.Option(help="Language of the text, as fi or zh-Hant.", show_default="the recipe's own")
    ] = None,
    out: Out = None,
) -> None:
    """Write the run file of a published model, with its sources and reasons in comments, to edit it before `init`."""
    refuse_existing(out)
    write_run_file(recipe_text(name, language), out)


def refuse_existing(out: Path | None) -> None:
    """Raise `ConfigError` if the file to write exists."""
    if out is not None and out.exists():
        raise ConfigError(f"`--out` ({out}) exists already: remove it, or give another name.")


def write_run_file(text: str, out: Path | None) -> None:
    """Write a run file's text, to stdout if no file is named; raises `StorageError`."""
    if out is None:
        say(text.rstrip())
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"`--out` ({out}) cannot be written: {error.strerror}.") from error
    say(f"Written to {out}. Read its comments, then: manyhands rehearse {out}")
