"""Recipes: named run files shipped with the package, for models with published sizes and training.

A recipe is a valid run file whose comments cite sources and reasons. For another language, the
text, name, description and, for ALBERT, tokenizer change. Comments are kept, so they mention no
language. Keys that speed up averaging state the value for exact steps (`# exact: false`).
"""

from __future__ import annotations

import re
from textwrap import indent
from typing import Any

import yaml

from auth.errors import ConfigError
from peer.config.languages import sources_in, word_preset
from peer.config.run import BUILTIN_RUNS, RunConfig

RECIPES = ("albert-large", "modernbert-small", "modernbert-base", "roberta-base", "gpt2-small")


def recipe_text(name: str, language: str | None = None, *, is_exact: bool = False) -> str:
    """Return a recipe's run file, by default in its own language. Raises `ConfigError` if it is unknown.

    With `is_exact`, each step waits for the mean of uncompressed gradients.
    """
    if name not in RECIPES:
        raise ConfigError(f"There is no recipe `{name:.40}`: take {', '.join(RECIPES[:-1])} or {RECIPES[-1]}.")
    text = (BUILTIN_RUNS / f"{name}.yaml").read_text(encoding="utf-8")
    if is_exact:
        text = re.sub(r"\S+  # exact: (\S+)", r"\1", text)
    if language is None:
        return text
    sources = sources_in(language)
    text = _replace(text, r"  name: .*\n", {"name": f"{name}-{language.lower()}"})
    if len(sources) == 1:
        text = text.replace(", on Wikipedia and web pages.", ", on Wikipedia.", 1)
    text = _replace(text, r"  language: .*\n", {"language": language})
    text = _replace(text, r"  preset: (?:albert|bengali)\n", {"preset": word_preset(language)})
    return _replace(text, r"  sources:\n(?:    .*\n)+", {"sources": sources})


def load_recipe(name: str, language: str | None = None, *, is_exact: bool = False) -> RunConfig:
    """Return a recipe as a run's configuration. Raises the same errors as `recipe_text`."""
    return RunConfig.from_text(recipe_text(name, language, is_exact=is_exact), origin=f"the recipe `{name}`")


def _replace(text: str, lines: str, content: dict[str, Any]) -> str:
    """Put a section's new content in place of the first match of the pattern `lines`."""
    written = indent(yaml.safe_dump(content, sort_keys=False), "  ")
    return re.sub(f"(?m)^{lines}", lambda _: written, text, count=1)
