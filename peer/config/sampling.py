"""`data.sources[].sampling` and `.duplicates`: which of a source's documents are kept.

`manyhands corpus sample` prints such a section; `peer.data.perplexity_sampling` says what its numbers mean.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from peer.config.addresses import check_address
from peer.config.base import PositiveFloat, Section

Duplicates = Literal["none", "exact", "near"]
Method = Literal["random", "stepwise", "gaussian"]
Factor = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Address = Annotated[str, Field(min_length=1, max_length=1000)]


class Scorer(Section):
    """What scores documents: pieces of a Unigram tokenizer (the run's own, if none is named), or a KenLM model."""

    kind: Literal["unigram", "kenlm"] = "unigram"
    model: Address | None = None  # a path or an address, which every volunteer's machine must reach
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None  # of the model's file
    text: Literal["raw", "words"] = "raw"  # as KenLM is given it: as it is, or normalized and cut into words

    @model_validator(mode="after")
    def _model_where_needed(self) -> Scorer:
        if self.kind == "kenlm" and self.model is None:
            raise ValueError("a scorer of kind `kenlm` needs a `model`")
        if self.sha256 is not None and self.model is None:
            raise ValueError("`sha256` is the digest of a scorer's `model`: name one, or remove it")
        if self.kind == "unigram" and self.text != "raw":
            raise ValueError("`text` is for scorers of kind `kenlm`: a tokenizer normalizes by itself")
        return self

    @model_validator(mode="after")
    def _address_is_of_a_file(self) -> Scorer:
        if self.model is not None:
            check_address("model", self.model)
        return self


class Sampling(Section):
    """A document is kept with the probability min(1, `scale` x its weight); the method gives the weight."""

    method: Method
    scale: PositiveFloat
    quartiles: tuple[PositiveFloat, PositiveFloat, PositiveFloat] | None = Field(None, strict=False)  # perplexities
    factors: tuple[Factor, Factor, Factor, Factor] | None = Field(
        None, strict=False
    )  # stepwise: each quartile's weight
    width: PositiveFloat | None = None  # gaussian
    scorer: Scorer = Scorer()

    @model_validator(mode="after")
    def _parameters_fit_the_method(self) -> Sampling:
        wanted = {"quartiles": self.method != "random", "factors": self.method == "stepwise"}
        for name, needed in {**wanted, "width": self.method == "gaussian"}.items():
            if needed != (getattr(self, name) is not None):
                verb = "needs" if needed else "takes no"
                raise ValueError(f"sampling by the method `{self.method}` {verb} `{name}`")
        if self.quartiles is not None and list(self.quartiles) != sorted(self.quartiles):
            raise ValueError(f"`quartiles` {self.quartiles} must rise")
        if self.factors is not None and not any(self.factors):
            raise ValueError("`factors` are all 0: nothing would be kept")
        return self
