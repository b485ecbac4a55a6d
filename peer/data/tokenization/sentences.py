"""Detection of sentence boundaries in as many languages and scripts as possible.

Sentence ends are used only to cut text (packing) and to swap it (sentence order), so a rare wrong
end does little harm. The library sentencex knows the marks of all scripts and the abbreviations of
many languages. This module replaces marks that sentencex misreads, ignores full stops that do not
end a sentence, and bounds the time spent on unusual texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sentencex import segment

MAX_CHARACTERS = 1000  # a longer "sentence" is a poem, a list or a table, and is split into lines
BLOCK_CHARACTERS = 2000  # characters per call: the library takes quadratic time without spaces

EMPTY_LINE = re.compile(r"\n[^\S\n]*\n")
SURROGATE = re.compile(r"[\ud800-\udfff]")  # halves of surrogate pairs, allowed in JSON only
# The library panics at white space of two or three bytes, and removes "\r".
ODD_SPACE = re.compile(r"[^\S \n\t]")
# Marks that the library misreads, and their replacements, of equal length to preserve positions.
READ_AS = (
    ("។", "।"),  # Khmer
    ("៕", "॥"),
    ("།", "।"),  # Tibetan
    ("༎", "॥"),
    ("፡፡", "፡።"),  # Amharic, as often typed
    ("၊", ","),  # Burmese
    ("…", "."),
    ("\u037e", ";"),  # the Greek question mark, which has its own code point
)
BAR = re.compile(r"(?<=[\u0900-\u0dff])(\s?)\|(?=\s|\Z)")  # a vertical bar typed instead of a danda
ZERO_WIDTH = re.compile(r"(?<=[.!?।])[\u200b\ufeff]")  # invisible, in place of a space between sentences
# Thai and Lao have no full stop; a space ends a sentence or a phrase.
SPACED = ("th", "lo")
PHRASE_END = re.compile(r"(?<=[\u0e01-\u0e4e\u0e81-\u0ece])[^\S\n]+(?=[\u0e01-\u0e4e\u0e81-\u0ede])")
LEAST_PHRASE = 40  # minimum length in characters; a shorter phrase is joined to the next

# A full stop does not end a sentence after the number of a list item or after an initial (one
# letter or, in Indic scripts, one syllable, which includes Bengali's and Hindi's "Dr." and "Mr.").
_SIGN = r"(?!\w)[\u0300-\u036f\u0900-\u0dff]"
_VIRAMA = r"[\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d4d]"
NUMBER = r"(?:\A|\n)[^\S\n]*\(?\d{1,3}"
INITIAL = rf"(?:\A|[-\s(\[\"'“‘«])[^\W\d_](?:{_SIGN}|(?<={_VIRAMA})[^\W\d_])*"
UNFINISHED = re.compile(rf"(?:{NUMBER}|{INITIAL})\.\Z")
# Abbreviations that the library does not know; their full stop does not end a sentence either.
ABBREVIATIONS = {
    language: re.compile(r"\b(?:Jln?|Gg|Kec|Kab|Kel|PT|CV|UD|Tbk|Tn|Ny|Nn|Sdri?|Bpk|Dr[as]|Ir|Hj|KH|hlm|tgl|No)\.\Z")
    for language in ("id", "ms")
}
UNFINISHED_CHARACTERS = 16  # number of final characters that these patterns need


def split_sentences(document: str, language: str) -> list[str]:
    """Split a document into stripped sentences, in order; only white space is lost.

    `language` is a BCP 47 tag; for an unknown language the English abbreviations are used.
    """
    language = language.partition("-")[0].lower()
    text = SURROGATE.sub("\ufffd", document)
    readable = _readable(text)
    sentences: list[str] = []
    start = end = 0
    for piece in _pieces(readable, language):
        end += len(piece)
        if piece.rstrip().endswith(".") and end < len(text) and _goes_on(piece, readable[end], language):
            continue
        sentence = text[start:end].strip()
        start = end
        if "\n" in sentence and (len(sentence) > MAX_CHARACTERS or EMPTY_LINE.search(sentence)):
            sentences.extend(_lines(sentence))
        elif sentence:
            sentences.append(sentence)
    return [phrase for sentence in sentences for phrase in _phrases(sentence)] if language in SPACED else sentences


def segment_safely(text: str, language: str) -> list[str]:
    """Segment a text with the library, keeping white space; return the whole text if the library fails."""
    try:
        pieces: list[str] = segment(language, text)
    except BaseException as error:  # Rust panics do not derive from `Exception`
        if type(error).__module__ != "pyo3_runtime":
            raise
        return [text]
    return pieces


def _readable(text: str) -> str:
    """Replace marks that the library misreads; positions do not change."""
    text = ZERO_WIDTH.sub(" ", BAR.sub(r"\1।", ODD_SPACE.sub(" ", text)))
    for mark, known in READ_AS:
        text = text.replace(mark, known)
    return text


def _pieces(text: str, language: str) -> list[str]:
    """Segment a text of any length with the library, block by block."""
    pieces: list[str] = []
    start = 0
    while start < len(text):
        stop = _block_end(text, start)
        in_block = segment_safely(text[start:stop], language)
        if stop < len(text) and len(in_block) > 1:
            in_block.pop()  # the last sentence may continue after the block
        pieces += in_block
        start += sum(map(len, in_block))
    return pieces


def _block_end(text: str, start: int) -> int:
    """Return the end of the block that begins at `start`: after its last white space, if any."""
    stop = start + BLOCK_CHARACTERS
    if stop >= len(text):
        return len(text)
    cut = max(text.rfind(" ", start, stop), text.rfind("\n", start, stop)) + 1
    return cut if cut > start else stop


def _phrases(sentence: str) -> Iterator[str]:
    """Yield the phrases of a text in which spaces end sentences."""
    start = 0
    for end in PHRASE_END.finditer(sentence):
        if end.start() - start >= LEAST_PHRASE:
            yield sentence[start : end.start()]
            start = end.end()
    yield sentence[start:]


def _goes_on(piece: str, following: str, language: str) -> bool:
    """Return whether the sentence continues after the piece, as after an abbreviation."""
    stripped = piece.rstrip()
    touches = len(stripped) == len(piece) and not following.isspace()
    end, known = stripped[-UNFINISHED_CHARACTERS:], ABBREVIATIONS.get(language)
    is_unfinished = UNFINISHED.search(end) is not None or (known is not None and known.search(end) is not None)
    return touches or following.islower() or is_unfinished


def _lines(sentence: str) -> Iterator[str]:
    """Split a sentence at empty lines, and split overlong parts into lines."""
    for part in EMPTY_LINE.split(sentence):
        for line in part.split("\n") if len(part) > MAX_CHARACTERS else (part,):
            if stripped := line.strip():
                yield stripped
