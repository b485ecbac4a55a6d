"""Fine-tuning: one loop for all tasks that are trained, on transformers' models and accelerate's devices.

AdamW, linear warm-up and decay, a score on the development set after each epoch; the best epoch's weights are kept, and
it ends when the score has not become better for `patience` epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, get_linear_schedule_with_warmup

from peer.config.evaluation import Recipe

MAX_GRAD_NORM = 1.0
Encoded = Mapping[str, Any]
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Tuned:
    """How a fine-tuning went."""

    epochs: int  # that were begun
    best: float  # score on the development set
    finite: bool  # no loss was infinite or no number


def fine_tune(
    model: PreTrainedModel,
    train: Sequence[Encoded],
    recipe: Recipe,
    seed: int,
    collate: Callable[[Sequence[Encoded]], Batch],
    score: Callable[[PreTrainedModel], float],
) -> Tuned:
    """Train the model in place; it ends with the weights of the epoch whose score was best (higher is better)."""
    torch.manual_seed(seed)
    accelerator = Accelerator()
    order = torch.Generator().manual_seed(seed)
    examples: Any = train  # any sequence will do
    loader: DataLoader[Encoded] = DataLoader(
        examples, recipe.batch_size, shuffle=True, generator=order, collate_fn=collate
    )
    optimizer = torch.optim.AdamW(model.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay)
    steps = recipe.epochs * len(loader)
    make_schedule: Any = get_linear_schedule_with_warmup
    schedule = make_schedule(optimizer, round(recipe.warmup_share * steps), steps)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    best, best_epoch, weights = float("-inf"), 0, _copy(model)
    for epoch in range(1, recipe.epochs + 1):
        model.train()
        for batch in loader:
            loss = model(**batch).loss
            if not bool(torch.isfinite(loss)):
                return Tuned(epoch, best, finite=False)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        found = score(model)
        if found > best:
            best, best_epoch, weights = found, epoch, _copy(model)
        elif epoch - best_epoch >= recipe.patience:
            break
    model.load_state_dict(weights)
    return Tuned(epoch, best, finite=True)


def logits_of(
    model: PreTrainedModel, examples: Sequence[Encoded], batch_size: int, collate: Callable[[Sequence[Encoded]], Batch]
) -> list[Any]:
    """The model's output of each batch in order, dropout off, without its labels."""
    model.train(False)
    outputs = []
    with torch.no_grad():
        for start in range(0, len(examples), batch_size):
            batch = collate(examples[start : start + batch_size])
            batch.pop("labels", None)
            outputs.append(model(**{name: tensor.to(model.device) for name, tensor in batch.items()}))
    return outputs


def _copy(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
