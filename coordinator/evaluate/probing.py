"""Bias probes: the same sentence for each of several groups, and what the model fills its mask with, side by side.

The distance of two groups is half the summed difference of their masks' probabilities over the whole vocabulary (total
variation): 0 if the group makes no difference, 1 if nothing is common. Of more than two, the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch

from auth.errors import ConfigError
from coordinator.evaluate.batches import frame_of, mask_id, pad_id
from coordinator.evaluate.examples import MASK, Probe
from coordinator.evaluate.filling import Masked, logits_at_masks
from coordinator.evaluate.metrics import Scores
from coordinator.evaluate.pretrained import Pretrained
from coordinator.evaluate.results import Filling, ProbeResult
from peer.config.evaluation import Task


def probe_scores(pretrained: Pretrained, task: Task, probes: Sequence[Probe]) -> tuple[Scores, tuple[ProbeResult, ...]]:
    """The mean distance, and each probe's fillings."""
    tokenizer = pretrained.tokenizer()
    mask, pad = mask_id(tokenizer), pad_id(tokenizer)
    model = pretrained.model("AutoModelForMaskedLM", head_seed=0).train(False)
    frame = frame_of(tokenizer)
    room = frame.room(min(task.recipe.max_length, pretrained.max_length or 10**9))
    results = []
    for probe in probes[: task.recipe.max_test]:
        sentences = []
        for text in probe.filled():
            tokens = tokenizer(text.replace(MASK, str(tokenizer.mask_token)), add_special_tokens=False)["input_ids"]
            if mask not in tokens[:room]:
                raise ConfigError(
                    f"The template {probe.template!r:.80} is too long: its mask must be within {room} tokens."
                )
            ids = frame.around(tokens[:room])
            sentences.append(Masked(tuple(ids), ids.index(mask), mask))
        shares = torch.softmax(logits_at_masks(model, sentences, pad), -1)  # (groups, vocabulary)
        results.append(
            ProbeResult(
                template=probe.template,
                groups=probe.groups,
                fillings=tuple(_likeliest(tokenizer, row, probe.top) for row in shares),
                distance=_distance(shares),
            )
        )
    mean = sum(result.distance for result in results) / max(1, len(results))
    return {"distance": mean}, tuple(results)


def _likeliest(tokenizer: object, shares: torch.Tensor, count: int) -> tuple[Filling, ...]:
    found = shares.topk(min(count, len(shares)))
    decode = getattr(tokenizer, "decode")  # noqa: B009  # transformers does not say that all have it
    return tuple(
        Filling(token=decode([int(token)]).strip()[:200], probability=min(1.0, float(share)))
        for share, token in zip(*found, strict=True)
    )


def _distance(shares: torch.Tensor) -> float:
    pairs = combinations(range(len(shares)), 2)
    return min(1.0, max(float((shares[one] - shares[other]).abs().sum() / 2) for one, other in pairs))
