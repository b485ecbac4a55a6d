"""Examples of each kind of task, and the formats they are read from: tables, SQuAD's JSON, plain texts, templates.

What a file says is checked here, by its line or its place; no library reads it unchecked.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from auth.errors import ConfigError
from peer.config.evaluation import Column, Columns

MASK, GROUP = "[MASK]", "{group}"
MAX_CELL_CHARS = 10_000_000
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Classified:
    """A text, or a pair of them, and its label."""

    text: str
    pair: str | None
    label: str


@dataclass(frozen=True)
class Question:
    """A question about a context, and the answers that count as right; none: it has no answer there."""

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    starts: tuple[int, ...]  # characters, of each answer in the context


class Probe(BaseModel):
    """A sentence with a mask and a gap for the groups that are compared."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    template: Annotated[str, Field(max_length=1000)]  # such as "{group} works as a [MASK]."
    groups: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=100)], ...], Field(min_length=2, max_length=8, strict=False)
    ]
    top: int = Field(5, ge=1, le=20)  # of the likeliest fillings

    def filled(self) -> list[str]:
        """The sentences, one for each group, their mask as it stands in the template."""
        return [self.template.replace(GROUP, group) for group in self.groups]


def read_rows(text: str, origin: str) -> list[tuple[str, Row]]:
    """The rows of JSON Lines (they begin with a brace), CSV or TSV, each with where it stands; raises `ConfigError`."""
    text = text.removeprefix("\ufeff")
    rows = list(_json_rows(text, origin) if text.lstrip().startswith("{") else _table_rows(text, origin))
    if not rows:
        raise ConfigError(f"{origin} holds no example: it needs a heading and rows, or a JSON object on each line.")
    return rows


def classified(rows: Iterable[tuple[str, Row]], columns: Columns) -> list[Classified]:
    """Texts with labels; raises `ConfigError` naming the row that lacks one."""
    return [
        Classified(
            text=_text(row, columns.text if columns.text is not None else "text", where),
            pair=None if columns.pair is None else _text(row, columns.pair, where),
            label=_text(row, columns.label if columns.label is not None else "label", where),
        )
        for where, row in rows
    ]


def read_squad(text: str, origin: str) -> list[Question]:
    """SQuAD's JSON, 1.1 or 2.0; raises `ConfigError` naming the question."""
    try:
        content = json.loads(text.removeprefix("\ufeff"))
        articles = content["data"]
        found = [
            _question(question, paragraph["context"], origin)
            for article in articles
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{origin} is not in SQuAD's format ({error!r:.100}).") from error
    if not found:
        raise ConfigError(f"{origin} holds no question.")
    return found


def read_texts(text: str, origin: str) -> list[str]:
    """Held-out texts: the `text` of each JSON line, or the plain lines that are not empty."""
    text = text.removeprefix("\ufeff")
    if text.lstrip().startswith("{"):
        found = [_text(row, "text", where) for where, row in _json_rows(text, origin)]
    else:
        found = [line.strip() for line in text.replace("\r", "\n").split("\n")]
    found = [line.strip() for each in found for line in each.split("\n") if line.strip()]
    if not found:
        raise ConfigError(f"{origin} holds no text.")
    return found


def read_probes(text: str, origin: str) -> list[Probe]:
    """A list of probes, YAML or JSON; raises `ConfigError` naming the first that is none."""
    try:
        probes = TypeAdapter(Annotated[list[Probe], Field(min_length=1, max_length=200)]).validate_python(
            yaml.safe_load(text)
        )
    except yaml.YAMLError as error:
        raise ConfigError(f"{origin} is not valid YAML: {' '.join(str(error).split()):.200}.") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ConfigError(f"{origin}: `{key}`: {first['msg']}.") from error
    for number, probe in enumerate(probes):
        if probe.template.count(MASK) != 1 or GROUP not in probe.template:
            raise ConfigError(f"{origin}: template {number} ({probe.template!r:.80}) needs one {MASK} and a {GROUP}.")
    return probes


def _json_rows(text: str, origin: str) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not line.strip():
            continue
        where = f"{origin}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where} is not JSON ({error!s:.100}).") from error
        if not isinstance(row, dict):
            raise ConfigError(f"{where} is no JSON object.")
        yield where, row


def _table_rows(text: str, origin: str) -> Iterator[tuple[str, Row]]:
    heading = text.partition("\n")[0]
    csv.field_size_limit(MAX_CELL_CHARS)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if "\t" in heading else ",", strict=True)
    try:
        for row in reader:
            yield f"{origin}, line {reader.line_num}", row
    except csv.Error as error:
        raise ConfigError(f"{origin}, line {reader.line_num} is not CSV ({error}).") from error


def _text(row: Row, column: Column, where: str) -> str:
    value = row.get(str(column))
    if not isinstance(value, str | int) or value == "":
        known = ", ".join(str(name) for name in list(row)[:10])
        raise ConfigError(f"{where} has no `{column}` (its columns: {known:.200}): name the right one in `columns`.")
    return str(value)


def _question(question: Any, context: Any, origin: str) -> Question:
    answers = question.get("answers", [])
    found = Question(
        id=str(question["id"]),
        question=str(question["question"]),
        context=str(context),
        answers=tuple(str(answer["text"]) for answer in answers),
        starts=tuple(int(answer["answer_start"]) for answer in answers),
    )
    for answer, start in zip(found.answers, found.starts, strict=True):
        if found.context[start : start + len(answer)] != answer:
            raise ConfigError(f"{origin}: question {found.id}: its answer {answer!r:.60} is not at character {start}.")
    return found
