"""`manyhands recipe`: write the run file of a published model, for any language."""

from __future__ import annotations

from typing import Annotated

import typer

from peer.cli.run_file import Exact, Out, refuse_existing, write_run_file
from peer.config.recipes import RECIPES, recipe_text

app = typer.Typer(pretty_exceptions_enable=False)


@app.command("recipe", epilog="Example: manyhands recipe modernbert-small --language fi --out run.yaml")
def write_recipe(
    name: Annotated[str, typer.Argument(help=f"The recipe: {', '.join(RECIPES)}.")],
    language: Annotated[
        str | None, typer.Option(help="Language of the text, such as fi or zh-Hant.", show_default="the recipe's own")
    ] = None,
    exact: Exact = False,
    out: Out = None,
) -> None:
    """Write the run file of a published model, to edit before `init`; its comments give sources and reasons."""
    refuse_existing(out)
    write_run_file(recipe_text(name, language, is_exact=exact), out)
