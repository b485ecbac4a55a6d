"""Recipes load as they are and in other languages, with text that exists for the language."""

from __future__ import annotations

import re

import pytest

from auth.errors import ConfigError
from peer.config.recipes import RECIPES, load_recipe, recipe_text
from peer.config.run import BUILTIN_RUNS, RunConfig


def configurations(config: RunConfig) -> dict[str, str | None]:
    """The configuration of each of the run's data sets on the hub."""
    return {source.name: source.config_name for source in config.data.sources}


def test_each_run_file_that_ships_is_the_demos_or_a_recipe() -> None:
    """No run file in the package goes without a name."""
    assert {path.stem for path in BUILTIN_RUNS.iterdir()} == {"demo", *RECIPES}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_in_its_own_language_is_its_file(name: str) -> None:
    """Only the run's name tells that the language was given."""
    own = load_recipe(name)
    given = load_recipe(name, own.run.language)
    assert given.run.name == f"{name}-{own.run.language}"
    assert given == own.model_copy(update={"run": given.run})


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_averages_beside_training_in_the_way_that_suits_the_lines(name: str) -> None:
    """Exact averages, which are slow on home lines, are for those who ask for them; nothing else differs."""
    fast, exact = load_recipe(name), load_recipe(name, is_exact=True)
    assert (fast.averaging.compression, fast.averaging.delay) == ("auto", True)
    assert (exact.averaging.wire_format, exact.averaging.powersgd_rank, exact.averaging.delay) == ("float16", 0, False)
    assert exact.averaging.averaging_timeout_s >= fast.averaging.averaging_timeout_s
    assert exact == fast.model_copy(update={"averaging": exact.averaging})
    assert "exact: " in recipe_text(name)
    assert "exact: " not in recipe_text(name, is_exact=True)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_names_its_clipping_with_the_reason(name: str) -> None:
    """The reader sees what the authors did, and does not have to know the default."""
    assert re.search(r"^  max_grad_norm: 1\.0  # \w+", recipe_text(name), re.MULTILINE)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(
    ("language", "wikipedia", "web"),
    [
        ("fi", "fi", "fi"),
        ("en", "en", "en"),
        ("he", "he", "iw"),
        ("nb", "no", "no"),  # `no` is false in YAML unless it is quoted
        ("no", "no", "no"),
        ("yue", "zh-yue", None),
        ("zh-yue", "zh-yue", None),
        ("zh-nan-Hant", "zh-min-nan", None),
        ("zh-min-nan", "zh-min-nan", None),
        ("zh-LZH", "zh-classical", None),
        ("zh-cmn-Hans", "zh", "zh"),
        ("zh-min", "zh", "zh"),  # `min` alone is Minangkabau
        ("ms-min", "min", None),
        ("ab", "ab", None),
        ("zh-Hant", "zh", "zh"),
        ("PT-br", "pt", "pt"),
    ],
)
def test_a_language_chooses_the_text(name: str, language: str, wikipedia: str, web: str | None) -> None:
    """Each data set has its own codes; where C4 lacks the language, Wikipedia is the only source."""
    config = load_recipe(name, language)
    expected = {"`wikimedia/wikipedia`": f"20231101.{wikipedia}"} | ({"`allenai/c4`": web} if web else {})
    assert configurations(config) == expected
    assert config.run.language == language
    assert config.run.name == f"{name}-{language.lower()}"
    own = load_recipe(name)
    for section in ("model", "objective", "optimizer", "schedule", "averaging", "checkpoints"):
        assert getattr(config, section) == getattr(own, section)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(("language", "words"), [("bn", "bengali"), ("fi", "albert")])
def test_alberts_tokenizer_is_the_languages(name: str, language: str, words: str) -> None:
    """Vocabularies of bytes serve every language."""
    preset = load_recipe(name, language).tokenizer.preset
    assert preset == (words if name == "albert-large" else "byte-level")


@pytest.mark.parametrize("name", RECIPES)
def test_comments_are_true_in_each_language(name: str) -> None:
    """The comments are those of the file that ships, and name no language or source of the text."""
    own, other = (re.findall("#.*", recipe_text(name, code)) for code in (None, "ab"))
    assert own == other
    assert "arXiv" in recipe_text(name, "ab").partition("run:")[0]
    assert [line for line in own if re.search(r"\b(Bengali|English|Wikipedia|C4|web)\b", line)] == []


@pytest.mark.parametrize("name", RECIPES)
def test_the_description_names_the_languages_sources(name: str) -> None:
    """The description is public; without web pages Wikipedia stands alone."""
    own, finnish, abkhaz = (load_recipe(name, code).run.description for code in (None, "fi", "ab"))
    assert own == finnish
    assert finnish.endswith(", on Wikipedia and web pages.")
    assert abkhaz == finnish.replace(" and web pages", "")


@pytest.mark.parametrize(
    ("name", "language", "parts"),
    [
        ("albert-huge", None, ["`albert-huge`", "take albert-large", "or gpt2-small"]),
        ("../demo", "fi", ["`../demo`", "take albert-large"]),
        ("", None, ["take albert-large"]),
        ("gpt2-small", "finnish", ["`--language`", "'finnish'", "such as `bn` or `zh-Hant`"]),
        ("gpt2-small", "", ["`--language`", "such as `bn` or `zh-Hant`"]),
        ("gpt2-small", "fi\nmodel: {}", ["`--language`", "such as `bn` or `zh-Hant`"]),
        ("gpt2-small", "tlh", ["`--language` (tlh)", "no Wikipedia", "sources of your own"]),
        ("gpt2-small", "simple", ["`--language`"]),
        ("gpt2-small", "als", ["`--language` (als)", "no Wikipedia"]),  # Albanian's code, Alemannic's Wikipedia
    ],
)
def test_what_there_is_not_is_one_clear_sentence(name: str, language: str | None, parts: list[str]) -> None:
    """The message names the option, the value and what to do."""
    with pytest.raises(ConfigError) as caught:
        recipe_text(name, language)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    assert [part for part in parts if part not in message] == []
