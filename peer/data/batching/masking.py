"""Labels, the tokens that a model has to guess: masked anew each time a sample is used, or each place's next token.

Dynamic masking: in each sample the same number of tokens, `mask_probability` of its places (at least one), is chosen at
random without replacement. An exact number rather than a coin toss for each token makes the head's work the same in
every batch, which compiled backends need, and the loss less noisy. Of the chosen tokens 80 % become [MASK], 10 % a
random token and 10 % stay (Devlin et al. 2019).

With whole words, all tokens of a word are chosen or none. Words are taken in random order as long as they fit into the
same number of tokens; a word that no sample has room for counts as its single tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peer.data.tokenization.special_tokens import SpecialIds
from peer.data.tokenization.words import WordStarts

REPLACED = 0.8  # of the chosen tokens become [MASK]
RANDOM = 0.1  # become a random token; the rest stays
UNKNOWN = 1.0  # how reluctantly the unknown token is chosen: it teaches nothing, and serves where there is nothing else
MOST_RELUCTANT = 1.0 + UNKNOWN  # above all keys: a random number from 0 to 1 and the reluctance
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Labelled:
    """Samples as the model sees them and its labels; positions index the flattened samples and rise."""

    input_ids: NDArray[np.int64]  # (samples, length)
    positions: NDArray[np.int64]  # (labels,)
    labels: NDArray[np.int64]  # (labels,) the ids to guess at those positions


def next_tokens(input_ids: NDArray[np.int32]) -> Labelled:
    """For causal language modelling: every place but each sample's last has to guess what follows it."""
    ids = input_ids.astype(np.int64)
    places = np.arange(ids.size).reshape(ids.shape)
    return Labelled(ids, places[:, :-1].reshape(-1), ids[:, 1:].reshape(-1))


class Masker:
    """Masks samples of one vocabulary; special tokens are never chosen and never put in."""

    def __init__(
        self, vocab_size: int, special: SpecialIds, probability: float, word_starts: WordStarts | None = None
    ) -> None:
        self._mask_id, self._probability, self._word_starts = special.mask_id, probability, word_starts
        self._reluctance = np.zeros(vocab_size, np.float32)  # of each id
        self._reluctance[special.unk] = UNKNOWN
        self._reluctance[[special.pad, special.cls, special.sep, special.mask_id]] = np.inf
        self._ordinary_ids = np.flatnonzero(self._reluctance == 0.0)

    def mask(self, input_ids: NDArray[np.int32], special_places: int, rng: np.random.Generator) -> Labelled:
        """Mask (samples, length) ids, of which `special_places` in each sample hold [CLS] or [SEP]."""
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
    """Flat rising positions of `per_sample` tokens of each sample, reluctant ones last  # reluctance (samples, l)"""
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
    """Flat rising positions of whole words, up to `per_sample` tokens of each sample  # both (samples, l)

    A word is as reluctant as its most reluctant token.
    """
    samples, length = starts.shape
    first = np.flatnonzero(_shorter_words(starts.reshape(-1), per_sample))  # (words,) where each begins
    lengths = np.diff(first, append=starts.size)
    owner = first // length  # (words,) the sample that it is in
    keys = rng.random(len(first)) + np.maximum.reduceat(reluctance.reshape(-1), first)
    least = np.minimum.reduceat(keys, np.searchsorted(owner, np.arange(samples)))  # (samples,)
    order = np.flatnonzero(np.isfinite(keys) & (keys <= np.maximum(1.0, least)[owner]))
    order = order[np.argsort(keys[order] + MOST_RELUCTANT * owner[order])]  # the samples' words one after the other
    chosen = take_while_they_fit(order, lengths, owner, np.full(samples, per_sample))
    word = np.cumsum(np.bincount(first, minlength=starts.size)) - 1  # (samples * l,) the word that each token is in
    return np.flatnonzero(chosen[word])


def take_while_they_fit(order: Ints, lengths: Ints, owner: Ints, room: Ints) -> NDArray[np.bool_]:
    """Return which words are taken, if each sample takes its own in this order and skips those too long for its room.

    `order` has the samples one after the other; `lengths` and `owner` are the words', `room` is the samples'.
    """
    taken = np.zeros(len(lengths), np.bool_)
    room = room.copy()
    while len(order := order[lengths[order] <= room[owner[order]]]):
        total = np.cumsum(lengths[order])
        before = np.searchsorted(owner[order], owner[order])  # the first in order of the same sample
        within = total - (total[before] - lengths[order[before]])
        fits = within <= room[owner[order]]
        taken[order[fits]] = True
        room -= np.bincount(owner[order[fits]], lengths[order[fits]], minlength=len(room)).astype(np.int64)
        order = order[~fits]
    return taken


def _shorter_words(starts: NDArray[np.bool_], longest: int) -> NDArray[np.bool_]:
    """Return these starts, with each token of a word longer than `longest` as a word."""
    first = np.flatnonzero(starts)
    too_long = np.diff(first, append=starts.size) > longest
    return starts | np.repeat(too_long, np.diff(first, append=starts.size))
