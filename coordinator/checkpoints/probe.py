"""The probe: a fixed batch whose loss is stored with each checkpoint to verify the weights."""

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
PROBE_DEVICE = 2**32 - 1  # not the number of a real device, so no device reads samples in the probe's order


def make_probes(config: RunConfig, tokenizer_dir: Path) -> Mapping[int, Batch]:
    """Return a deterministic probe batch for each sequence length of the run's phases.

    The keeper makes all probes at start-up, so that the swarm does not wait between phases.
    """
    lengths = {phase.sequence_length: phase.from_step for phase in all_phases(config)}
    return {length: make_probe(config.at_step(step), tokenizer_dir) for length, step in lengths.items()}


def make_probe(config: RunConfig, tokenizer_dir: Path) -> Batch:
    """Return the probe batch for `config`.

    Missing sentence-order labels become 0: transformers would average over labelled samples only.
    """
    with (
        tempfile.TemporaryDirectory() as scratch,
        open_batches(config, tokenizer_dir, Path(scratch), PROBE_DEVICE, PROBE_SAMPLES) as stream,
    ):
        probe = next(stream)
    return probe if probe.sop_labels is None else replace(probe, sop_labels=probe.sop_labels.clamp(min=0))


def probe_loss(model: PreTrainedModel, probe: Batch, config: RunConfig) -> float:
    """Return the loss on the probe without dropout; for ELECTRA, the discriminator's loss."""
    with evaluating(model):
        if isinstance(model, ReplacedTokens):
            input_ids, replaced = shuffled(probe)
            return float(detection_loss(model.detection_logits(input_ids, probe), replaced, probe))
        return float(compute_losses(model, probe, config).total)


def probe_tensors(probe: Batch, config: RunConfig) -> Mapping[str, torch.Tensor]:
    """Return the probe in transformers' format; `labels` (b, l) is -100 where nothing is predicted.

    Labels of a causal model are not shifted, because transformers shifts them. Labels of a
    discriminator are 1 for replaced tokens and 0 for others. If packed documents do not attend to
    each other, each document becomes a padded sample.
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
    tensors = {"input_ids": input_ids, "attention_mask": attention.to(torch.int64), "labels": labels}
    if probe.token_type_ids is not None:
        tensors["token_type_ids"] = probe.token_type_ids
    if probe.sop_labels is not None:
        tensors["sentence_order_label"] = probe.sop_labels
    return {name: tensor.contiguous() for name, tensor in tensors.items()}
