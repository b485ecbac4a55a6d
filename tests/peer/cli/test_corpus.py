"""`manyhands corpus sample`, as a person at a terminal and as a script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from auth.errors import ConfigError, ManyhandsError
from peer.cli.corpus import app
from peer.config.data import Sampling
from peer.data.corpus.sampling import Target
from peer.data.selection.perplexity import decide, probabilities
from peer.data.selection.scoring import open_scorer
from tests.support.many_scripts import BENGALI, ENGLISH
from tests.support.programs import require, require_kenlm
from tests.support.small_scorers import write_arpa

DOCUMENTS = 400


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents in two scripts, of which a tenth are copies."""
    rng = np.random.default_rng(0)
    vocabulary = (ENGLISH + " " + BENGALI).split()
    texts = [" ".join(rng.choice(vocabulary, rng.integers(5, 60))) for _ in range(DOCUMENTS)]
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in [*texts, *texts[: DOCUMENTS // 10]]]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def succeed(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["sample", *arguments], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.stdout


def fail(*arguments: str) -> ManyhandsError:
    error = CliRunner().invoke(app, ["sample", *arguments]).exception
    assert isinstance(error, ManyhandsError), error
    return error


def read(*arguments: str) -> Any:
    return json.loads(succeed(*arguments, "--json"))


def texts_of(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("method", ["random", "stepwise", "gaussian"])
def test_each_method_keeps_about_the_target_and_can_be_repeated_from_what_it_wrote(
    corpus: Path, tmp_path: Path, method: str
) -> None:
    """The printed section decides about the same documents in the same way."""
    out = tmp_path / "out"
    facts = read(str(corpus), "--out", str(out), "--target", "120", "--method", method, "--packing", "none")
    assert facts["read"] == 440
    assert facts["expected"] == pytest.approx(120, abs=2)
    assert facts["kept"] == pytest.approx(120, abs=30)
    kept = texts_of(out / "documents.jsonl")
    assert len(kept) == facts["kept"] == sum(part["kept"] for part in facts["quartiles"])
    section = yaml.safe_load((out / "sampling.yaml").read_text())
    sampling = Sampling.model_validate(section["sampling"])
    every = texts_of(corpus)
    chosen = decide(every, probabilities(sampling, open_scorer(sampling.scorer, None).perplexities(every)))
    assert kept == [text for text, is_kept in zip(every, chosen, strict=True) if is_kept]
    assert facts["sampling"] == sampling.model_dump(mode="json", exclude_none=True)


def test_the_pictures_are_there_and_the_page_needs_nothing_else(corpus: Path, tmp_path: Path) -> None:
    """A PNG, and a page with the picture, the table and the run file's part."""
    printed = succeed(str(corpus), "--out", str(tmp_path / "out"), "--target", "25%")
    assert (tmp_path / "out" / "distributions.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    for part in ("<svg", "Q1 to Q2", "method: gaussian", "as expected" if "<text" in page else "<path"):
        assert part in page
    assert "<script" not in page
    assert 'src="' not in page
    for part in ("up to Q1", "quartiles:", "share of the kept"):
        assert part in printed


def test_documents_of_one_sentence_are_counted(corpus: Path, tmp_path: Path) -> None:
    """For people in a sentence; for scripts the share stands alone."""
    arguments = (str(corpus), "--method", "random", "--target", "10%")
    shown = " ".join(succeed(*arguments, "--out", str(tmp_path / "shown")).split())
    assert "documents are one sentence; they take no part in the sentence-order loss." in shown
    assert 0 < read(*arguments, "--out", str(tmp_path / "content"))["single_sentences"] < 1


@pytest.mark.parametrize("kind", ["exact", "near"])
def test_duplicates_are_dropped_before_the_target_is_reckoned(corpus: Path, tmp_path: Path, kind: str) -> None:
    """All that is left can be asked for; each text is then there once."""
    facts = read(
        str(corpus), "--out", str(tmp_path / "out"), "--target", "100%", "--duplicates", kind, "--packing", "none"
    )
    kept = texts_of(tmp_path / "out" / "documents.jsonl")
    assert facts["duplicates dropped"] == 40
    assert len(kept) == len(set(kept)) == DOCUMENTS
    assert yaml.safe_load((tmp_path / "out" / "sampling.yaml").read_text())["duplicates"] == kind


def test_a_given_model_scores(corpus: Path, tmp_path: Path) -> None:
    """KenLM's, raw or on normalized text."""
    arpa = write_arpa(tmp_path / "model.arpa")
    facts = read(
        str(corpus), "--out", str(tmp_path / "out"), "--target", "0.5", "--kenlm", str(arpa), "--normalize",
        "--method", "random",
    )  # fmt: skip
    assert facts["sampling"]["scorer"] == {"kind": "kenlm", "model": str(arpa), "text": "words"}


def test_a_model_is_trained_on_clean_text(corpus: Path, tmp_path: Path) -> None:
    """By KenLM's own program; the model lies beside what it chose."""
    require_kenlm()
    require("lmplz")
    facts = read(str(corpus), "--out", str(tmp_path / "out"), "--target", "0.5", "--clean", str(corpus), "--order", "3")
    assert facts["sampling"]["scorer"]["model"] == str(tmp_path / "out" / "model.arpa")
    assert (tmp_path / "out" / "model.arpa").is_file()


def test_without_the_program_that_trains_models_nothing_is_left_behind(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence names it."""
    monkeypatch.setenv("PATH", "")
    error = fail(str(corpus), "--out", str(tmp_path / "out"), "--target", "0.5", "--clean", str(corpus))
    assert "`lmplz`" in str(error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--target", "many"), "--target (many) must be a whole number"),
        (("--target", "0"), "--target (0) must be a whole number"),
        (("--target", "441"), "--target (441) is more than the 440 documents"),
        (("--target", "1", "--method", "best"), "--method (best) must be one of random, stepwise, gaussian."),
        (("--target", "1", "--duplicates", "all"), "--duplicates (all) must be one of"),
        (("--target", "1", "--packing", "zip"), "--packing (zip) must be one of"),
        (("--target", "1", "--factors", "1,1,1,1"), "--factors is for stepwise"),
        (("--target", "1", "--method", "stepwise", "--factors", "1,2"), "--factors (1,2) must be four numbers"),
        (("--target", "1", "--width", "-1"), "--width (-1.0) must be a number above 0."),
        (("--target", "1", "--kenlm", "none.arpa"), "There is no KenLM model at none.arpa"),
        (("--target", "1", "--kenlm", "a", "--clean", "b"), "exclude each other"),
        (("--target", "1", "--kenlm", "ssh://a/b"), "is no path or address of a file"),
        (("--target", "90%", "--method", "stepwise", "--factors", "1,0,0,0"), "lower --target, or raise the factors"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(
    corpus: Path, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    """And nothing is left behind."""
    if "--kenlm" in arguments:
        require_kenlm()
    error = fail(str(corpus), "--out", str(tmp_path / "out"), *arguments)
    assert isinstance(error, ConfigError)
    assert sentence in str(error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_what_is_interrupted_leaves_nothing(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """By Ctrl-C, or by a full disk, which is told with its own exit code."""

    def write_kept(*_: Any) -> None:
        raise error

    monkeypatch.setattr("peer.cli.corpus.write_kept", write_kept)
    result = CliRunner().invoke(app, ["sample", str(corpus), "--out", str(tmp_path / "out"), "--target", "9"])
    assert result.exit_code != 0
    if isinstance(error, OSError):
        assert isinstance(result.exception, ManyhandsError)
        assert "No space left" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_target_is_a_number_or_a_share() -> None:
    """A number of documents becomes the share that it is of all."""
    assert Target.parse("50").share_of(200) == 0.25
    assert Target.parse("1").share_of(200) == 0.005
    assert Target.parse("25%").share_of(200) == Target.parse("0.25").share_of(3) == 0.25


@pytest.mark.parametrize("text", ["250000", "250,000", "250_000"])
def test_thousands_may_be_parted(text: str) -> None:
    """As people write them, and as the messages do."""
    assert Target.parse(text) == Target(number=250_000)


@pytest.mark.parametrize(
    "text", ["0,5%", "0,1", "1,5", "25,00", "1,000%", "2500,000", ",", "", "%", "1.5", "-1", "nan"]
)
def test_a_comma_elsewhere_is_no_separator(text: str) -> None:
    """Half a percent, as many languages write it, is not taken for five; and what is no number is refused as ever."""
    with pytest.raises(ConfigError, match="must be a whole number of documents, or a share"):
        Target.parse(text)
