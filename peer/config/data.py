"""`data:`: where samples come from and what shape they have."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from peer.config.base import PositiveFloat, Section
from peer.config.sampling import Duplicates, Sampling
from peer.config.validation import Validation


class Source(Section):
    """One source of documents: the built-in corpus, local files, or a Hugging Face dataset (streamed)."""

    kind: Literal["builtin", "text", "jsonl", "hub"]
    path: str | None = None
    config_name: str | None = None
    split: str = "train"
    revision: str | None = None
    text_field: str = "text"
    weight: PositiveFloat = 1.0  # this source's share of the documents, relative to the others'
    duplicates: Duplicates = "none"
    sampling: Sampling | None = None

    @model_validator(mode="after")
    def _path_where_needed(self) -> Source:
        if (self.path is None) != (self.kind == "builtin"):
            wanted = "takes no `path`" if self.kind == "builtin" else "needs a `path`"
            raise ValueError(f"a source of kind `{self.kind}` {wanted}")
        return self


class Data(Section):
    """Where samples come from and what shape they have."""

    sources: tuple[Source, ...] = Field((Source(kind="builtin"),), min_length=1, strict=False)
    sequence_length: int = Field(512, ge=16, le=8192)
    microbatch_size: int = Field(4, ge=1, le=4096)
    shuffle_buffer: int = Field(1000, ge=1, le=1_000_000)
    validation: Validation = Validation()
