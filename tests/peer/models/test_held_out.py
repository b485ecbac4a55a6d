"""Losses and accuracies of held-out samples equal those of transformers' own outputs; the unigram baseline is right."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from coordinator.checkpoints.probe import probe_tensors
from peer.data.batching.batches import Batch, parts_of
from peer.data.tokenization.special_tokens import SpecialIds
from peer.models import held_out as evaluation, objectives
from peer.models.build import evaluating
from peer.models.held_out import Sums, evaluate, unigram_loss
from peer.models.objectives import IGNORED
from tests.support.tiny_families import LENGTH, NAMES, family_batch, family_config, family_model

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)


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
    hits = (outputs.sop_logits.argmax(-1) == batch.sop_labels).float().mean()
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


def test_samples_are_cut_with_their_labels() -> None:
    """The parts of a batch are what it was made of, label positions counted from each part's first token."""
    config = family_config("albert")
    batch = family_batch(config, samples=SAMPLES)
    parts = list(parts_of(batch, 3))
    assert [part.samples for part in parts] == [3, 3, 1]
    assert torch.equal(torch.cat([part.input_ids for part in parts]), batch.input_ids)
    assert torch.equal(torch.cat([part.labels for part in parts]), batch.labels)
    whole = [part.label_positions + 3 * LENGTH * number for number, part in enumerate(parts)]
    assert torch.equal(torch.cat(whole), batch.label_positions)
    for name in ("token_type_ids", "sop_labels"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(batch, name))


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


def test_means_are_weighted_by_what_they_are_over() -> None:
    """A microbatch with more labels counts for more."""
    one = Sums(samples=1, tokens=1, token_loss=4.0, token_hits=1, orders=1, order_loss=1.0)
    many = Sums(samples=3, tokens=3, token_loss=0.0, orders=3, order_loss=1.0, order_hits=3)
    means = (one + many).means()
    assert (means.mlm_loss, means.accuracy, means.sop_loss, means.sop_accuracy) == (1.0, 0.25, 0.5, 0.75)
