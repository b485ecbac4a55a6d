"""Dynamic masking: every time a sample is used, other tokens of it are to be guessed.

In each sample the same number of tokens, `mask_probability` of its places (at least one), is chosen at random without
replacement. An exact number rather than a coin toss for each token makes the head's work the same in every batch, which
compiled backends need, and the loss less noisy. Of the chosen tokens 80 % become [MASK], 10 % a random token and 10 %
stay (Devlin et al. 2019).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peer.data.special_tokens import SpecialIds

REPLACED = 0.8  # of the chosen tokens become [MASK]
RANDOM = 0.1  # become a random token; the rest stays


@dataclass(frozen=True)
class Masked:
    """Masked samples, and what the model has to guess; positions index the flattened samples and rise."""

    input_ids: NDArray[np.int64]  # (samples, length)
    positions: NDArray[np.int64]  # (masked,)
    labels: NDArray[np.int64]  # (masked,) the original ids at those positions


class Masker:
    """Masks samples of one vocabulary; special tokens are never chosen and never put in."""

    def __init__(self, vocab_size: int, special: SpecialIds, probability: float) -> None:
        self._mask_id, self._probability = special.mask_id, probability
        # How reluctantly an id is chosen. The unknown token teaches nothing: it serves where there is nothing else.
        self._reluctance = np.zeros(vocab_size, np.float32)
        self._reluctance[special.unk] = 1.0
        self._reluctance[[special.pad, special.cls, special.sep, special.mask_id]] = np.inf
        self._ordinary_ids = np.flatnonzero(self._reluctance == 0.0)

    def mask(self, input_ids: NDArray[np.int32], special_places: int, rng: np.random.Generator) -> Masked:
        """Mask (samples, length) ids, of which `special_places` in each sample hold [CLS] or [SEP]."""
        samples, length = input_ids.shape
        chosen_per_sample = max(1, round(self._probability * (length - special_places)))
        keys = rng.random(input_ids.shape, np.float32) + self._reluctance[input_ids]
        places = np.argpartition(keys, chosen_per_sample - 1, axis=1)[:, :chosen_per_sample]
        keys_of_places = np.take_along_axis(keys, places, axis=1)
        usable = keys_of_places <= np.maximum(1.0, keys_of_places.min(axis=1, keepdims=True))
        flat = places + np.arange(samples)[:, None] * length
        positions = np.sort(flat[usable & np.isfinite(keys_of_places)])
        masked_ids = input_ids.astype(np.int64)
        labels = masked_ids.reshape(-1)[positions]
        masked_ids.reshape(-1)[positions] = self._replacements(labels, rng)
        return Masked(masked_ids, positions, labels)

    def _replacements(self, labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        draw = rng.random(len(labels))
        random_ids = self._ordinary_ids[rng.integers(len(self._ordinary_ids), size=len(labels))]
        return np.where(draw < REPLACED, self._mask_id, np.where(draw < REPLACED + RANDOM, random_ids, labels))
