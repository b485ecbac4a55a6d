"""Documents to chunks of token ids; every text goes through the tokenizer exactly once.

Tokenizing is nearly all the work of the data path. Many sentences go to the tokenizer in one call, so that it uses all
cores and computes no character offsets, and packing works on the ids alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from peer.data.sentences import split_sentences


@dataclass(frozen=True)
class EncodedChunk:
    """Some documents as one run of tokens, and where sentences and documents end in it."""

    tokens: NDArray[np.int32]  # (tokens,)
    sentence_ends: NDArray[np.int64]  # (sentences,) rising; an end is the index after the last token
    document_ends: NDArray[np.int64]  # (documents,) rising; each is a sentence's end as well


def encode_documents(tokenizer: Tokenizer, documents: Sequence[str]) -> EncodedChunk:
    """Tokenize documents sentence by sentence in one batch; what has no tokens leaves no trace."""
    by_document = [split_sentences(document) for document in documents]
    encodings = tokenizer.encode_batch_fast(list(chain.from_iterable(by_document)), add_special_tokens=False)
    ids = [encoding.ids for encoding in encodings]
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    all_ends = np.cumsum(lengths)
    tokens = np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum()))
    sentences_so_far = [count for count in accumulate(map(len, by_document)) if count]
    last_sentences = np.array(sentences_so_far, np.int64) - 1
    return EncodedChunk(tokens, _rising(all_ends), _rising(all_ends[last_sentences]))


def _rising(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Without the ends of what was empty."""
    return ends[np.diff(ends, prepend=0) > 0]
