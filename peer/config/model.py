"""`model:` and `objective:`: what is trained, and what it is asked to learn."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from peer.config.base import Fraction, Positive, Section


class Model(Section):
    """The ALBERT to train (Lan et al. 2020, arXiv 1909.11942); the names are transformers' `AlbertConfig`'s."""

    architecture: Literal["albert"] = "albert"
    embedding_size: Positive = 128
    hidden_size: Positive = 1024
    num_hidden_layers: Positive = 24
    num_hidden_groups: Positive = 1
    num_attention_heads: Positive = 16
    intermediate_size: Positive = 4096
    max_position_embeddings: Positive = 512
    hidden_dropout_prob: Fraction = 0.0
    attention_probs_dropout_prob: Fraction = 0.0

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Model:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"`hidden_size` ({self.hidden_size}) must be a multiple of "
                f"`num_attention_heads` ({self.num_attention_heads})"
            )
        return self


class Objective(Section):
    """Masked language modelling with sentence order (ALBERT) or without."""

    name: Literal["mlm+sop", "mlm"] = "mlm+sop"
    mask_probability: float = Field(0.15, gt=0, lt=1)
