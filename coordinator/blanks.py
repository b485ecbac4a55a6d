"""Sentences with blanks, as visitors write them: what may be asked, and where the blanks are. Pure.

A blank is `[MASK]`, `<mask>` or three underscores, whatever the run's tokenizer calls it. A causal model has no blanks:
it is asked what follows the sentence.
"""

from __future__ import annotations

import re
import unicodedata

from auth.errors import RequestError

MAX_CHARACTERS = 300
MAX_BLANKS = 4
BLANK = "[MASK]"  # as sentences are stored and shown
_SPELLINGS = re.compile(r"\[mask\]|<mask>|_{3,}", re.IGNORECASE)


def clean_sentence(text: str, *, masked: bool) -> str:
    """The sentence in one form, so that equal ones are known again; raises `RequestError` for one that cannot be asked.

    `masked`: the run's model fills blanks; else it continues.
    """
    printable = "".join(character if character.isprintable() else " " for character in text)
    sentence = " ".join(unicodedata.normalize("NFC", _SPELLINGS.sub(BLANK, printable)).split())
    if not sentence:
        raise RequestError("The sentence is empty: write one.")
    if len(sentence) > MAX_CHARACTERS:
        raise RequestError(f"The sentence has {len(sentence)} characters; {MAX_CHARACTERS} are allowed.")
    blanks = sentence.count(BLANK)
    if masked and not 1 <= blanks <= MAX_BLANKS:
        raise RequestError(f"The sentence has {blanks} blanks; write {BLANK} for one to {MAX_BLANKS} of its words.")
    if masked and sentence.replace(BLANK, "").strip() == "":
        raise RequestError("The sentence is nothing but blanks: leave some words.")
    if not masked and blanks:
        raise RequestError(f"This run's model continues sentences and fills no blanks: leave {BLANK} out.")
    return sentence
