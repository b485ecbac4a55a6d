"""Conversion of encoded text to a model's input arrays: packed, between special tokens, with segments and their order.

`open_packer` picks the packer for the run's objective and family of models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from peer.config.architectures import ARCHITECTURES
from peer.config.run import RunConfig
from peer.data.batching.packing import ContiguousPacker, PackedSamples, PairPacker, Tokens
from peer.data.tokenization.encoding import EncodedChunk
from peer.data.tokenization.special_tokens import SpecialIds

SWAP_PROBABILITY = 0.5
Number = TypeVar("Number", np.int8, np.int64)


@dataclass(frozen=True)
class Samples:
    """Unmasked samples, every place of which holds a token; without `token_type_ids` they are of one segment."""

    input_ids: NDArray[np.int32]  # (samples, length)
    token_type_ids: NDArray[np.int8] | None = None  # (samples, length); 0 = first segment, 1 = second
    sop_labels: NDArray[np.int64] | None = None  # (samples,); 0 = in order, 1 = swapped

    def __len__(self) -> int:
        return len(self.input_ids)

    def __getitem__(self, part: slice) -> Samples:
        types = None if self.token_type_ids is None else self.token_type_ids[part]
        labels = None if self.sop_labels is None else self.sop_labels[part]
        return Samples(self.input_ids[part], types, labels)


class SamplePacker(Protocol):
    """Makes samples of chunk after chunk of encoded text."""

    special_places: int  # in each sample, for [CLS] and [SEP]s

    @property
    def carried_tokens(self) -> int:
        """Tokens that wait for more to fill a sample."""
        ...

    def pack(self, chunk: EncodedChunk) -> Samples:
        """All samples that this chunk, and tokens left over before, fill."""
        ...


def open_packer(config: RunConfig, special: SpecialIds, rng: np.random.Generator) -> SamplePacker:
    """The packer for the run's objective: pairs of segments where their order is learnt, else plain text."""
    if config.objective.name == "mlm+sop":
        return Pairs(config.data.sequence_length, special, rng)
    return Texts(config.data.sequence_length, special, rng, framed=ARCHITECTURES[config.model.architecture].framed)


class Pairs:
    """[CLS] first segment [SEP] second segment [SEP]; half of the pairs are swapped."""

    special_places = 3

    def __init__(self, length: int, special: SpecialIds, rng: np.random.Generator) -> None:
        self._special, self._packer = special, PairPacker(length - self.special_places, SWAP_PROBABILITY, rng)

    @property
    def carried_tokens(self) -> int:
        """Tokens that wait for more to fill a sample."""
        return len(self._packer.carried)

    def pack(self, chunk: EncodedChunk) -> Samples:
        """All samples that this chunk, and tokens left over before, fill."""
        return pair_samples(self._packer.pack(chunk), self._special)


class Texts:
    """Plain text with a separator after each document, for encoders between [CLS] and [SEP]."""

    def __init__(self, length: int, special: SpecialIds, rng: np.random.Generator, *, framed: bool) -> None:
        self.special_places = 2 if framed else 0
        self._special, self._packer = special, ContiguousPacker(length - self.special_places, special.sep, rng)

    @property
    def carried_tokens(self) -> int:
        """Tokens that wait for more to fill a sample."""
        return len(self._packer.carried)

    def pack(self, chunk: EncodedChunk) -> Samples:
        """All samples that this chunk, and tokens left over before, fill."""
        rows = self._packer.pack(chunk)
        return framed_samples(rows, self._special) if self.special_places else Samples(rows)


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


def framed_samples(tokens: Tokens, special: SpecialIds) -> Samples:
    """[CLS] text [SEP] around each row of (samples, capacity) tokens."""
    count = len(tokens)
    cls, sep = np.full((count, 1), special.cls, np.int32), np.full((count, 1), special.sep, np.int32)
    return Samples(np.hstack([cls, tokens, sep]))


def join_samples(first: Samples, second: Samples) -> Samples:
    """Two groups of samples of one run as one group."""
    return Samples(
        np.concatenate([first.input_ids, second.input_ids]),
        _joined(first.token_type_ids, second.token_type_ids),
        _joined(first.sop_labels, second.sop_labels),
    )


def _joined(first: NDArray[Number] | None, second: NDArray[Number] | None) -> NDArray[Number] | None:
    return None if first is None or second is None else np.concatenate([first, second])
