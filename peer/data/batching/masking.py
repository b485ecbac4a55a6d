"""Labels for training: randomly masked tokens, or the next token at each position.

Masking is dynamic: each use of a sample draws a share `mask_probability` of its positions (at least
one) without replacement. A fixed number of labels keeps tensor shapes constant, as compiled
backends require, and makes the loss less noisy than an independent draw per token. Of the chosen
tokens 80 % become [MASK], 10 % a random token, and 10 % stay unchanged (Devlin et al. 2019).

In whole-word masking, either all tokens of a word are chosen or none. Words are drawn in random
order, skipping any that exceed the remaining number of labels; a word longer than the total number
is treated as single tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peer.data.tokenization.special_tokens import SpecialIds
from peer.data.tokenization.words import WordStarts

REPLACED = 0.8  # share of the chosen tokens that become [MASK]
RANDOM = 0.1  # share of the chosen tokens that become a random token
UNKNOWN = 1.0  # penalty for choosing the unknown token, which teaches nothing
MOST_RELUCTANT = 1.0 + UNKNOWN  # greater than any finite key: a random number in [0, 1) plus a penalty
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Labelled:
    """Input ids and labels; positions are ascending indices into the flattened samples."""

    input_ids: NDArray[np.int64]  # (samples, length)
    positions: NDArray[np.int64]  # (labels,)
    labels: NDArray[np.int64]  # (labels,) ids to predict at those positions


def next_tokens(input_ids: NDArray[np.int32]) -> Labelled:
    """Label each position except a sample's last with the next token, for causal language modelling."""
    ids = input_ids.astype(np.int64)
    places = np.arange(ids.size).reshape(ids.shape)
    return Labelled(ids, places[:, :-1].reshape(-1), ids[:, 1:].reshape(-1))


class Masker:
    """Random masking of samples; special tokens are never chosen or used as random tokens."""

    def __init__(
        self, vocab_size: int, special: SpecialIds, probability: float, word_starts: WordStarts | None = None
    ) -> None:
        self._mask_id, self._probability, self._word_starts = special.mask_id, probability, word_starts
        self._reluctance = np.zeros(vocab_size, np.float32)  # penalty per token id
        self._reluctance[special.unk] = UNKNOWN
        self._reluctance[[special.pad, special.cls, special.sep, special.mask_id]] = np.inf
        self._ordinary_ids = np.flatnonzero(self._reluctance == 0.0)

    def mask(self, input_ids: NDArray[np.int32], special_places: int, rng: np.random.Generator) -> Labelled:
        """Mask ids (samples, length); each sample contains `special_places` special tokens."""
        per_sample = max(1, round(self._probability * (input_ids.shape[1] - special_places)))
        reluctance = self._reluctance[input_ids]
        if self._word_starts is None:
            positions = choose_tokens(reluctance, per_sample, rng)
        else:
            positions = choose_words(reluctance, self._word_starts(input_ids), per_sample, rng)
        masked_ids = input_ids.astype(np.int64)
        labels = masked_ids.reshape(-1)[positions]
        masked_ids.reshape(-1)[positions] = self._replacements(labels, rng)
        return Labelled(masked_ids, positions, labels)

    def _replacements(self, labels: Ints, rng: np.random.Generator) -> Ints:
        draw = rng.random(len(labels))
        random_ids = self._ordinary_ids[rng.integers(len(self._ordinary_ids), size=len(labels))]
        return np.where(draw < REPLACED, self._mask_id, np.where(draw < REPLACED + RANDOM, random_ids, labels))


def choose_tokens(reluctance: NDArray[np.float32], per_sample: int, rng: np.random.Generator) -> Ints:
    """Choose up to `per_sample` tokens a sample, low `reluctance` first; return flat positions."""
    samples, length = reluctance.shape
    keys = rng.random(reluctance.shape, np.float32) + reluctance
    places = np.argpartition(keys, per_sample - 1, axis=1)[:, :per_sample]
    keys_of_places = np.take_along_axis(keys, places, axis=1)
    usable = keys_of_places <= np.maximum(1.0, keys_of_places.min(axis=1, keepdims=True))
    flat = places + np.arange(samples)[:, None] * length
    return np.sort(flat[usable & np.isfinite(keys_of_places)])


def choose_words(
    reluctance: NDArray[np.float32], starts: NDArray[np.bool_], per_sample: int, rng: np.random.Generator
) -> Ints:
    """Choose whole words, at most `per_sample` tokens in each sample; return sorted flat positions.

    `reluctance` and `starts` are (samples, l). A word's reluctance is the maximum over its tokens.
    """
    samples, length = starts.shape
    first = np.flatnonzero(_shorter_words(starts.reshape(-1), per_sample))  # (words,) first tokens' indices
    lengths = np.diff(first, append=starts.size)
    owner = first // length  # (words,) index of each word's sample
    keys = rng.random(len(first)) + np.maximum.reduceat(reluctance.reshape(-1), first)
    least = np.minimum.reduceat(keys, np.searchsorted(owner, np.arange(samples)))  # (samples,) smallest keys
    order = np.flatnonzero(np.isfinite(keys) & (keys <= np.maximum(1.0, least)[owner]))
    order = order[np.argsort(keys[order] + MOST_RELUCTANT * owner[order])]  # sorted by sample
    chosen = take_while_they_fit(order, lengths, owner, np.full(samples, per_sample))
    word = np.cumsum(np.bincount(first, minlength=starts.size)) - 1  # (samples * l,) index of each token's word
    return np.flatnonzero(chosen[word])


def take_while_they_fit(order: Ints, lengths: Ints, owner: Ints, room: Ints) -> NDArray[np.bool_]:
    """Choose words in the given order per sample, skipping words that exceed its remaining room.

    `order` lists word indices grouped by sample; `lengths` and `owner` are (words,), `room` is
    (samples,). Returns a mask (words,).
    """
    taken = np.zeros(len(lengths), np.bool_)
    room = room.copy()
    while len(order := order[lengths[order] <= room[owner[order]]]):
        total = np.cumsum(lengths[order])
        before = np.searchsorted(owner[order], owner[order])  # index of the sample's first word
        within = total - (total[before] - lengths[order[before]])
        fits = within <= room[owner[order]]
        taken[order[fits]] = True
        room -= np.bincount(owner[order[fits]], lengths[order[fits]], minlength=len(room)).astype(np.int64)
        order = order[~fits]
    return taken


def _shorter_words(starts: NDArray[np.bool_], longest: int) -> NDArray[np.bool_]:
    """Return the word starts, treating each token of a word longer than `longest` as a word."""
    first = np.flatnonzero(starts)
    too_long = np.diff(first, append=starts.size) > longest
    return starts | np.repeat(too_long, np.diff(first, append=starts.size))
