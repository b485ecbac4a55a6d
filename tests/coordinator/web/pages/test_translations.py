"""Every language says the same, and the reader gets the right one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from coordinator.ledger.sessions import STATES
from coordinator.web.pages.translations import PLURAL_FORMS, choose_language, flattened, texts_of
from dashboards import WEB, catalogs, english, page_files, page_version

LANGUAGES = list(catalogs())


def names_in(text: Any) -> set[str]:
    """The {names} of a text, or of all its plural forms together."""
    return set(re.findall(r"\{(\w+)\}", text if isinstance(text, str) else " ".join(text.values())))


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_language_is_whole(language: str) -> None:
    """The same keys as in English, none of them empty, with the same values to put in."""
    english, texts = flattened(catalogs()["en"]), flattened(catalogs()[language])
    assert texts.keys() == english.keys()
    for key, text in texts.items():
        if isinstance(text, dict):
            assert "other" in text
            assert text.keys() <= PLURAL_FORMS
        assert all(text.values() if isinstance(text, dict) else [text])
        if key not in {"name", "direction"}:
            assert names_in(text) == names_in(english[key]), key


def test_an_english_text_is_that_of_the_english_pages() -> None:
    """Without values, too, where its {names} stay for a script."""
    translation = texts_of("en")
    assert english("curve.step", step=3) == translation("curve.step", step=3)
    for key in filter(lambda key: key.count(".") == 1, translation.by_key):
        assert english(key) == translation(key)


def used_keys() -> set[str]:
    """Every key that a template or a module names as a whole."""
    texts = [file.read_text(encoding="utf-8") for file in [*WEB.glob("*.html"), *WEB.glob("*.js")]]
    return {key for text in texts for key in re.findall(r"""\bt\(\s*"([a-z_]+\.[\w. -]+)"\s*[,)]""", text)}


def test_every_text_that_a_page_names_exists() -> None:
    """No page shows a key instead of a text."""
    assert used_keys()
    assert used_keys() - texts_of("en").by_key.keys() == set()


def test_every_state_of_a_device_has_its_word() -> None:
    """A member's page shows it for each machine that is online."""
    assert {key.removeprefix("states.") for key in texts_of("en").by_key if key.startswith("states.")} == STATES


def test_values_are_put_in() -> None:
    """In the language's own words."""
    assert texts_of("es")("curve.phase", number=2) == "fase 2"


@pytest.mark.parametrize(
    ("wanted", "accepted", "language"),
    [
        (None, "", "en"),
        (None, "es-MX,es;q=0.9,en;q=0.8", "es"),
        (None, "de, id;q=0.5, bn;q=0.7", "bn"),
        (None, "zh-Hant", "en"),
        (None, ";;;q=, *;q=9" + ",x" * 5000, "en"),
        ("id", "es", "id"),
        ("xx", "es", "es"),
        ("../en", "", "en"),
    ],
)
def test_which_language(wanted: str | None, accepted: str, language: str) -> None:
    """What was chosen, else what the browser likes best of those there are, else English."""
    assert choose_language(wanted, accepted) == language


def test_a_version_is_of_all_files() -> None:
    """Addresses of files carry a version made of what is in them."""
    assert re.fullmatch(r"[0-9a-f]{12}", page_version())
    assert {"style.css", "frame.js", "i18n/bn.json"} <= page_files().keys()
    assert "frame.html" not in page_files()
