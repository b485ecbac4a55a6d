"""Documents packed into one sample have the losses and gradients that each has alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from coordinator.checkpoints.probe import probe_tensors
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.data.batching.samples import open_packer
from peer.data.tokenization.encoding import EncodedChunk
from peer.models.objectives import compute_losses
from peer.models.packing import FLASH, document_places
from tests.support.tiny_albert import gradients
from tests.support.tiny_families import LENGTH, SPECIAL, family_batch, family_config, family_model


def apart_config() -> RunConfig:
    """A run of a ModernBERT with windows shorter than its documents, which do not see each other."""
    content = family_config("modernbert with narrow windows").model_dump()
    return RunConfig.from_mapping({**content, "data": {**content["data"], "cross_document_attention": False}})


def packed_batch(config: RunConfig) -> Batch:
    """Samples of one to four documents, each behind [CLS], with labels in all of them."""
    batch = family_batch(config, samples=4)
    for row, begins in enumerate([(0,), (0, 16), (0, 5, 20), (0, 1, 9, 31)]):
        batch.input_ids[row, list(begins)] = SPECIAL.cls
    places = (torch.rand(batch.input_ids.shape, generator=torch.Generator().manual_seed(3)) < 0.4).flatten()
    positions = (places & (batch.input_ids.flatten() != SPECIAL.cls)).nonzero().flatten()
    labels = torch.arange(len(positions)) % 100 + 5
    return replace(batch, label_positions=positions, labels=labels)


def separate_loss(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The mean over all labels by transformers' own forward of one document after another."""
    labels = torch.full_like(batch.input_ids, -100)
    labels.view(-1)[batch.label_positions] = batch.labels
    total = torch.zeros(())
    for ids, wanted in zip(batch.input_ids, labels, strict=True):
        ends = [*(ids == SPECIAL.cls).nonzero().flatten().tolist(), len(ids)]
        for begin, end in pairwise(ends):
            logits = model(ids[None, begin:end]).logits[0]
            total = total + functional.cross_entropy(logits, wanted[begin:end], reduction="sum")
    return total / len(batch.labels)


def reference_varlen(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float, **more: Any
) -> tuple[Tensor, None]:
    """What flash-attn's kernel for various lengths computes: query, key and value (1, heads, tokens, size)."""
    assert attention_mask is None
    ends = more["cu_seq_lens_q"].tolist()
    assert more["max_length_q"] == max(end - begin for begin, end in pairwise(ends))
    window = more["sliding_window"]
    found = []
    for begin, end in pairwise(ends):
        scores = query[0, :, begin:end] @ key[0, :, begin:end].transpose(1, 2) * scaling
        if window is not None:
            index = torch.arange(end - begin)
            scores = scores.masked_fill((index[:, None] - index).abs() > window - 1, -torch.inf)
        found.append(scores.softmax(-1) @ value[0, :, begin:end])
    return torch.cat(found, 1).transpose(0, 1)[None], None


@pytest.mark.parametrize("kernel", ["masks", "lengths"])
def test_a_packed_batch_is_as_good_as_separate_documents(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and gradients agree to float tolerance, by masks and in the form that flash-attn's kernel takes."""
    config = apart_config()
    model, batch = family_model(config), packed_batch(config)
    separate_loss(model, batch).backward()
    theirs = gradients(model)
    model.zero_grad()
    if kernel == "lengths":
        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, FLASH, reference_varlen)
        model.config._attn_implementation = FLASH
    loss = compute_losses(model, batch, config).total
    loss.backward()
    ours = gradients(model)
    model.config._attn_implementation = "sdpa"
    with torch.no_grad():
        torch.testing.assert_close(loss, separate_loss(model, batch), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_without_the_setting_documents_see_each_other() -> None:
    """The same batch then has another loss: the masks make the difference."""
    config = apart_config()
    batch, apart = packed_batch(config), family_model(config)
    usual = family_model(family_config("modernbert with narrow windows"))
    with torch.no_grad():
        losses = [float(compute_losses(model, batch, config).total) for model in (apart, usual)]
    assert abs(losses[0] - losses[1]) > 1e-4


def test_the_trainers_step_takes_packed_samples_from_the_packer() -> None:
    """Documents stand between [CLS] and [SEP] without padding; the unpacked probe has the same loss."""
    config = apart_config()
    tokens = np.arange(400, dtype=np.int32) % 90 + 5
    ends = np.array([7, 50, 120, 123, 300, 400])
    samples = open_packer(config, SPECIAL, np.random.default_rng(0)).pack(EncodedChunk(tokens, ends, ends))
    ids = torch.from_numpy(samples.input_ids.astype(np.int64))
    assert ids.shape[1] == LENGTH
    assert (ids[:, 0] == SPECIAL.cls).all()
    assert (ids[:, -1] == SPECIAL.sep).all()
    inner = (ids[:, 1:] == SPECIAL.cls).nonzero()
    assert len(inner) >= 4
    assert all(ids[row, column] in (SPECIAL.sep, SPECIAL.cls) for row, column in inner.tolist())
    positions = (ids.flatten() >= 5).nonzero().flatten()[::7]
    batch = replace(family_batch(config), input_ids=ids, label_positions=positions, labels=ids.flatten()[positions])
    model = family_model(config)
    result = TorchBackend(config, model).accumulate(batch)
    assert result.finite
    with torch.no_grad():
        assert float(model.eval()(**probe_tensors(batch, config)).loss) == pytest.approx(result.loss, rel=1e-5)


def test_places_restart_with_each_document() -> None:
    """Also for a document of one token at a sample's end."""
    documents, places = document_places(torch.tensor([[0, 7, 8, 0, 9, 0]]))
    assert documents.tolist() == [[0, 0, 0, 1, 1, 2]]
    assert places.tolist() == [[0, 1, 2, 0, 1, 0]]
