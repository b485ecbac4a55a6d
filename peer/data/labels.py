"""Samples with what the model has to guess: masked tokens (`peer/data/masking.py`), or each place's next token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
