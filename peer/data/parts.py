"""A microbatch in parts that are batches themselves: for the evaluation, and where memory is short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from peer.data.batches import Batch


def parts_of(batch: Batch, size: int) -> Iterator[Batch]:
    """The batch in parts of `size` samples, the last one with what is left."""
    if batch.samples <= size:
        yield batch
        return
    length, device = batch.input_ids.shape[1], batch.label_positions.device
    for start in range(0, batch.samples, size):
        rows = slice(start, start + size)
        bounds = torch.tensor([start * length, (start + size) * length], device=device)
        first, end = torch.searchsorted(batch.label_positions, bounds).tolist()
        yield replace(
            batch,
            input_ids=batch.input_ids[rows],
            token_type_ids=_rows(batch.token_type_ids, rows),
            attention_mask=_rows(batch.attention_mask, rows),
            label_positions=batch.label_positions[first:end] - start * length,
            labels=batch.labels[first:end],
            sop_labels=_rows(batch.sop_labels, rows),
        )


def _rows(tensor: Tensor | None, rows: slice) -> Tensor | None:
    return None if tensor is None else tensor[rows]
