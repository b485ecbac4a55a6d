"""A fixed batch whose loss is stored with every checkpoint, so that anybody can check what the weights compute."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from peer.config.phases import all_phases
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch, open_batches
from peer.data.batching.samples import IGNORED
from peer.models.build import evaluating
from peer.models.objectives import compute_losses
from peer.models.packing import unpacked
from peer.models.replaced_tokens import ReplacedTokens, detection_loss, shuffled

PROBE_SAMPLES = 8
PROBE_DEVICE = 2**32 - 1  # nobody's number: the probe begins a stream that no device trains on in this order


def make_probes(config: RunConfig, tokenizer_dir: Path) -> Mapping[int, Batch]:
    """A probe batch for each sequence length that the run's phases have; the same at every start.

    All are made before the run goes on, lest the swarm wait at a boundary for the keeper to read text.
    """
    lengths = {phase.sequence_length: phase.from_step for phase in all_phases(config)}
    return {length: make_probe(config.at_step(step), tokenizer_dir) for length, step in lengths.items()}


def make_probe(config: RunConfig, tokenizer_dir: Path) -> Batch:
    """Make the batch on which a checkpoint's loss is proved; each of its samples has a label of its order.

    For transformers takes the mean over those that have one.
    """
    with (
        tempfile.TemporaryDirectory() as scratch,
        open_batches(config, tokenizer_dir, Path(scratch), PROBE_DEVICE, PROBE_SAMPLES) as stream,
    ):
        probe = next(stream)
    return probe if probe.sop_labels is None else replace(probe, sop_labels=probe.sop_labels.clamp(min=0))


def probe_loss(model: PreTrainedModel, probe: Batch, config: RunConfig) -> float:
    """The objective's total on the probe, dropout off; of a discriminator its own loss, as transformers computes it."""
    with evaluating(model):
        if isinstance(model, ReplacedTokens):
            input_ids, replaced = shuffled(probe)
            return float(detection_loss(model.detection_logits(input_ids, probe), replaced, probe))
        return float(compute_losses(model, probe, config).total)


def probe_tensors(probe: Batch, config: RunConfig) -> Mapping[str, torch.Tensor]:
    """The batch as plain transformers takes it: `labels` (b, l) with -100 where nothing is predicted.

    For a causal model transformers wants each label at its own place, not at the one before, which predicts it. For a
    discriminator the labels are 1 where a token is replaced, else 0. Documents that do not see each other become padded
    samples of their own.
    """
    if not config.data.cross_document_attention:
        probe = unpacked(probe)
    input_ids, labels = probe.input_ids, torch.full_like(probe.input_ids, IGNORED)
    if config.objective.name == "rtd":
        input_ids, replaced = shuffled(probe)
        labels = replaced.long()
    else:
        shift = 1 if config.objective.name == "clm" else 0
        labels.view(-1)[probe.label_positions + shift] = probe.labels
    attention = probe.attention_mask if probe.attention_mask is not None else torch.ones_like(probe.input_ids)
    tensors = {
        "input_ids": input_ids,
        "attention_mask": attention.to(torch.int64),
        "labels": labels,
    }
    if probe.token_type_ids is not None:
        tensors["token_type_ids"] = probe.token_type_ids
    if probe.sop_labels is not None:
        tensors["sentence_order_label"] = probe.sop_labels
    return {name: tensor.contiguous() for name, tensor in tensors.items()}
