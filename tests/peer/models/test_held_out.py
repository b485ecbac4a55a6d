"""Losses and accuracies of held-out samples equal those of transformers' own outputs; the unigram baseline is right."""

from __future__ import annotations

import logging
import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from coordinator.checkpoints.probe import probe_tensors
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch, SampleMaker
from peer.data.batching.samples import IGNORED
from peer.data.prepare import prepare_tokenizer
from peer.data.selection.hashing import SALT, uniform
from peer.data.sources.documents import open_documents
from peer.data.tokenization.special_tokens import SpecialIds
from peer.models import held_out as evaluation, objectives
from peer.models.build import evaluating
from peer.models.held_out import HeldOutDocuments, draw_samples, evaluate, open_validation_set, unigram_loss
from tests.support.tiny_families import LENGTH, NAMES, family_batch, family_config, family_model

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
SHARE = 0.1
FAMILIES = {"albert": "mlm+sop", "roberta": "mlm", "gpt2": "clm"}


def batch(ids: list[int], labels: list[int]) -> Batch:
    """One sample, whose first places are predicted."""
    places = torch.arange(len(labels))
    return Batch(torch.tensor([ids]), None, None, places, torch.tensor(labels), None)


def test_frequencies_are_those_of_text() -> None:
    """Tokens that are equally frequent lose the logarithm of their number; marks and masks count for nothing."""
    ids = [2, *([4] * 500), *([5, 6, 7, 8] * 1000), 3]
    assert unigram_loss(batch(ids, [5, 6, 7, 8] * 100), 9, SPECIAL) == pytest.approx(math.log(4), abs=0.01)


def test_a_rare_token_costs_more_and_no_token_everything() -> None:
    """One that the text does not have is possible all the same."""
    ids = [5] * 1000
    assert unigram_loss(batch(ids, [5] * 10), 9, SPECIAL) < 0.05
    assert 5 < unigram_loss(batch(ids, [8]), 9, SPECIAL) < 8


SAMPLES = 7


@pytest.mark.parametrize("name", NAMES)
def test_every_familys_measures_are_those_of_transformers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken in microbatches, logits in parts, they equal what one forward of transformers says of the whole batch."""
    monkeypatch.setattr(evaluation, "TOKENS_AT_ONCE", 3 * LENGTH)
    monkeypatch.setattr(objectives, "MAX_LOGITS", 1)
    config = family_config(name)
    model, batch = family_model(config), family_batch(config, samples=SAMPLES)
    if batch.sop_labels is not None:
        batch.sop_labels[::3] = IGNORED
    inputs = probe_tensors(batch, config)
    with evaluating(model):
        outputs = model(**inputs)
    logits = outputs.prediction_logits if "prediction_logits" in outputs else outputs.logits
    labels = inputs["labels"]
    if config.objective.name == "clm":
        logits, labels = logits[:, :-1], labels[:, 1:]
    logits, labels = logits[labels != IGNORED], labels[labels != IGNORED]

    result = evaluate(model, batch)

    assert result is not None
    assert (result.samples, result.predicted_tokens) == (SAMPLES, len(labels))
    assert result.mlm_loss == pytest.approx(float(functional.cross_entropy(logits, labels)), rel=1e-5)
    assert result.accuracy == pytest.approx(float((logits.argmax(-1) == labels).float().mean()))
    if batch.sop_labels is None:
        assert result.sop_loss is result.sop_accuracy is None
        return
    order = functional.cross_entropy(outputs.sop_logits, batch.sop_labels)
    assert result.sop_loss == pytest.approx(float(order), rel=1e-5)
    hits = (outputs.sop_logits.argmax(-1) == batch.sop_labels)[batch.sop_labels != IGNORED].float().mean()
    assert result.sop_accuracy == pytest.approx(float(hits))


def test_a_model_that_knows_the_answers_is_always_right() -> None:
    """Labels that are the model's own likeliest tokens give an accuracy of 1."""
    config = family_config("bert")
    model, batch = family_model(config), family_batch(config)
    with evaluating(model):
        best = model(**{**probe_tensors(batch, config), "labels": None}).logits.argmax(-1)
    knowing = Batch(**{**vars(batch), "labels": best.flatten()[batch.label_positions]})
    result = evaluate(model, knowing)
    assert result is not None
    assert result.accuracy == 1.0


def test_dropout_is_off_and_the_models_mode_comes_back() -> None:
    """Twice the same, of a model that is in training mode before and after."""
    config = family_config("albert", hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    model, batch = family_model(config), family_batch(config)
    assert evaluate(model, batch) == evaluate(model, batch)
    assert model.training


def test_evaluation_ends_when_told_to() -> None:
    """Half an evaluation is none."""
    config = family_config("bert")
    assert evaluate(family_model(config), family_batch(config), should_stop=lambda: True) is None


def test_broken_weights_give_a_loss_that_says_so() -> None:
    """A model of NaNs has a NaN loss, not a crash and not a number."""
    config = family_config("albert")
    model = family_model(config)
    with torch.no_grad():
        model.albert.embeddings.word_embeddings.weight.fill_(torch.nan)
    result = evaluate(model, family_batch(config))
    assert result is not None
    assert result.mlm_loss != result.mlm_loss


def text(number: int) -> str:
    """Four sentences, in which one word is the document's own."""
    return " ".join(f"The {colour} house number n{number} has a door." for colour in ("red", "blue", "green", "grey"))


TEXTS = [text(number) for number in range(400)]
HELD_OUT = [document for document in TEXTS if uniform(document, SALT) < SHARE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus, every document twice, and a tokenizer for each family."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "corpus.txt").write_text("\n\n".join(TEXTS + TEXTS))
    for family in FAMILIES:
        prepare_tokenizer(config_for(folder, family), folder / family)
    return folder


def config_for(
    folder: Path, family: str = "albert", samples: int = 20, share: float = SHARE, length: int = 32, seed: int = 0
) -> RunConfig:
    """A run on the corpus."""
    return RunConfig.from_mapping(
        {
            "run": {"seed": seed},
            "model": {"architecture": family},
            "objective": {"name": FAMILIES[family]},
            "tokenizer": {"vocab_size": 500, **({} if family == "albert" else {"preset": "byte-level"})},
            "data": {
                "sources": [{"kind": "text", "path": str(folder / "corpus.txt")}],
                "sequence_length": length,
                "validation": {"share": share, "samples": samples},
            },
        }
    )


def equal(one: Batch, other: Batch) -> bool:
    """Whether two batches hold the same numbers, of the same types."""
    for field in fields(Batch):
        first, second = getattr(one, field.name), getattr(other, field.name)
        if first is None or second is None:
            if first is not second:
                return False
        elif first.dtype != second.dtype or not torch.equal(first, second):
            return False
    return True


@pytest.mark.parametrize("family", FAMILIES)
def test_a_set_is_drawn_once_and_read_again_as_it_was(folder: Path, tmp_path: Path, family: str) -> None:
    """After a restart the samples, labels and digest are the same, even if the sources are gone by then."""
    config = config_for(folder, family)
    first = open_validation_set(config, folder / family, tmp_path)
    assert first is not None
    assert first.samples.samples == 20
    assert first.samples.input_ids.shape[1] == 32
    gone = config.data.model_copy(update={"sources": (config.data.sources[0].model_copy(update={"path": "/gone"}),)})
    again = open_validation_set(config.model_copy(update={"data": gone}), folder / family, tmp_path)
    assert again is not None
    assert equal(again.samples, first.samples)
    assert again.sha256 == first.sha256


def test_a_set_that_is_drawn_anew_is_the_same(folder: Path, tmp_path: Path) -> None:
    """Nothing of the process, the device or the moment goes into it; another seed gives another one."""
    config = config_for(folder)
    sets = [open_validation_set(config, folder / "albert", tmp_path / name) for name in ("one", "two")]
    other = open_validation_set(config_for(folder, seed=1), folder / "albert", tmp_path / "three")
    assert sets[0] is not None
    assert sets[1] is not None
    assert other is not None
    assert sets[0].sha256 == sets[1].sha256 != other.sha256


def test_only_held_out_text_is_in_it(folder: Path) -> None:
    """Every token of the samples comes from held-out documents, of each of which there is one copy."""
    config = config_for(folder, "gpt2", samples=1000)
    batch = draw_samples(config, folder / "gpt2")
    assert batch is not None
    maker = SampleMaker(config, folder / "gpt2", np.random.default_rng(0))
    alone = maker.samples(HELD_OUT)
    assert batch.samples == len(alone)
    counts = [np.bincount(ids.ravel(), minlength=500) for ids in (batch.input_ids.numpy(), alone.input_ids)]
    assert np.abs(counts[0] - counts[1]).sum() <= 2 * 32  # but for the tokens that fill no sample


def test_held_out_documents_come_once_each(folder: Path) -> None:
    """Copies are passed over, and the stream ends when everything was read."""
    config = config_for(folder)
    with open_documents(config, 0, part=None) as stream:
        documents = HeldOutDocuments(stream, config.data.validation.share)
        assert sorted(documents) == sorted(HELD_OUT)
    assert documents.found == len(HELD_OUT)
    assert documents.read == 2 * len(TEXTS)


def test_reading_is_bounded(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of a corpus without end only so much is read; the log says what was found there."""
    with caplog.at_level(logging.INFO):
        batch = draw_samples(config_for(folder, samples=500), folder / "albert", limit=200)
    assert batch is not None
    assert 0 < batch.samples < 500
    assert "of 500 samples" in caplog.text
    assert "among 200 read" in caplog.text


def test_no_more_is_read_than_needed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """When the samples are there, reading ends."""
    monkeypatch.setattr(evaluation, "CHUNK_CHARACTERS", 500)
    with caplog.at_level(logging.INFO):
        batch = draw_samples(config_for(folder, samples=3), folder / "albert")
    assert batch is not None
    assert batch.samples == 3
    (line,) = caplog.messages
    assert int(line.split("among ")[1].split()[0]) < len(TEXTS)


@pytest.mark.parametrize("share", [0.0, 1e-9])
def test_too_little_held_out_text_is_no_set(folder: Path, tmp_path: Path, share: float) -> None:
    """Where nothing fills a sample there is no set and no file, so a corpus that grows is looked at again."""
    assert open_validation_set(config_for(folder, share=share), folder / "albert", tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_each_sequence_length_has_its_own(folder: Path, tmp_path: Path) -> None:
    """A phase's set does not replace another's."""
    sets = [open_validation_set(config_for(folder, length=length), folder / "albert", tmp_path) for length in (32, 64)]
    assert [None if found is None else found.samples.input_ids.shape[1] for found in sets] == [32, 64]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_damaged_set_is_drawn_again(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A flipped bit, or half a file, is noticed and told; what is drawn and saved again is what was lost."""
    config = config_for(folder)
    first = open_validation_set(config, folder / "albert", tmp_path)
    assert first is not None
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]):
        path.write_bytes(damaged)
        for warnings in (1, 0):
            caplog.clear()
            again = open_validation_set(config, folder / "albert", tmp_path)
            assert again is not None
            assert again.sha256 == first.sha256
            assert len(caplog.records) == warnings


def test_a_set_of_another_run_file_is_drawn_again(folder: Path, tmp_path: Path) -> None:
    """Whoever asks for more samples gets them."""
    open_validation_set(config_for(folder, samples=5), folder / "albert", tmp_path)
    more = open_validation_set(config_for(folder, samples=9), folder / "albert", tmp_path)
    assert more is not None
    assert more.samples.samples == 9
