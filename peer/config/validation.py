"""`data.validation:`: the documents that nobody trains on, so that checkpoints can be compared by them."""

from __future__ import annotations

from pydantic import Field

from peer.config.base import Section

MAX_SAMPLES = 16_384  # all of them are read for each checkpoint


class Validation(Section):
    """How much text is held out, and how much of it each checkpoint is evaluated on."""

    share: float = Field(0.001, ge=0, lt=0.5)  # of the documents, chosen by their hash; 0: none, and no evaluation
    samples: int = Field(512, ge=1, le=MAX_SAMPLES)  # at most
