"""Packing of encoded text into a model's input arrays: special tokens, segments and their order.

`open_packer` returns the packer for the run's objective and model family. Tokens are packed into
samples of exactly the sequence length, without loss, padding or retokenization.

For sentence order (`PairPacker`), documents are cut into *pieces*: as many whole sentences of one
document as fit into a sample. The first piece of a long document has a random size, so that each
pass over a text yields different pieces; a model would soon memorize the order of fixed pieces.
The best pieces become *anchors*, one per sample. The other pieces form the *filler*, a run of
tokens that fills up the samples and is cut where a sample ends; the remainder is carried over to
the next chunk.

    [CLS] first part of the anchor [SEP] second part of the anchor, filler [SEP]     in order
    [CLS] second part of the anchor [SEP] first part of the anchor, filler [SEP]     swapped

No other feature reveals the label: both orders begin and break between sentences, with the filler
at the end. An anchor of a single sentence has no order and no label.

`n` tokens fill `n // capacity` samples. There are at least as many pieces, because no piece is
longer than the capacity and the carried filler is shorter. Any piece can become an anchor.

Without sentence order (`ContiguousPacker`), samples are cut from one continuous text, like
RoBERTa's full sentences (Liu et al. 2019, arXiv 1907.11692, section 4.2). Each document is followed
by a separator and the next one, and a sample ends wherever it is full.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from peer.config.architectures import ARCHITECTURES
from peer.config.run import RunConfig
from peer.data.tokenization.encoding import EncodedChunk
from peer.data.tokenization.special_tokens import SpecialIds

SWAP_PROBABILITY = 0.5
Number = TypeVar("Number", np.int8, np.int64)
Ints = NDArray[np.int64]
Tokens = NDArray[np.int32]
MIDDLE = (0.25, 0.75)  # range of an anchor's break, in fractions of the anchor's length
IGNORED = -100  # label that cross entropy ignores
SINGLE_SENTENCE_WORTH = 0.5  # value per token of an anchor without an inner sentence end


@dataclass(frozen=True)
class Samples:
    """Unmasked samples without padding, of one segment if `token_type_ids` is None."""

    input_ids: NDArray[np.int32]  # (samples, length)
    token_type_ids: NDArray[np.int8] | None = None  # (samples, length); 0 = first segment, 1 = second
    sop_labels: NDArray[np.int64] | None = None  # (samples,); 0 = in order, 1 = swapped, `IGNORED` = single sentence

    def __len__(self) -> int:
        return len(self.input_ids)

    def __getitem__(self, part: slice) -> Samples:
        types = None if self.token_type_ids is None else self.token_type_ids[part]
        labels = None if self.sop_labels is None else self.sop_labels[part]
        return Samples(self.input_ids[part], types, labels)


def join_samples(first: Samples, second: Samples) -> Samples:
    """Concatenate two groups of samples of one run."""
    return Samples(
        np.concatenate([first.input_ids, second.input_ids]),
        _joined(first.token_type_ids, second.token_type_ids),
        _joined(first.sop_labels, second.sop_labels),
    )


def _joined(first: NDArray[Number] | None, second: NDArray[Number] | None) -> NDArray[Number] | None:
    return None if first is None or second is None else np.concatenate([first, second])


class SamplePacker(Protocol):
    """A packer that turns successive chunks of encoded text into samples."""

    special_places: int  # positions per sample for [CLS] and [SEP]
    carried: Tokens  # leftover tokens, packed with the next chunk

    def pack(self, chunk: EncodedChunk) -> Samples:
        """Pack a chunk and the carried tokens into full samples, in random order."""
        ...


def open_packer(config: RunConfig, special: SpecialIds, rng: np.random.Generator) -> SamplePacker:
    """Return the packer for the objective: segment pairs for sentence order, else running text."""
    if config.objective.name == "mlm+sop":
        return PairPacker(config.data.sequence_length, special, rng)
    framed = ARCHITECTURES[config.model.architecture].framed
    between = (special.sep,) if config.data.cross_document_attention else (special.sep, special.cls)
    return ContiguousPacker(config.data.sequence_length, special, rng, framed=framed, between=between)


def _framed(rows: Tokens, special: SpecialIds) -> Tokens:
    """Add [CLS] and [SEP] to each row: (samples, capacity) -> (samples, capacity + 2)."""
    return np.pad(rows, ((0, 0), (1, 1)), constant_values=((0, 0), (special.cls, special.sep)))


@dataclass(frozen=True)
class _Anchors:
    starts: Ints  # (samples,) index of the anchor's first token
    lengths: Ints  # (samples,) number of tokens
    breaks: Ints  # (samples,) number of tokens before the break
    swapped: NDArray[np.bool_]  # (samples,)
    has_order: NDArray[np.bool_]  # (samples,)


class PairPacker:
    """A packer of segment pairs, [CLS] first [SEP] second [SEP], half of them in swapped order."""

    special_places = 3

    def __init__(
        self, length: int, special: SpecialIds, rng: np.random.Generator, swap_probability: float = SWAP_PROBABILITY
    ) -> None:
        self._capacity = length - self.special_places
        if self._capacity < 2:
            raise ValueError(f"A sample needs room for two tokens at least, not {self._capacity}.")
        self._special, self._rng, self._swap_probability = special, rng, swap_probability
        self.carried: Tokens = np.empty(0, np.int32)  # always shorter than the capacity

    def pack(self, chunk: EncodedChunk) -> Samples:
        """Pack a chunk and the carried tokens into full samples, in random order."""
        tokens = np.concatenate([self.carried, chunk.tokens])
        starts, ends = cut_pieces(chunk, self._capacity, self._draw_first_limits(chunk.document_ends))
        shift = len(self.carried)
        anchors = self._choose_anchors(
            starts + shift, ends + shift, chunk.sentence_ends + shift, samples=len(tokens) // self._capacity
        )
        filler = tokens[~_covered(len(tokens), anchors)]
        filler_ends = np.cumsum(self._capacity - anchors.lengths)
        used = int(filler_ends[-1]) if len(filler_ends) else 0
        self.carried = filler[used:]
        filler_starts = filler_ends - (self._capacity - anchors.lengths)
        rows = _arrange(tokens, filler, anchors, filler_starts, self._capacity)
        first_lengths = np.where(anchors.swapped, anchors.lengths - anchors.breaks, anchors.breaks)
        labels = np.where(anchors.has_order, anchors.swapped, IGNORED).astype(np.int64)
        order = self._rng.permutation(len(rows))
        return self._pairs(rows[order], first_lengths[order], labels[order])

    def _pairs(self, tokens: Tokens, first_lengths: Ints, labels: Ints) -> Samples:
        """Add special tokens around both segments of each sample; `tokens`: (samples, capacity)."""
        first, sep = first_lengths[:, None], self._special.sep  # (samples, 1)
        # [CLS] and [SEP] shift the first segment by one position and the second by two.
        by_one = np.pad(tokens, ((0, 0), (0, 1)), constant_values=sep)
        by_two = np.pad(tokens, ((0, 0), (1, 0)), constant_values=sep)
        inner = np.where(np.arange(1, self._capacity + 2) <= first, by_one, by_two)
        np.put_along_axis(inner, first, sep, axis=1)
        types = (np.arange(self._capacity + self.special_places) > first + 1).astype(np.int8)
        return Samples(_framed(inner, self._special), types, labels)

    def _draw_first_limits(self, document_ends: Ints) -> Ints:
        """Draw the size limit of each document's first piece; short documents are not limited."""
        lengths = np.diff(document_ends, prepend=0)
        drawn = self._rng.integers(1, self._capacity, len(lengths), endpoint=True)
        return np.where(lengths > self._capacity, drawn, self._capacity)

    def _choose_anchors(self, starts: Ints, ends: Ints, sentence_ends: Ints, samples: int) -> _Anchors:
        """Choose the most valuable pieces as anchors; draw their breaks and the ones to swap."""
        inner = np.searchsorted(sentence_ends, ends, "left") > np.searchsorted(sentence_ends, starts, "right")
        worth = (ends - starts) * np.where(inner, 1.0, SINGLE_SENTENCE_WORTH)
        chosen = np.sort(np.argsort(-worth, kind="stable")[:samples])
        starts, lengths, has_order = starts[chosen], (ends - starts)[chosen], inner[chosen]
        breaks = self._choose_breaks(starts, lengths, sentence_ends)
        # The capital letter and full stop would reveal the order of one sentence's halves.
        swapped = (self._rng.random(len(chosen)) < self._swap_probability) & has_order
        return _Anchors(starts, lengths, breaks, swapped, has_order)

    def _choose_breaks(self, starts: Ints, lengths: Ints, sentence_ends: Ints) -> Ints:
        """Choose each anchor's break: the inner sentence end nearest to a random point, if any."""
        place = starts + np.floor(lengths * self._rng.uniform(*MIDDLE, len(starts))).astype(np.int64)
        breaks = wanted = np.clip(place, starts + 1, np.maximum(starts + 1, starts + lengths - 1))
        if not len(sentence_ends):
            return breaks - starts
        after = np.searchsorted(sentence_ends, wanted)
        nearest = np.full(len(starts), np.iinfo(np.int64).max)
        for index in (after - 1, after):
            end = sentence_ends[np.clip(index, 0, len(sentence_ends) - 1)]
            distance = np.abs(end - wanted)
            better = (end > starts) & (end < starts + lengths) & (distance < nearest)
            breaks, nearest = np.where(better, end, breaks), np.where(better, distance, nearest)
        return breaks - starts


def cut_pieces(chunk: EncodedChunk, capacity: int, first_limits: Ints) -> tuple[Ints, Ints]:
    """Cut each document into the longest runs of whole sentences that fit into `capacity` tokens.

    Returns the runs' starts and ends. `first_limits`, of shape (documents,), limits the number of
    tokens in the first run of each document; if the document's first sentence is longer, only
    `capacity` limits the run. A sentence longer than `capacity` is cut every `capacity` tokens.
    """
    sentence_ends: list[int] = chunk.sentence_ends.tolist()
    ends: list[int] = []
    start = 0
    for document_end, first_limit in zip(chunk.document_ends.tolist(), first_limits.tolist(), strict=True):
        limit = start + first_limit
        while start < document_end:
            if (end := _last_sentence_end(sentence_ends, start, min(limit, document_end))) is None:
                limit = min(start + capacity, document_end)
                end = _last_sentence_end(sentence_ends, start, limit) or limit
            ends.append(end)
            start, limit = end, end + capacity
    return np.array([0, *ends[:-1]][: len(ends)], np.int64), np.array(ends, np.int64)


def _last_sentence_end(sentence_ends: list[int], start: int, limit: int) -> int | None:
    """Return the last sentence end after `start` and up to `limit`, or None if there is none."""
    last = bisect_right(sentence_ends, limit) - 1
    return sentence_ends[last] if last >= 0 and sentence_ends[last] > start else None


def _covered(tokens: int, anchors: _Anchors) -> NDArray[np.bool_]:
    """Return a mask (tokens,) of the tokens that belong to an anchor."""
    steps = np.zeros(tokens + 1, np.int8)
    np.add.at(steps, anchors.starts, 1)
    np.add.at(steps, anchors.starts + anchors.lengths, -1)
    return np.cumsum(steps[:-1], dtype=np.int8).astype(np.bool_)


def _arrange(tokens: Tokens, filler: Tokens, anchors: _Anchors, filler_starts: Ints, capacity: int) -> Tokens:
    """Join each sample's anchor, rotated at its break if swapped, with its filler."""
    column = np.arange(capacity)  # (capacity,)
    length = anchors.lengths[:, None]  # (samples, 1)
    turned = column + np.where(anchors.swapped, anchors.breaks, 0)[:, None]  # (samples, capacity)
    in_anchor = anchors.starts[:, None] + np.where(turned < length, turned, turned - length)
    in_filler = len(tokens) + filler_starts[:, None] + column - length
    return np.concatenate([tokens, filler])[np.where(column < length, in_anchor, in_filler)]


class ContiguousPacker:
    """A packer that cuts contiguous text into samples; `framed` adds [CLS] and [SEP] to each.

    `between` contains the tokens after each document: a separator and optionally a first token.
    """

    def __init__(
        self,
        length: int,
        special: SpecialIds,
        rng: np.random.Generator,
        *,
        framed: bool,
        between: tuple[int, ...],
    ) -> None:
        self.special_places = 2 if framed else 0
        self._capacity = length - self.special_places
        self._special, self._between, self._rng = special, between, rng
        self.carried: Tokens = np.empty(0, np.int32)  # always shorter than the capacity

    def pack(self, chunk: EncodedChunk) -> Samples:
        """Pack a chunk and the carried tokens into full samples, in random order."""
        ends = np.repeat(chunk.document_ends, len(self._between))
        run = np.insert(chunk.tokens, ends, np.tile(self._between, len(chunk.document_ends)))
        run = np.concatenate([self.carried, run])
        full = len(run) - len(run) % self._capacity
        self.carried = run[full:]
        rows = run[:full].reshape(-1, self._capacity)
        rows = rows[self._rng.permutation(len(rows))]
        return Samples(_framed(rows, self._special) if self.special_places else rows)
