"""What there is to guess where nothing is masked."""

from __future__ import annotations

import numpy as np

from peer.data.labels import next_tokens


def test_every_place_but_the_last_has_the_next_token_to_guess() -> None:
    """Positions rise through all samples, and no sample has to guess another's first token."""
    labelled = next_tokens(np.array([[10, 11, 12], [20, 21, 22]], np.int32))
    assert labelled.input_ids.tolist() == [[10, 11, 12], [20, 21, 22]]
    assert labelled.positions.tolist() == [0, 1, 3, 4]
    assert labelled.labels.tolist() == [11, 12, 21, 22]
    assert labelled.input_ids.dtype == labelled.positions.dtype == labelled.labels.dtype == np.int64
