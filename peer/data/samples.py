"""Packed samples to the arrays a model takes: special tokens, segments, labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peer.data.packing import PackedSamples
from peer.data.special_tokens import SpecialIds


@dataclass(frozen=True)
class Samples:
    """Unmasked samples, every place of which holds a token."""

    input_ids: NDArray[np.int32]  # (samples, length)
    token_type_ids: NDArray[np.int8]  # (samples, length); 0 = first segment, 1 = second
    sop_labels: NDArray[np.int64] | None  # (samples,); 0 = in order, 1 = swapped

    def __len__(self) -> int:
        return len(self.input_ids)

    def __getitem__(self, part: slice) -> Samples:
        labels = None if self.sop_labels is None else self.sop_labels[part]
        return Samples(self.input_ids[part], self.token_type_ids[part], labels)


def pair_samples(packed: PackedSamples, special: SpecialIds) -> Samples:
    """[CLS] first segment [SEP] second segment [SEP], with the sentence-order label."""
    count, capacity = packed.tokens.shape
    first = packed.first_lengths[:, None]  # (samples, 1)
    column = np.arange(1, capacity + 2)  # between [CLS] and the last [SEP]
    edge = np.full((count, 1), special.sep, np.int32)
    # A token stands one place after its index in the first segment and two places after it in the second.
    by_one, by_two = np.hstack([packed.tokens, edge]), np.hstack([edge, packed.tokens])
    inner = np.where(column <= first, by_one, by_two)
    inner[np.arange(count), packed.first_lengths] = special.sep
    input_ids = np.hstack([np.full((count, 1), special.cls, np.int32), inner, edge])
    token_type_ids = (np.arange(capacity + 3) > first + 1).astype(np.int8)
    return Samples(input_ids, token_type_ids, packed.swapped.astype(np.int64))


def single_samples(packed: PackedSamples, special: SpecialIds) -> Samples:
    """[CLS] text [SEP], without a label; the packer must not have swapped anything."""
    count, capacity = packed.tokens.shape
    cls, sep = np.full((count, 1), special.cls, np.int32), np.full((count, 1), special.sep, np.int32)
    return Samples(np.hstack([cls, packed.tokens, sep]), np.zeros((count, capacity + 2), np.int8), None)


def join_samples(first: Samples, second: Samples) -> Samples:
    """Two groups of samples of one run as one group."""
    labels = None
    if first.sop_labels is not None and second.sop_labels is not None:
        labels = np.concatenate([first.sop_labels, second.sop_labels])
    return Samples(
        np.concatenate([first.input_ids, second.input_ids]),
        np.concatenate([first.token_type_ids, second.token_type_ids]),
        labels,
    )
