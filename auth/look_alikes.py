"""Detection of confusable names, based on Unicode Technical Standard 39.

Each word of a new name must use a single script, so that it cannot contain a look-alike letter of
another script. Names with equal skeletons look alike, so the skeleton of a new name must not be in
use. Existing names remain valid.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator

from auth.errors import ConfigError

# Japanese and Korean words mix these scripts, whose letters do not look alike.
_EAST_ASIAN = frozenset({"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "LATIN"})

# Lowercase Latin letters with their look-alikes: digits and Cyrillic, Greek, Armenian and other
# Latin letters.
_LOOKS = {
    "a": "\u0430\u03b1\u0251",
    "b": "\u0432\u03b2\u044c\u00df",
    "c": "\u0441\u03f2",
    "d": "\u0501",
    "e": "\u0435\u03b5",
    "g": "\u0261\u0581",
    "h": "\u04bb\u043d\u0570\u03b7",
    "i": "\u0456\u03b9\u0131\u0269\u03ca\u0457",
    "j": "\u0458\u03f3",
    "k": "\u043a\u03ba",
    "l": "\u04cf1|\u01c0",
    "m": "\u043c",
    "n": "\u0578",
    "o": "\u043e\u03bf\u0585\u03c30",
    "p": "\u0440\u03c1",
    "q": "\u051b\u0563",
    "r": "\u0433",
    "s": "\u0455",
    "t": "\u0442\u03c4",
    "u": "\u03c5\u057d",
    "v": "\u03bd\u0475",
    "w": "\u051d\u0461\u03c9",
    "x": "\u0445\u03c7",
    "y": "\u0443\u04af\u03b3",
    "z": "\u0437\u03b6",
}
_LATIN_OF = str.maketrans({other: latin for latin, others in _LOOKS.items() for other in others})


def skeleton(name: str) -> str:
    """Return a name's skeleton. Names that look alike have the same skeleton."""
    return unicodedata.normalize("NFKC", name).casefold().translate(_LATIN_OF)


def mixed_scripts(name: str) -> list[str]:
    """Return the scripts of the first word that mixes scripts, or an empty list if there is none."""
    for word in _words(unicodedata.normalize("NFKC", name)):
        scripts = {_script(letter) for letter in word}
        if len(scripts) > 1 and not scripts <= _EAST_ASIAN:
            return sorted(script.capitalize() for script in scripts)
    return []


def check_new_name(name: str, taken: Iterable[str]) -> None:
    """Raise `ConfigError` if a word of the name mixes scripts or the name resembles a taken one."""
    mixed = mixed_scripts(name)
    if mixed:
        raise ConfigError(f"The name {name!r} has letters of several scripts in a word ({', '.join(mixed)}): use one.")
    look = skeleton(name)
    if any(skeleton(other) == look for other in taken):
        raise ConfigError(f"The name {name!r} is another member's, or looks like it: choose another.")


def _words(text: str) -> Iterator[str]:
    """Yield the letters of each word; combining marks do not end a word."""
    word = ""
    for character in text:
        if character.isalpha():
            word += character
        elif not unicodedata.category(character).startswith("M"):
            yield word
            word = ""
    yield word


def _script(letter: str) -> str:
    """Return a letter's script, which is the first word of its Unicode name."""
    return unicodedata.name(letter, "?").partition(" ")[0]
