"""Scores of masked language models without fine-tuning: pseudo-perplexity and bias probes.

Pseudo-perplexity (Salazar et al. 2020, arXiv 1910.14659) masks one token at a time; it is the
exponential of the mean negative log-likelihood. Only models with the same tokenizer are comparable.

A bias probe compares one sentence template across groups. The distance between two groups is the
total variation distance between their distributions at the mask: half the sum of absolute
differences, from 0 (identical) to 1 (disjoint). A probe's score is the largest pairwise distance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from auth.errors import ConfigError
from coordinator.evaluation.tasks.examples import MASK, Probe
from coordinator.evaluation.tasks.metrics import Scores
from coordinator.evaluation.tasks.pretrained import Pretrained, frame_of, mask_id
from coordinator.evaluation.tasks.results import Filling, ProbeResult
from peer.config.evaluation import Task

MOST_LIKELY = 700.0  # maximum loss in nats to pass to exp(), which overflows above 709


@dataclass(frozen=True)
class MaskScores:
    """A checkpoint's scores without fine-tuning."""

    scores: Scores
    examples: int
    probes: tuple[ProbeResult, ...] = ()


def fill_scores(pretrained: Pretrained, task: Task, texts: Sequence[str]) -> MaskScores:
    """Compute pseudo-perplexity and accuracy, masking one token at a time; truncate long texts."""
    tokenizer = pretrained.tokenizer()
    mask, frame = mask_id(tokenizer), frame_of(tokenizer)
    room = frame.room(pretrained.length(task.recipe))
    model = pretrained.model("AutoModelForMaskedLM", seed=0).train(False)
    loss, hits, count = 0.0, 0, 0
    for text in texts:
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"][:room]
        ids = torch.tensor(frame.around(tokens))  # (length,)
        places = len(frame.before) + torch.arange(len(tokens))
        for batch in torch.split(places, task.recipe.batch_size) if tokens else ():
            rows = ids.repeat(len(batch), 1).scatter(1, batch[:, None], mask)  # (batch, length)
            logits, wanted = logits_at(model, rows, batch), ids[batch]
            loss += float(functional.cross_entropy(logits, wanted, reduction="sum"))
            hits += int((logits.argmax(-1) == wanted).sum())
        count += len(tokens)
    mean, accuracy = loss / max(1, count), hits / max(1, count)
    perplexity = math.exp(min(mean, MOST_LIKELY))
    return MaskScores({"pseudo_perplexity": perplexity, "loss": mean, "accuracy": accuracy}, count)


def probe_scores(pretrained: Pretrained, task: Task, probes: Sequence[Probe]) -> MaskScores:
    """Compute the mean distance over all probes, and each probe's most likely tokens."""
    tokenizer = pretrained.tokenizer()
    mask, frame = mask_id(tokenizer), frame_of(tokenizer)
    room = frame.room(pretrained.length(task.recipe))
    model = pretrained.model("AutoModelForMaskedLM", seed=0).train(False)
    results = []
    for probe in probes:
        shares = []  # one tensor (vocabulary,) per group
        for text in probe.filled():
            tokens = tokenizer(text.replace(MASK, str(tokenizer.mask_token)), add_special_tokens=False)["input_ids"]
            ids = frame.around(tokens[:room])
            if mask not in tokens[:room]:
                raise ConfigError(
                    f"The template {probe.template!r:.80} is too long: its mask must be within {room} tokens."
                )
            logits = logits_at(model, torch.tensor([ids]), torch.tensor([ids.index(mask)]))
            shares.append(torch.softmax(logits[0], -1))
        likeliest = [share.topk(min(probe.top, len(share))) for share in shares]
        fillings = tuple(
            tuple(
                Filling(token=str(tokenizer.decode([token])).strip()[:200], probability=min(1.0, probability))
                for probability, token in zip(found.values.tolist(), found.indices.tolist(), strict=True)
            )
            for found in likeliest
        )
        distance = min(1.0, max(float((one - other).abs().sum() / 2) for one, other in combinations(shares, 2)))
        results.append(ProbeResult(template=probe.template, groups=probe.groups, fillings=fillings, distance=distance))
    mean = sum(result.distance for result in results) / max(1, len(results))
    return MaskScores({"distance": mean}, len(probes), tuple(results))


def logits_at(model: PreTrainedModel, input_ids: Tensor, places: Tensor) -> Tensor:
    """Return the logits (batch, vocabulary) at one position per text, for texts of equal length."""
    with torch.no_grad():
        logits: Tensor = model(input_ids=input_ids).logits
    return logits[torch.arange(len(places)), places].float()
