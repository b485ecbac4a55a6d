"""Names that look like others: one script a word, and a skeleton that is nobody else's."""

from __future__ import annotations

import pytest

from auth.errors import ConfigError
from auth.look_alikes import check_new_name, skeleton

CYRILLIC_A = "\u0430"


@pytest.mark.parametrize(
    "name",
    [
        "ada",
        "Zo\u00eb M\u00fcller-L\u00fcdenscheidt",
        "\u0985\u09b0\u09c1\u09a3 \u09ae\u09c1\u0996\u09cb\u09aa\u09be\u09a7\u09cd\u09af\u09be\u09af\u09bc",  # Bengali
        "\u0410\u043b\u0435\u043a\u0441\u0435\u0439 7",  # Russian
        "\u5c71\u7530\u3055\u304f\u3089",  # Japanese
        "Ada \u0410\u0434\u0430",  # a word of each
        "hf:ada",
        "\U0001f40b 42",
    ],
)
def test_names_of_one_script_are_taken(name: str) -> None:
    """In every script, with marks and digits; each word may be of another one."""
    check_new_name(name, ["bob"])


@pytest.mark.parametrize("name", [f"{CYRILLIC_A}da", "\u0391lan", f"ad{CYRILLIC_A}\u0301", "bob \u03bf\u0301x"])
def test_a_word_of_two_scripts_is_refused(name: str) -> None:
    """A letter that hides among others is named by its script."""
    with pytest.raises(ConfigError, match=r"several scripts in a word \((Cyrillic|Greek), Latin\)"):
        check_new_name(name, [])


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("\u0441\u043e\u0440\u0430", "copa"),
        ("ADA", "ada"),
        ("\uff41\uff44\uff41", "ada"),
        ("B\u03bfb".replace("\u03bf", "0"), "bob"),
        ("\u0430\u0501\u0430", "Ada"),
    ],
)
def test_a_name_that_looks_like_anothers_is_refused(name: str, other: str) -> None:
    """Whole words of another script, other widths, cases and digits."""
    assert skeleton(name) == skeleton(other)
    with pytest.raises(ConfigError, match="looks like it"):
        check_new_name(name, [other, "eve"])
    check_new_name(name, ["eve"])
