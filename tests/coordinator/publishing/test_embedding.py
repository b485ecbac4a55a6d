"""Sentence embeddings of a checkpoint: sentence-transformers loads the folder, which is whole or not there."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer
from typer.testing import CliRunner

from auth.errors import ConfigError, UnsoundWeightsError
from coordinator.checkpoints.manifest import StoredCheckpoint, verify
from coordinator.cli.export_model import app
from coordinator.context.open_run import OpenRun
from coordinator.evaluation.tasks import retrieval
from coordinator.evaluation.tasks.plan import EmbedderPlan
from coordinator.evaluation.tasks.pretrained import Pretrained
from coordinator.evaluation.tasks.running import lacking
from coordinator.publishing.card_facts import facts_of_checkpoint
from coordinator.publishing.cards import embedding_card
from coordinator.publishing.embedding import export_embedder, require_bidirectional
from peer.config.run import RunConfig
from tests.support.model_cards import full_facts
from tests.support.sound_checkpoints import add_sound_checkpoint
from tests.support.waiting import wait_until
from tests.support.zygote import forking_python

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # sentence-transformers' own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
TEXTS = ["Many hands make light work.", "A river", "Nobody waits for those who have left. " * 9]


def export(*arguments: object) -> str:
    """Run the command; raises what it raises."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False).stdout


@pytest.fixture
def stored(opened_run: OpenRun) -> StoredCheckpoint:
    """A checkpoint of the small run, whose sequences have 32 tokens."""
    return add_sound_checkpoint(opened_run.directory, opened_run.database, 5)


def test_embeddings_are_the_mean_of_plain_transformers_last_layer(
    stored: StoredCheckpoint, opened_run: OpenRun, tmp_path: Path
) -> None:
    """Of texts in one padded batch, cut at the longest sequence of the run; the card's lines print their shape."""
    with forking_python():
        said = export(opened_run.directory.path, tmp_path / "out", "--sentence-transformers")
    assert "Step 5" in said
    assert "embeddings of 32 numbers" in said
    found = SentenceTransformer(str(tmp_path / "out"), device="cpu", local_files_only=True)
    assert (found.max_seq_length, found.get_embedding_dimension()) == (32, 32)
    model, tokenizer = AutoModel.from_pretrained(stored.path), AutoTokenizer.from_pretrained(stored.path)
    with torch.no_grad():
        for text, embedding in zip(TEXTS, found.encode(TEXTS, convert_to_tensor=True), strict=True):
            hidden = model(**tokenizer(text, truncation=True, max_length=32, return_tensors="pt")).last_hidden_state
            torch.testing.assert_close(embedding, hidden[0].mean(dim=0), rtol=1e-4, atol=1e-5)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "**The model was not tuned for sentences.**" in card
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    ran: dict[str, object] = {}
    exec(code.replace("DIR", str(tmp_path / "out")), ran)  # noqa: S102  # as a visitor runs it
    assert ran["embeddings"].shape == (2, 32)  # type: ignore[attr-defined]
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir() if path.is_file()} == {0o644}


def test_a_folder_that_computes_something_else_is_refused(
    stored: StoredCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The saved model is loaded again, and its embedding compared."""
    whole = retrieval.embedder

    def damaged(pretrained: Pretrained, length: int, seed: int) -> SentenceTransformer:
        model = whole(pretrained, length, seed)
        with torch.no_grad():
            next(model.parameters()).mul_(2.0)
        return model

    monkeypatch.setattr(retrieval, "embedder", damaged)
    with pytest.raises(UnsoundWeightsError, match="another embedding than plain transformers"):
        retrieval.save_checked(Pretrained(str(stored.path)), tmp_path, TEXTS[0], 32)


def export_once(path: str, out: str) -> None:
    """Main function of a process that exports."""
    stored = verify(Path(path))
    export_embedder(stored, Path(out), facts_of_checkpoint(stored))


def test_an_export_that_is_killed_leaves_no_folder(stored: StoredCheckpoint, tmp_path: Path) -> None:
    """Killed while it is being filled, the folder does not have its name."""
    out = tmp_path / "out"
    process = multiprocessing.get_context("spawn").Process(target=export_once, args=(str(stored.path), str(out)))
    with forking_python():
        process.start()
        wait_until("the folder is being filled", lambda: list(tmp_path.glob(".out.*.new/*")))
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
    assert not out.exists()


def test_a_missing_package_is_one_sentence() -> None:
    """It names the extra; a module that no extra has is no such mistake."""
    plan = EmbedderPlan("checkpoint", "out", 32)
    complaint = lacking(ModuleNotFoundError(name="sentence_transformers.util"), plan.title)
    assert "export of sentence embeddings needs `sentence_transformers`: " in str(complaint)
    assert "[embeddings]" in str(complaint)
    assert lacking(ModuleNotFoundError(name="elsewhere"), plan.title) is None


def test_the_package_is_looked_for_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package no checkpoint is read, not even to find that there is none."""
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ConfigError, match=r"--sentence-transformers needs the package .*embeddings"):
        export(tmp_path / "missing", tmp_path / "out", "--sentence-transformers")


def test_a_causal_model_has_no_mean_embedding(stored: StoredCheckpoint, tmp_path: Path) -> None:
    """It is refused in one sentence; a discriminator of replaced tokens is not."""
    facts = facts_of_checkpoint(stored)
    model = {"architecture": "gpt2"}
    causal = RunConfig.from_mapping({"model": model, "objective": {"name": "clm"}})
    with pytest.raises(ConfigError, match="causal model has not seen what follows"):
        export_embedder(stored, tmp_path / "out", replace(facts, config=causal))
    require_bidirectional(RunConfig.from_mapping({"model": {"architecture": "electra"}, "objective": {"name": "rtd"}}))


def test_it_is_a_model_of_its_own_kind(opened_run: OpenRun, tmp_path: Path) -> None:
    """Neither ONNX nor the run's places take it."""
    for other in (["--onnx"], ["--push", "file:///x"]):
        with pytest.raises(ConfigError, match="without --onnx and --push"):
            export(opened_run.directory.path, tmp_path / "out", "--sentence-transformers", *other)


def test_the_hub_reads_the_card() -> None:
    """Library, task and base model; no scores of the language model, which are not the embeddings'."""
    card = embedding_card(full_facts(), 128, 64, 1_000)
    found = ModelCard(card, ignore_metadata_errors=False).data
    assert (found.library_name, found.pipeline_tag) == ("sentence-transformers", "sentence-similarity")
    assert (found.base_model, found.license) == ("us/ours", "apache-2.0")
    assert "model-index" not in yaml.safe_load(card.split("---\n")[1])
    assert "maps a text to 128 numbers" in card
    assert "more than 64 tokens are truncated to the first 64 tokens" in card
    assert "licence: PSF-2.0" in card
    assert "- alice: 64 samples" in card
