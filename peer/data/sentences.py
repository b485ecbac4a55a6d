"""Where one sentence ends and the next begins, for scripts that mark it: Latin, Cyrillic, Greek, Indic, CJK and others.

Sentences matter here as the places where text may be cut (packing) and swapped (sentence order); a rare wrong cut costs
little, so that no language model or word list is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

CLOSERS = r"[\"'”’»)\]]*"  # quotes and brackets that belong to the sentence they follow
# A full stop ends a sentence where white space follows it and no small letter (as in "e.g. this"); dandas and CJK marks
# always do, for they are often written without a space; so does an empty line.
BOUNDARY = re.compile(rf"[.!?…؟۔]{CLOSERS}(?=\s+[^\sa-zà-öø-ÿ])|[।॥。！？]+{CLOSERS}|\n(?=[^\S\n]*\n)")
LINE_END = re.compile(r"\n")
MAX_CHARACTERS = 1000  # a longer "sentence" is a poem, a list or a table: its lines are the sentences


def split_sentences(document: str) -> list[str]:
    """The document's sentences in order, stripped; nothing but white space is lost."""
    sentences: list[str] = []
    for sentence in _pieces(document, BOUNDARY):
        sentences.extend(_pieces(sentence, LINE_END) if len(sentence) > MAX_CHARACTERS else (sentence,))
    return sentences


def _pieces(text: str, boundary: re.Pattern[str]) -> Iterator[str]:
    start = 0
    for match in boundary.finditer(text):
        if piece := text[start : match.end()].strip():
            yield piece
        start = match.end()
    if piece := text[start:].strip():
        yield piece
