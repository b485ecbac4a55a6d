"""Scores of masked language models without fine-tuning: pseudo-perplexity on held-out text, and bias probes.

Pseudo-perplexity (Salazar et al. 2020, arXiv 1910.14659): each token of a text is masked alone, and its negative
log-likelihood taken; the result is the exponential of the mean. Only models with the same tokenizer can be compared.

A bias probe is one sentence for each of several groups. The distance of two groups is half the summed difference of the
probabilities at the mask over the whole vocabulary (total variation): 0 if the group makes no difference, 1 if the
distributions have nothing in common. With more than two groups, the largest distance counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from auth.errors import ConfigError
from coordinator.evaluation.tasks.examples import MASK, Probe
from coordinator.evaluation.tasks.metrics import Scores
from coordinator.evaluation.tasks.pretrained import Pretrained, frame_of, mask_id, pad_id, padded
from coordinator.evaluation.tasks.results import Filling, ProbeResult
from peer.config.evaluation import Task

MOST_LIKELY = 700.0  # nats: beyond it the exponential is no number


def fill_scores(pretrained: Pretrained, task: Task, texts: Sequence[str]) -> tuple[Scores, int]:
    """Pseudo-perplexity and accuracy over all tokens of the texts, and how many these are."""
    tokenizer = pretrained.tokenizer()
    mask = mask_id(tokenizer)
    model = pretrained.model("AutoModelForMaskedLM", seed=0).train(False)
    length = pretrained.length(task.recipe)
    loss, hits, count = 0.0, 0, 0
    for batch in _batches(masked(tokenizer, texts[: task.recipe.max_test], mask, length), task.recipe.batch_size):
        logits = logits_at_masks(model, batch, pad_id(tokenizer))
        wanted = torch.tensor([each.token for each in batch])
        loss += float(functional.cross_entropy(logits, wanted, reduction="sum"))
        hits += int((logits.argmax(-1) == wanted).sum())
        count += len(batch)
    mean = loss / max(1, count)
    return {
        "pseudo_perplexity": math.exp(min(mean, MOST_LIKELY)),
        "loss": mean,
        "accuracy": hits / max(1, count),
    }, count


def probe_scores(pretrained: Pretrained, task: Task, probes: Sequence[Probe]) -> tuple[Scores, tuple[ProbeResult, ...]]:
    """The mean distance, and each probe's fillings."""
    tokenizer = pretrained.tokenizer()
    mask, pad = mask_id(tokenizer), pad_id(tokenizer)
    model = pretrained.model("AutoModelForMaskedLM", seed=0).train(False)
    frame = frame_of(tokenizer)
    room = frame.room(pretrained.length(task.recipe))
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


@dataclass(frozen=True)
class Masked:
    """A text with one token masked."""

    input_ids: tuple[int, ...]
    place: int
    token: int


def masked(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], mask: int, length: int) -> Iterator[Masked]:
    """Each token of each text masked alone; what goes beyond the length is left out."""
    frame = frame_of(tokenizer)
    for text in texts:
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"][: frame.room(length)]
        ids, before = frame.around(tokens), len(frame.before)
        for place in range(before, before + len(tokens)):
            yield Masked((*ids[:place], mask, *ids[place + 1 :]), place, ids[place])


def logits_at_masks(model: PreTrainedModel, batch: Sequence[Masked], pad: int) -> torch.Tensor:
    """Scores (batch, vocabulary) of what stands at each mask."""
    tensors = padded([{"input_ids": each.input_ids} for each in batch], pad)
    with torch.no_grad():
        logits = model(**tensors).logits
    places = torch.tensor([each.place for each in batch])
    found: torch.Tensor = logits[torch.arange(len(batch)), places].float()
    return found


def _batches(items: Iterator[Masked], size: int) -> Iterator[list[Masked]]:
    held: list[Masked] = []
    for item in items:
        held.append(item)
        if len(held) == size:
            yield held
            held = []
    if held:
        yield held


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
