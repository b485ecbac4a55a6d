"""CoNLL files: a word a line with its tags in further columns, an empty line after each sentence.

Tolerant of what such files have in earnest: any line ends, a byte order mark, tabs or spaces between columns, columns
left empty, several empty lines, `-DOCSTART-` lines and CoNLL-U's comments. A line with a tab and nothing on one of its
sides, a tag without a word or a word without a tag, is passed over with a warning. What else cannot be read is an
error that names the line. A sentence of thousands of words is told, and taken as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from auth.errors import ConfigError

logger = logging.getLogger(__name__)
DOCUMENT_START = "-DOCSTART-"
MANY_WORDS = 1000  # more than any sentence has


@dataclass(frozen=True)
class Tagged:
    """A sentence: words and, for each, its tag."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_conll(text: str, origin: str, word_column: int = 0, tag_column: int = -1) -> list[Tagged]:
    """All sentences that have a word; raises `ConfigError` naming the line."""
    sentences: list[Tagged] = []
    words: list[tuple[str, str]] = []
    columns = 0
    halves: list[int] = []
    for number, cells in _rows(text):
        if cells is None:
            halves.append(number)
            continue
        if not cells:
            sentences += _closed(words)
            words = []
            continue
        columns = columns or len(cells)
        _check_columns(cells, columns, (word_column, tag_column), f"{origin}, line {number}")
        words.append((cells[word_column], cells[tag_column]))
    sentences += _closed(words)
    if halves:
        logger.warning("%s: %d lines lack a word or its tag, the first is %d", origin, len(halves), halves[0])
    if not sentences:
        raise ConfigError(f"{origin} holds no sentence: it must have a word and its tag on each line.")
    longest = max(len(sentence.words) for sentence in sentences)
    if longest > MANY_WORDS:
        logger.warning("%s: a sentence has %d words: has the file lost the empty lines between them?", origin, longest)
    return sentences


def _rows(text: str) -> Iterator[tuple[int, list[str] | None]]:
    """Each line's number from 1 and its cells; an empty list ends a sentence, None is half a line.

    Only what ends a line in a file does so here: words may hold other Unicode separators.
    """
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, line in enumerate(lines, 1):
        if line.startswith("# ") and " = " in line and "\t" not in line:
            continue
        cells = [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()
        given = [cell for cell in cells if cell]
        if len(given) == 1 and len(cells) > 1:
            yield number, None
            continue
        cells = given
        yield number, [] if cells[:1] == [DOCUMENT_START] else cells


def _check_columns(cells: list[str], expected: int, used: tuple[int, int], where: str) -> None:
    shown = " | ".join(cells)
    if len(cells) < 2:
        raise ConfigError(f"{where} has one column ({shown!r:.80}): a word and its tag are needed.")
    if len(cells) != expected:
        raise ConfigError(f"{where} has {len(cells)} columns ({shown!r:.80}), and the lines before have {expected}.")
    for column in used:
        if not -expected <= column < expected:
            raise ConfigError(f"{where} has {expected} columns: there is no column {column} (they count from 0).")


def _closed(words: list[tuple[str, str]]) -> list[Tagged]:
    return [Tagged(tuple(word for word, _ in words), tuple(tag for _, tag in words))] if words else []
