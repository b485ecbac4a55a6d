"""`tokenizer:`: where the run's tokenizer comes from."""

from __future__ import annotations

from pydantic import Field

from peer.config.base import Positive, Section


class Tokenizer(Section):
    """The run's tokenizer: a given `tokenizer.json`, or a Unigram trained once by `coordinator init`."""

    path: str | None = None
    vocab_size: int = Field(32_000, ge=100, le=1_000_000)
    lowercase: bool = True
    max_training_documents: Positive = 200_000
