"""Examples from Hugging Face datasets: words and tags, texts and labels, questions and contexts, by column names."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from auth.errors import ConfigError
from coordinator.evaluate.conll import Tagged
from coordinator.evaluate.examples import Question, Row
from peer.config.evaluation import HUB, Columns, Examples

WORDS, TAGS = "tokens", "ner_tags"


def hub_rows(examples: Examples, split: str, limit: int | None) -> list[tuple[str, Row]]:
    """The rows, numbers of classes replaced by their names, each with where it stands; raises `ConfigError`."""
    import datasets

    datasets.logging.set_verbosity(logging.CRITICAL)
    datasets.disable_progress_bars()
    name, split = examples.path.removeprefix(HUB), examples.split or split
    try:
        found = datasets.load_dataset(name, examples.config_name, split=split, revision=examples.revision)
    except Exception as error:  # whatever datasets' layers raise
        reason = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(
            f"The dataset {name} cannot be read ({reason:.200}): check its name, its `split` and the network."
        ) from error
    found = found.select(range(min(len(found), limit))) if limit is not None else found
    named = {column: _names(feature) for column, feature in found.features.items()}
    return [(f"{name}, {split} row {place}", dict(_named(row, named))) for place, row in enumerate(found)]


def tagged(rows: Sequence[tuple[str, Row]], columns: Columns) -> list[Tagged]:
    """Words with tags; raises `ConfigError` naming the row that has not one tag for each word."""
    words_in, tags_in = str(columns.text or WORDS), str(columns.label or TAGS)
    found = []
    for where, row in rows:
        words, tags = row.get(words_in), row.get(tags_in)
        if not isinstance(words, list) or not isinstance(tags, list) or len(words) != len(tags):
            known = ", ".join(row)
            raise ConfigError(
                f"{where} has no lists of equal length `{words_in}` and `{tags_in}` (its columns: {known:.200})."
            )
        if words:
            found.append(Tagged(tuple(map(str, words)), tuple(map(str, tags))))
    return found


def questions(rows: Sequence[tuple[str, Row]]) -> list[Question]:
    """SQuAD's columns; raises `ConfigError` naming the row that lacks one."""
    found = []
    for where, row in rows:
        try:
            answers = row["answers"]
            texts, starts = tuple(map(str, answers["text"])), tuple(map(int, answers["answer_start"]))
            found.append(Question(str(row.get("id", where)), str(row["question"]), str(row["context"]), texts, starts))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{where} is not in SQuAD's form ({error!r:.80}).") from error
    return found


def _names(feature: Any) -> list[str] | None:
    """The names of a column's classes, of its values or of their elements."""
    inner = getattr(feature, "feature", feature)
    names = getattr(inner, "names", None)
    return list(names) if names else None


def _named(row: Row, named: dict[str, list[str] | None]) -> Iterator[tuple[str, Any]]:
    for column, value in row.items():
        names = named.get(column)
        if names is None:
            yield column, value
        elif isinstance(value, list):
            yield column, [names[number] for number in value]
        else:
            yield column, names[value] if isinstance(value, int) and 0 <= value < len(names) else value
