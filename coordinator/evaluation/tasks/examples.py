"""Example types and parsers: CoNLL, tables, SQuAD, plain text, templates and Hub datasets.

The parsers validate all content; error messages name the line, the row or the question.

A CoNLL file has one word per line with its tags in other columns, and an empty line after each
sentence. The parser accepts any line endings, a byte order mark, tabs or spaces between columns,
empty columns, several empty lines, `-DOCSTART-` lines and comments. The parser warns about
sentences of more than 1000 words. Lines with a tab but only a word or a tag are skipped with a
warning. All other deviations are errors.

In CoNLL-U each line begins with the number of its word. Ranges (`1-2`, a multiword token) and empty
nodes (`1.1`) are not words, and every line that begins with `#` is a comment.

`datasets` is used for Hub datasets, but not for files: it has no loader for SQuAD, its CoNLL loader
pads or truncates lines with a wrong number of columns, and its table loaders infer types, so that
the labels `1` and `NA` would become a number and a null.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from auth.errors import ConfigError
from peer.config.base import first_mistake
from peer.config.evaluation import HUB, Column, Columns, Examples

logger = logging.getLogger(__name__)

DOCUMENT_START = "-DOCSTART-"
CONLLU_COLUMNS, FORM, UPOS = 10, 1, 3
_FIRST_NUMBER = re.compile(r"1(-\d+)?|0\.1")  # number of the first line in a CoNLL-U sentence
_NO_WORD = re.compile(r"\d+[-.]\d+")
MANY_WORDS = 1000  # number of words above which a sentence is suspect
MASK, GROUP = "[MASK]", "{group}"
MAX_CELL_CHARS = 10_000_000
WORDS, TAGS = "tokens", "ner_tags"
ANSWER = ("text", "answer_start")  # keys of an answer in SQuAD's JSON
Row = Mapping[str, Any]
PlacedRow = tuple[str, Row]  # (position for error messages, row)


@dataclass(frozen=True)
class Tagged:
    """The words of a sentence, with one tag per word."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Classified:
    """A labelled text or text pair."""

    text: str
    pair: str | None
    label: str


@dataclass(frozen=True)
class QuestionExample:
    """A question, its context and its correct answers; () if the context contains no answer."""

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    starts: tuple[int, ...]  # offset of each answer in the context, in characters


@dataclass(frozen=True)
class TextPair:
    """A pair of related texts, such as a question and a passage that answers it."""

    text: str
    pair: str


@dataclass(frozen=True)
class RetrievalSet:
    """Queries and documents by id, and the documents' relevance grades for each judged query."""

    queries: Mapping[str, str]
    corpus: Mapping[str, str]
    judged: Mapping[str, Mapping[str, int]]


class Probe(BaseModel):
    """A sentence template with a mask, and the groups of people to insert and compare."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    template: Annotated[str, Field(max_length=1000)]  # e.g. "{group} works as a [MASK]."
    groups: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=100)], ...], Field(min_length=2, max_length=8, strict=False)
    ]
    top: int = Field(5, ge=1, le=20)  # number of predicted tokens to show, most likely first

    def filled(self) -> list[str]:
        """Return one sentence per group, with the group inserted and the mask kept."""
        return [self.template.replace(GROUP, group) for group in self.groups]


def read_conll(text: str, origin: str, columns: Columns) -> list[Tagged]:
    """Parse a CoNLL file into sentences; raises `ConfigError` if a line is invalid.

    By default, words are in the first column and tags in the last; in CoNLL-U, in FORM and UPOS.
    """
    word_column, tag_column = columns.text, columns.label
    if isinstance(word_column, str) or isinstance(tag_column, str):
        raise ConfigError(
            f"The columns of {origin}, a CoNLL file, are numbers from 0, not names ({word_column!r}, {tag_column!r})."
        )
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    first = next((line.split("\t") for line in lines if "\t" in line and not line.startswith("#")), [""])
    begins_with_one = _FIRST_NUMBER.fullmatch(first[0]) is not None
    is_conllu = begins_with_one and len(first) == CONLLU_COLUMNS
    is_numbered = is_conllu or (begins_with_one and bool(word_column))
    word_column = (FORM if is_conllu else 0) if word_column is None else word_column
    tag_column = (UPOS if is_conllu else -1) if tag_column is None else tag_column
    sentences: list[Tagged] = []
    words: list[tuple[str, str]] = []
    halves: list[int] = []
    width = 0
    for number, line in enumerate([*lines, ""], 1):
        cells = _numbered_cells(line) if is_numbered else _plain_cells(line, has_tabs=len(first) > 1)
        if cells is None:
            continue
        if not cells:
            sentences += [Tagged(*zip(*words, strict=True))] if words else []
            words = []
        elif len(cells) == 1 and "\t" in line:
            halves.append(number)
        else:
            width = width or len(cells)
            _check_columns(cells, width, (word_column, tag_column), f"{origin}, line {number}")
            words.append((cells[word_column], cells[tag_column]))
    if halves:
        logger.warning("%s: %d lines lack a word or its tag, the first is %d", origin, len(halves), halves[0])
    if not sentences:
        raise ConfigError(f"{origin} holds no sentence: it must have a word and its tag on each line.")
    longest = max(len(sentence.words) for sentence in sentences)
    if longest > MANY_WORDS:
        logger.warning("%s: a sentence has %d words: has the file lost the empty lines between them?", origin, longest)
    return sentences


def _plain_cells(line: str, *, has_tabs: bool) -> list[str] | None:
    """Return a line's non-empty cells, [] for the end of a sentence, or None for a comment.

    Tab-separated cells are stripped but not split: words may contain Unicode separators.
    """
    is_comment = line.startswith("# ") and "\t" not in line and (has_tabs or " = " in line)
    if is_comment or line.startswith("# id "):  # sentence header in MultiCoNER
        return None
    cells = [cell for each in line.split("\t") if (cell := each.strip())] if "\t" in line else line.split()
    return [] if cells[:1] == [DOCUMENT_START] else cells


def _numbered_cells(line: str) -> list[str] | None:
    """Return a CoNLL-U line's cells, [] for a sentence's end, None for comments and non-words."""
    cells = [cell.strip() for cell in line.split("\t")]
    if line.startswith("#") or _NO_WORD.fullmatch(cells[0]):
        return None
    return cells if any(cells) else []


def _check_columns(cells: list[str], expected: int, used: tuple[int, int], where: str) -> None:
    shown = " | ".join(cells)
    if len(cells) < 2:
        raise ConfigError(f"{where} has one column ({shown!r:.80}): a word and its tag are needed.")
    if len(cells) != expected:
        raise ConfigError(f"{where} has {len(cells)} columns ({shown!r:.80}), and the lines before have {expected}.")
    for column in used:
        if not -expected <= column < expected:
            raise ConfigError(f"{where} has {expected} columns: there is no column {column} (they count from 0).")


def read_rows(text: str, origin: str) -> list[PlacedRow]:
    """Parse JSON Lines (if the first character is `{`), CSV or TSV into rows with positions.

    Raises `ConfigError` if a row is malformed or there are no rows.
    """
    text = text.removeprefix("\ufeff")
    rows = list(_json_rows(text, origin) if text.lstrip().startswith("{") else _table_rows(text, origin))
    if not rows:
        raise ConfigError(f"{origin} holds no example: it needs a heading and rows, or a JSON object on each line.")
    return rows


def classified(rows: Iterable[PlacedRow], columns: Columns) -> list[Classified]:
    """Convert rows to labelled texts; raises `ConfigError` if a row lacks a text or label."""
    text = "text" if columns.text is None else columns.text
    label = "label" if columns.label is None else columns.label
    return [
        Classified(
            text=_text(row, text, where, "text"),
            pair=None if columns.pair is None else _text(row, columns.pair, where, "pair"),
            label=_text(row, label, where, "label"),
        )
        for where, row in rows
    ]


def text_pairs(rows: Iterable[PlacedRow], columns: Columns) -> list[TextPair]:
    """Convert rows to text pairs; raises `ConfigError` if a row lacks one of the two texts."""
    first, second = "query" if columns.text is None else columns.text, columns.pair or "positive"
    return [TextPair(_text(row, first, where, "text"), _text(row, second, where, "pair")) for where, row in rows]


def tagged(rows: Iterable[PlacedRow], columns: Columns) -> list[Tagged]:
    """Convert rows to tagged sentences; raises `ConfigError` unless each word has a tag."""
    words_in, tags_in = str(columns.text or WORDS), str(columns.label or TAGS)
    found = []
    for where, row in rows:
        words, tags = row.get(words_in), row.get(tags_in)
        if not isinstance(words, list) or not isinstance(tags, list) or len(words) != len(tags):
            known = ", ".join(row)
            raise ConfigError(
                f"{where} has no lists of equal length `{words_in}` and `{tags_in}` (its columns: {known:.200})."
            )
        if any(isinstance(tag, int) for tag in tags):
            raise ConfigError(f"{where} has numbers as tags: the file must have the names of the tags.")
        if words:
            found.append(Tagged(tuple(map(str, words)), tuple(map(str, tags))))
    return found


def questions(rows: Iterable[PlacedRow]) -> list[QuestionExample]:
    """Convert rows with SQuAD's columns to questions; raises `ConfigError` if a row is invalid.

    Empty answers are dropped: in IndicQA they mark questions without an answer.
    """
    found = []
    for where, row in rows:
        try:
            given = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
            answers = [(str(text), int(start)) for text, start in given if str(text).strip()]
            texts, starts = tuple(text for text, _ in answers), tuple(start for _, start in answers)
            name = str(row.get("id", where))
            found.append(QuestionExample(name, str(row["question"]), str(row["context"]), texts, starts))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{where} is not in SQuAD's form ({error!r:.80}).") from error
    return found


def read_squad(text: str, origin: str) -> list[QuestionExample]:
    """Parse SQuAD 1.1 or 2.0; raises `ConfigError` for invalid JSON or a wrong answer position."""
    try:
        rows = [
            {
                **question,
                "context": paragraph["context"],
                "answers": {key: [answer[key] for answer in question.get("answers", [])] for key in ANSWER},
            }
            for article in json.loads(text.removeprefix("\ufeff"))["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
        found = questions((f"{origin}: question {row['id']}", row) for row in rows)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{origin} is not in SQuAD's format ({error!r:.100}).") from error
    if not found:
        raise ConfigError(f"{origin} holds no question.")
    for each in found:
        for answer, start in zip(each.answers, each.starts, strict=True):
            if each.context[start : start + len(answer)] != answer:
                raise ConfigError(
                    f"{origin}: question {each.id}: its answer {answer!r:.60} is not at character {start}."
                )
    return found


def texts(rows: Iterable[PlacedRow], columns: Columns) -> list[str]:
    """Return a dataset's texts; empty rows are skipped."""
    column = str(columns.text or "text")
    return [str(row[column]) for _, row in rows if row.get(column)]


def read_texts(text: str, origin: str) -> list[str]:
    """Return a file's non-empty lines; for JSON Lines, the non-empty lines of each `text`."""
    text = text.removeprefix("\ufeff")
    if text.lstrip().startswith("{"):
        text = "\n".join(_text(row, "text", where) for where, row in _json_rows(text, origin))
    else:
        text = text.replace("\r", "\n")
    found = [stripped for line in text.split("\n") if (stripped := line.strip())]
    if not found:
        raise ConfigError(f"{origin} holds no text.")
    return found


def read_probes(text: str, origin: str) -> list[Probe]:
    """Parse a YAML or JSON list of probes; raises `ConfigError` if a probe is invalid."""
    try:
        probes = TypeAdapter(Annotated[list[Probe], Field(min_length=1, max_length=200)]).validate_python(
            yaml.safe_load(text)
        )
    except yaml.YAMLError as error:
        raise ConfigError(f"{origin} is not valid YAML: {' '.join(str(error).split()):.200}.") from error
    except ValidationError as error:
        raise ConfigError(f"{origin}: {first_mistake(error)}.") from error
    for number, probe in enumerate(probes):
        if probe.template.count(MASK) != 1 or GROUP not in probe.template:
            raise ConfigError(f"{origin}: template {number} ({probe.template!r:.80}) needs one {MASK} and a {GROUP}.")
    return probes


def read_documents(text: str, origin: str) -> dict[str, str]:
    """Parse BEIR queries or documents; return the title (if any) and text of each `_id`."""
    found: dict[str, str] = {}
    for where, row in read_rows(text, origin):
        name, title = _text(row, "_id", where), str(row.get("title") or "").strip()
        if name in found:
            raise ConfigError(f"{where} repeats the `_id` {name!r:.80}.")
        content = title if title and not row.get("text") else _text(row, "text", where)
        found[name] = f"{title} {content}" if title and content != title else content
    return found


def read_judgements(
    text: str, origin: str, queries: Mapping[str, str], corpus: Mapping[str, str], limit: int | None
) -> RetrievalSet:
    """Build a retrieval set of at most `limit` queries from judgements (query, document, grade).

    Raises `ConfigError` if an id is unknown or a score is not an integer.
    """
    judged: dict[str, dict[str, int]] = {}
    for where, row in read_rows(text, origin):
        query, document = _text(row, "query-id", where), _text(row, "corpus-id", where)
        for name, known, kind in ((query, queries, "query"), (document, corpus, "document")):
            if name not in known:
                raise ConfigError(f"{where} names the {kind} {name!r:.80}, which is in no file of the task.")
        try:
            judged.setdefault(query, {})[document] = int(_text(row, "score", where))
        except ValueError as error:
            raise ConfigError(f"{where} has a `score` that is no whole number.") from error
    relevant = [query for query, grades in judged.items() if any(grade > 0 for grade in grades.values())][:limit]
    if not relevant:
        raise ConfigError(f"{origin} names no relevant document for any query.")
    return RetrievalSet(queries, corpus, {query: judged[query] for query in relevant})


def hub_rows(examples: Examples, split: str, limit: int | None) -> list[PlacedRow]:
    """Load a Hub dataset's rows with class names, not numbers; raises `ConfigError` on failure."""
    import datasets

    datasets.logging.set_verbosity(logging.CRITICAL)
    datasets.disable_progress_bars()
    name, split = examples.path.removeprefix(HUB), examples.split or split
    try:
        found = datasets.load_dataset(name, examples.config_name, split=split, revision=examples.revision)
    except Exception as error:  # `datasets` raises many types of exception
        reason = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(
            f"The dataset {name} cannot be read ({reason:.200}): check its name, its `split` and the network."
        ) from error
    found = found.select(range(min(len(found), limit))) if limit is not None else found
    features = found.features
    return [
        (f"{name}, {split} row {place}", {column: _spelled(features[column], row[column]) for column in row})
        for place, row in enumerate(found)
    ]


def _json_rows(text: str, origin: str) -> Iterator[PlacedRow]:
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


def _table_rows(text: str, origin: str) -> Iterator[PlacedRow]:
    heading = text.partition("\n")[0]
    csv.field_size_limit(MAX_CELL_CHARS)
    is_plain = "\t" in heading and _has_plain_quotes(text, heading.count("\t"))
    reader = csv.DictReader(
        io.StringIO(text, newline=""),
        delimiter="\t" if "\t" in heading else ",",
        quoting=csv.QUOTE_NONE if is_plain else csv.QUOTE_MINIMAL,
        strict=True,
    )
    try:
        for row in reader:
            yield f"{origin}, line {reader.line_num}", row
    except csv.Error as error:
        raise ConfigError(f"{origin}, line {reader.line_num} is not CSV ({error}).") from error


def _has_plain_quotes(text: str, tabs: int) -> bool:
    """Return whether quotation marks in a TSV file are ordinary characters, as in PAWS-X.

    In such a file, every line has all its cells, but parsing the quotes fails or merges rows.
    """
    lines = [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]
    if any(line.count("\t") != tabs for line in lines):
        return False
    try:
        return len(list(csv.reader(io.StringIO(text, newline=""), delimiter="\t", strict=True))) < len(lines)
    except csv.Error:
        return True


def _text(row: Row, column: Column, where: str, role: str = "") -> str:
    """Return the text in a column; error messages mention the command's option for `role`."""
    value = row.get(str(column))
    if not isinstance(value, str | int) or value == "":
        known = ", ".join(str(name) for name in list(row)[:10])
        remedy = f"name the right one (--{role}-column, or `columns.{role}` of a task)" if role else "each row needs it"
        raise ConfigError(f"{where} has no `{column}` (its columns: {known:.200}): {remedy}.")
    return str(value)


def _spelled(feature: Any, value: Any) -> Any:
    """Replace class numbers with class names in a Hub dataset's value or list of values."""
    names = getattr(getattr(feature, "feature", feature), "names", None)
    if isinstance(value, list):
        return [names[number] for number in value] if names else value
    return names[value] if names and isinstance(value, int) and 0 <= value < len(names) else value
