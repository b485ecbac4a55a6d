"""`manyhands tokenizer`: train and inspect, as a person at a terminal and as a script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from auth.errors import ManyhandsError
from peer.cli.tokenizer import KeepSome, app
from peer.data.tokenization.tokenizers import load_tokenizer
from tests.support.many_scripts import BENGALI, ENGLISH, PROSE


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a corpus of 600 documents."""
    folder = tmp_path_factory.mktemp("run")
    texts = [f"{PROSE[number % 3]} Number {number} of many." for number in range(600)]
    (folder / "corpus.txt").write_text("\n\n".join(texts), encoding="utf-8")
    (folder / "run.yaml").write_text(
        f"tokenizer: {{vocab_size: 300}}\ndata: {{sources: [{{kind: text, path: {folder / 'corpus.txt'}}}]}}\n"
    )
    return folder / "run.yaml"


@pytest.fixture(scope="module")
def trained(run_file: Path) -> Path:
    """A tokenizer that the command trained."""
    out = run_file.parent / "tokenizer"
    succeed("train", str(run_file), str(out))
    return out


def succeed(*arguments: str) -> str:
    """What the command prints."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.stdout


def fail(*arguments: str) -> ManyhandsError:
    """The error that the front door turns into a sentence and an exit code."""
    error = CliRunner().invoke(app, list(arguments)).exception
    assert isinstance(error, ManyhandsError)
    return error


def read(*arguments: str) -> Any:
    """What the command prints for scripts."""
    return json.loads(succeed(*arguments, "--json"))


def test_a_refusal_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The error that ends the command is not logged before it, too, and it leaves no half-made folder."""
    (corpus := tmp_path / "corpus.txt").write_bytes(bytes(range(256)) * 100)
    (config := tmp_path / "run.yaml").write_text(f"data: {{sources: [{{kind: text, path: {corpus}}}]}}\n")
    error = fail("train", str(config), str(tmp_path / "out"))
    assert "corpus.txt` is" in str(error)
    assert caplog.messages == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "run.yaml"]


def test_training_prints_a_summary_measured_on_documents_that_it_kept_apart(run_file: Path, tmp_path: Path) -> None:
    """Every document is either trained on or measured by."""
    facts = read("train", str(run_file), str(tmp_path / "out"))
    assert facts["vocabulary"] == load_tokenizer(tmp_path / "out").get_vocab_size()
    assert (facts["preset"], facts["algorithm"]) == ("albert", "unigram")
    fit = facts["fit"]
    assert 0 < fit["documents"] < 40
    assert facts["documents"] + fit["documents"] == 600
    assert fit["unknown_rate"] == 0
    assert fit["characters_per_token"] > 1


def test_the_summary_for_people_says_the_same(trained: Path, run_file: Path, tmp_path: Path) -> None:
    """One fact on each line."""
    printed = succeed("train", str(run_file), str(tmp_path / "out"))
    for fact in ("vocabulary", "characters per token", "unknown tokens        0.000%"):
        assert fact in printed


def test_a_folder_with_something_in_it_is_left_alone(run_file: Path, tmp_path: Path) -> None:
    """Nothing is overwritten, and nothing is left behind by a failure."""
    (tmp_path / "precious").write_text("data")
    assert "exists and is not empty: choose another directory" in str(fail("train", str(run_file), str(tmp_path)))
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_a_tokenizer_to_import_cannot_be_trained(tmp_path: Path) -> None:
    """The run file says two things at once."""
    (tmp_path / "run.yaml").write_text("tokenizer: {path: somewhere}")
    assert "names a tokenizer to import: remove it" in str(fail("train", str(tmp_path / "run.yaml"), "out"))


def test_a_text_is_shown_token_by_token(trained: Path) -> None:
    """With ids, places, and what each token covers."""
    tokens = read("inspect", str(trained), ENGLISH)["tokens"]
    assert tokens[0] == {"token": "[CLS]", "id": 2, "start": 0, "end": 0, "text": ""}
    assert "".join(token["text"] for token in tokens) == ENGLISH
    assert all(ENGLISH[token["start"] : token["end"]] == token["text"] for token in tokens)
    assert "▁the" in succeed("inspect", str(trained), ENGLISH)


def test_without_a_text_the_parts_and_the_telling_tokens_are_shown(trained: Path) -> None:
    """From a folder or its file."""
    content = read("inspect", str(trained))
    assert content["vocabulary"] == load_tokenizer(trained).get_vocab_size()
    assert [step["type"] for step in content["normalizers"]] == ["Nmt", "NFKC", "Replace", "Lowercase"]
    assert content["special_tokens"]["mask"] == {"token": "[MASK]", "id": 4}
    assert content["fit"] is None
    printed = succeed("inspect", str(trained / "tokenizer.json"))
    for part in (
        "Nmt, NFKC, Replace(pattern=' {2,}', content=' '), Lowercase",
        "[MASK]",
        "mixed scripts",
        "all, longest first",
    ):
        assert part in printed


def test_a_tokenizer_is_measured_by_a_corpus_or_a_file(trained: Path, run_file: Path, tmp_path: Path) -> None:
    """By no more documents than wanted."""
    by_corpus = read("inspect", str(trained), "--corpus", str(run_file), "--documents", "50")["fit"]
    assert by_corpus["documents"] == 50
    (tmp_path / "text.txt").write_text(f"{BENGALI} ☃", encoding="utf-8")
    by_file = read("inspect", str(trained), "--text-file", str(tmp_path / "text.txt"))["fit"]
    assert by_file["unknown"] == 1
    assert by_file["unknown_rate"] == 1 / by_file["tokens"]
    assert "words split" in succeed("inspect", str(trained), "--text-file", str(tmp_path / "text.txt"))


def test_a_text_and_a_corpus_exclude_each_other(trained: Path, run_file: Path) -> None:
    """What was meant is asked, not guessed."""
    assert "exclude each other" in str(fail("inspect", str(trained), "a text", "--corpus", str(run_file)))


def test_a_wrong_path_is_one_sentence(tmp_path: Path) -> None:
    """The file is named once."""
    missing = tmp_path / "missing.json"
    assert str(fail("inspect", str(missing))) == f"Cannot read the tokenizer {missing}: No such file or directory."


def test_the_same_documents_are_kept_apart_each_time() -> None:
    """Chosen by their text, and no more of them than memory should hold."""
    texts = [f"document {number}" for number in range(5000)]
    first, second = KeepSome(texts), KeepSome(reversed(texts))
    assert set(first) == set(second)
    assert set(first.kept) == set(second.kept)
    assert 50 < len(first.kept) < 150
    few = KeepSome(texts, max_kept=3)
    assert len(list(few)) == few.passed == 4997
