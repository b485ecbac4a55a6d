"""`tokenizer:`: where the run's tokenizer comes from, or how it is trained."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, model_validator

from peer.config.base import Positive, Section
from peer.config.tokenizer_presets import LOWERCASE, PRESETS, Algorithm, PresetName
from peer.config.tokenizer_steps import Metaspace, Normalizer, PreTokenizer

MARKS_SPACES = {"metaspace", "byte-level"}  # pre-tokenizers that keep a sign of each space
DROPS_SPACES = {"bert", "whitespace", "whitespace-split", "char-delimiter"}


class Tokenizer(Section):
    """The run's tokenizer: imported from `path`, or trained once by `coordinator init` as a preset says.

    None leaves a choice to the preset.
    """

    path: str | None = None
    preset: PresetName = "albert"
    algorithm: Algorithm | None = None
    vocab_size: int = Field(32_000, ge=100, le=1_000_000)
    lowercase: bool | None = None
    normalizers: tuple[Normalizer, ...] | None = Field(None, max_length=50, strict=False)
    pre_tokenizers: tuple[PreTokenizer, ...] | None = Field(None, min_length=1, max_length=50, strict=False)
    max_training_documents: Positive = 200_000

    @model_validator(mode="after")
    def _no_choice_is_lost(self) -> Tokenizer:
        choices = ("algorithm", "lowercase", "normalizers", "pre_tokenizers")
        given = [name for name in choices if getattr(self, name) is not None]
        if self.path is not None and given:
            raise ValueError(
                f"`tokenizer.path` imports a tokenizer as it is: remove `{given[0]}`, or `path` to train one"
            )
        if self.normalizers is not None and self.lowercase is not None:
            raise ValueError(
                "`tokenizer.normalizers` replaces `tokenizer.lowercase`: write `lowercase` as its last step"
            )
        return self

    @model_validator(mode="after")
    def _words_can_be_joined_again(self) -> Tokenizer:
        if self.pre_tokenizers is None or self.path is not None:
            return self
        if self.chosen_algorithm == "sentencepiece":
            raise ValueError("`tokenizer.pre_tokenizers` is not for `sentencepiece`, which cuts by itself: remove it")
        if self.chosen_algorithm == "unigram" and _loses_spaces(self.pre_tokenizers):
            raise ValueError(
                "`tokenizer.pre_tokenizers` drops spaces, and `unigram` does not mark words: add `metaspace`"
            )
        return self

    @property
    def chosen_algorithm(self) -> Algorithm:
        """The given algorithm or the preset's own."""
        return self.algorithm or PRESETS[self.preset].algorithm

    @property
    def chosen_normalizers(self) -> tuple[Normalizer, ...]:
        """The given steps, or the preset's with small letters as wanted."""
        if self.normalizers is not None:
            return self.normalizers
        steps = PRESETS[self.preset].normalizers
        if self.lowercase is None:
            return steps
        kept = tuple(step for step in steps if step != LOWERCASE)
        return (*kept, LOWERCASE) if self.lowercase else kept

    @property
    def chosen_pre_tokenizers(self) -> tuple[PreTokenizer, ...]:
        """The given steps, or the preset's; words get a mark if the algorithm does not give them one."""
        if self.pre_tokenizers is not None:
            return self.pre_tokenizers
        steps = PRESETS[self.preset].pre_tokenizers
        if self.chosen_algorithm == "unigram" and _loses_spaces(steps):
            return (*steps, Metaspace(name="metaspace"))
        return steps


def _loses_spaces(steps: Sequence[PreTokenizer]) -> bool:
    names = {step.name for step in steps}
    return bool(names & DROPS_SPACES) and not names & MARKS_SPACES
