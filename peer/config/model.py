"""`model:` and `objective:`: what is trained, and what it is asked to learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from peer.config.architectures import ARCHITECTURES, Count, Option, read_options
from peer.config.base import Fraction, Section
from peer.config.reformer import check_reformer

OWN_SIZES = ("embedding_size", "num_hidden_groups")


class Model(Section):
    """The model to train; the names are transformers', ALBERT's where the families' differ.

    The default is ALBERT-large (Lan et al. 2020, arXiv 1909.11942).
    """

    architecture: Literal["albert", "bert", "roberta", "electra", "deberta", "deberta-v2", "reformer", "gpt2"] = (
        "albert"
    )
    embedding_size: Count | None = None  # None, like the next: this family has no such size
    hidden_size: Count = 1024
    num_hidden_layers: Count = 24
    num_hidden_groups: Count | None = None
    num_attention_heads: Count = 16
    intermediate_size: Count = 4096
    max_position_embeddings: Count = 512
    hidden_dropout_prob: Fraction = 0.0
    attention_probs_dropout_prob: Fraction = 0.0
    options: dict[str, Option] = Field({}, strict=False)  # further keys of the family's transformers configuration

    @model_validator(mode="before")
    @classmethod
    def _read_by_architecture(cls, content: Any) -> Any:
        """Fill in the sizes that only this family has, and read its options."""
        if not isinstance(content, Mapping):
            return content
        architecture, options = content.get("architecture", "albert"), content.get("options", {})
        if architecture not in tuple(ARCHITECTURES) or not isinstance(options, Mapping):
            return content
        sizes = {name: _own_size(architecture, name, content.get(name)) for name in OWN_SIZES}
        return {**content, **sizes, "options": read_options(architecture, options)}

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Model:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"`hidden_size` ({self.hidden_size}) must be a multiple of "
                f"`num_attention_heads` ({self.num_attention_heads})"
            )
        return self

    def check_length(self, sequence_length: int) -> None:
        """Raise `ValueError` with one sentence if samples of this length do not fit into the model."""
        if sequence_length > self.max_position_embeddings:
            raise ValueError(
                f"`data.sequence_length` ({sequence_length}) must not exceed "
                f"`model.max_position_embeddings` ({self.max_position_embeddings})"
            )
        if self.architecture == "reformer":
            check_reformer(self, sequence_length)


def _own_size(architecture: str, name: str, value: object) -> object:
    """The given size or the family's default; None where the family has no such size."""
    default = ARCHITECTURES[architecture].own_sizes.get(name)
    if default is None and value is not None:
        raise ValueError(f"`model.{name}` ({value!r:.80}) is no size of `{architecture}`: remove it")
    return default if value is None else value


class Objective(Section):
    """Masked language modelling with sentence order (ALBERT) or without, or causal language modelling (GPT-2)."""

    name: Literal["mlm+sop", "mlm", "clm"] = "mlm+sop"
    mask_probability: float = Field(0.15, gt=0, lt=1)
    whole_words: bool = False

    def check_architecture(self, architecture: str) -> None:
        """Raise `ValueError` with one sentence if this is no objective for a model of that family."""
        fitting = ARCHITECTURES[architecture].objectives
        if self.name not in fitting:
            raise ValueError(
                f"`objective.name` ({self.name}) is not for `{architecture}`: "
                f"set it to {' or '.join(f'`{name}`' for name in fitting)}"
            )
        if self.whole_words and self.name == "clm":
            raise ValueError("`objective.whole_words` (true) is for masked language modelling: remove it")
