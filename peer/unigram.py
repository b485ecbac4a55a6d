"""What is lost by guessing each token by its frequency alone: whoever has learned anything loses less."""

from __future__ import annotations

import torch

from peer.data.batches import Batch
from peer.data.special_tokens import SpecialIds


def unigram_loss(samples: Batch, vocab_size: int, special: SpecialIds) -> float:
    """Nats for each predicted token, with the frequencies of the samples' own tokens (special ones aside), plus one.

    These know the text that they are tried on, so an honest unigram is a little worse.
    """
    counts = torch.bincount(samples.input_ids.flatten(), minlength=vocab_size).double()
    counts += torch.bincount(samples.labels, minlength=vocab_size)
    for token in (special.pad, special.unk, special.cls, special.sep, special.mask):
        if token is not None:
            counts[token] = 0
    frequencies = (counts + 1) / (counts + 1).sum()
    return float(-frequencies[samples.labels].log().mean())
