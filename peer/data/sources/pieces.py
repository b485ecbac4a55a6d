"""Division of long documents into pieces that are equal on all devices, as filters hash them.

A document is cut near the limit after a paragraph, else a line, else white space, else a grapheme
cluster, which keeps a letter with its marks and an emoji with its modifiers.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from itertools import accumulate

import regex

WINDOW_BYTES = 4096  # bytes before the limit that are searched for a cut
LONGEST_CHARACTER_BYTES = 4
_UTF8 = codecs.getincrementaldecoder("utf-8")
_SEEN_CHARACTER = regex.compile(r"\X")  # Unicode's extended grapheme cluster


def cut_text(text: str, limit: int) -> Iterator[str]:
    """Yield the text in pieces of at most `limit` bytes."""
    if LONGEST_CHARACTER_BYTES * len(text) <= limit:
        yield text
        return
    for piece in cut_bytes(text.encode(), limit):
        yield piece.decode()


def cut_bytes(content: bytes, limit: int) -> Iterator[bytes]:
    """Yield UTF-8 text in pieces of at most `limit` bytes, none of which depends on later text."""
    start = 0
    while len(content) - start > limit:
        end = _end_of_piece(content, start, limit)
        yield content[start:end]
        start = end
    yield content[start:]


def _end_of_piece(content: bytes, start: int, limit: int) -> int:
    longest = start + limit
    for separator in (b"\n\n", b"\n"):
        found = content.rfind(separator, start + limit // 2, longest)
        if found >= 0:
            return found + len(separator)
    first = _whole_character(content, max(longest - WINDOW_BYTES, start), step=1)
    # Includes the code point after the limit, which shows whether the previous character is
    # complete.
    text = _UTF8("surrogateescape").decode(content[first : longest + LONGEST_CHARACTER_BYTES])
    sizes = (len(character.encode("utf-8", "surrogateescape")) for character in _SEEN_CHARACTER.findall(text)[:-1])
    ends = [end for end in accumulate(sizes, initial=first) if start < end <= longest]
    behind_space = [end for end in ends if content[end - 1 : end].isspace()]
    # A single character longer than the window is cut between two code points.
    return (behind_space or ends or [max(_whole_character(content, longest, step=-1), start + 1)])[-1]


def _whole_character(content: bytes, at: int, step: int) -> int:
    """Return the boundary of a UTF-8 character nearest to `at` in the direction of `step`."""
    for place in range(at, at + LONGEST_CHARACTER_BYTES * step, step):
        if not 0 < place < len(content) or content[place] & 0xC0 != 0x80:
            return place
    return at  # reached in invalid UTF-8 only
