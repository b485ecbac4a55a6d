"""Tokenizer, model and inputs of a checkpoint: special tokens, padding and windows of words.

A checkpoint is a transformers folder or a Hub model's name. Only safetensors weights are loaded.

For tagging, the first token of each word carries the word's tag, and long sentences are split into
windows at word boundaries. Every word of a test set is thus scored, with any tokenizer.
"""

from __future__ import annotations

import logging
import math
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from auth.errors import ConfigError
from coordinator.checkpoints.manifest import MANIFEST, verify
from peer.config.evaluation import Recipe
from peer.data.batching.samples import IGNORED

_MODEL: Any = transformers.AutoModel
FRESH_SEED = 2**32 - 17  # random weights use the seed FRESH_SEED - seed, which differs from seeds of runs
PADDING = {"labels": IGNORED, "attention_mask": 0, "token_type_ids": 0}
MOST_REASON_CHARS = 200
ABILITIES = {  # transformers' class for a head -> ability of a model with this head
    "AutoModelForMaskedLM": "fill masks",
    "AutoModelForTokenClassification": "tag words",
    "AutoModelForSequenceClassification": "label texts",
    "AutoModelForQuestionAnswering": "mark answers",
}
Tokenize = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Pretrained:
    """A model to evaluate; with `random_start`, random weights replace the trained ones."""

    source: str
    random_start: bool = False

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Load the tokenizer; raises `ConfigError` if loading fails."""
        with _loading(self.source, "tokenizer"):
            found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(self.source)
        return found

    def model(self, kind: str, seed: int, labels: Sequence[str] = (), **settings: Any) -> PreTrainedModel:
        """Load the model in float32 as the transformers class `kind`, with a head for `labels`.

        The seed initializes missing weights, or all weights with `random_start`, so the spread
        over seeds includes the effect of initialization. Raises `ConfigError` if loading fails.
        """
        auto = getattr(transformers, kind)
        if labels:
            settings |= {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}
        model: PreTrainedModel
        with _loading(self.source, kind):
            torch.manual_seed(FRESH_SEED - seed if self.random_start else seed)
            if self.random_start:
                model = auto.from_config(AutoConfig.from_pretrained(self.source, **settings), dtype=torch.float32)
            else:
                model = auto.from_pretrained(self.source, use_safetensors=True, dtype=torch.float32, **settings)
        return model

    def check(self) -> None:
        """Verify the checkpoint if it has a manifest; raises `StorageError` if it is damaged."""
        path = Path(self.source)
        if (path / MANIFEST).is_file():
            verify(path)

    def length(self, recipe: Recipe) -> int:
        """Return the recipe's maximum number of tokens per example, capped at the model's limit.

        Raises `ConfigError` if a `max_length` other than the default exceeds the limit.
        """
        possible = self.positions()
        if possible is None or recipe.max_length <= possible:
            return recipe.max_length
        if recipe.max_length != Recipe.model_fields["max_length"].default:
            raise ConfigError(
                f"`max_length` ({recipe.max_length}) is more than {self.source} has positions for: "
                f"at most {possible} tokens are possible."
            )
        return possible

    def positions(self) -> int | None:
        """Return the maximum number of tokens that the model supports, or None if unlimited.

        RoBERTa and related models number positions from the padding index + 1, so they have fewer
        usable positions than configured. Raises `ConfigError` if the model cannot be loaded.
        """
        with _loading(self.source, "configuration"):
            config = AutoConfig.from_pretrained(self.source)
            with torch.device("meta"):
                body = _MODEL.from_config(config)
        stated = getattr(config, "max_position_embeddings", None)
        if not isinstance(stated, int) or stated <= 0:
            return None
        tables = [part for name, part in body.named_modules() if name.endswith("position_embeddings")]
        offsets = [getattr(table, "padding_idx", None) for table in tables]
        return stated - max((offset + 1 for offset in offsets if offset is not None), default=0)


def share_weights(folder: Path) -> None:
    """Give saved weights the file mode of config.json, which follows the umask.

    By default, safetensors creates files that only their owner can read.
    """
    for weights in folder.glob("*.safetensors"):
        shutil.copymode(folder / "config.json", weights)


def be_quiet() -> None:
    """Make transformers log only errors; warnings about newly initialized heads are expected."""
    transformers.logging.set_verbosity(logging.ERROR)
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def _loading(source: str, what: str) -> Iterator[None]:
    """Convert transformers' exceptions in the block to `ConfigError`; `what` names the object."""
    try:
        yield
    except Exception as error:  # transformers raises many types of exception
        if "Unrecognized configuration class" in str(error) and what in ABILITIES:  # part of transformers' message
            family = AutoConfig.from_pretrained(source).model_type
            raise ConfigError(
                f"{source} is a model of the family {family}, which cannot {ABILITIES[what]} (transformers has no "
                f"{what} of it): choose another model, or a task of another kind."
            ) from error
        reason = textwrap.shorten(str(error).rstrip(". "), MOST_REASON_CHARS, placeholder=" ...")
        raise ConfigError(
            f"{source} cannot be loaded by transformers ({what}: {reason}): name a checkpoint's folder or a model of "
            "the hub."
        ) from error


@contextmanager
def tuning(model: PreTrainedModel) -> Iterator[None]:
    """Raise `ConfigError` if the model is a Reformer that cannot train on these sequence lengths."""
    try:
        yield
    except ValueError as error:
        config = model.config
        if config.model_type != "reformer" or "sequence length" not in str(error):  # part of both error messages
            raise
        if config.axial_pos_embds:
            raise ConfigError(
                f"{model.name_or_path} is a Reformer with axial positions, which trains only on sequences of exactly "
                f"{math.prod(config.axial_pos_shape)} tokens: it cannot be fine-tuned for this task."
            ) from error
        chunk = min(getattr(config, f"{kind}_attn_chunk_length") for kind in config.attn_layers)
        raise ConfigError(
            f"{model.name_or_path} is a Reformer, whose attention works in chunks of {chunk} tokens: set `max_length` "
            f"to {chunk} or less to fine-tune it."
        ) from error


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return a token id for padding; any id works, because the attention mask hides padding."""
    names = ("pad_token_id", "eos_token_id", "unk_token_id")
    return next((found for name in names if isinstance(found := getattr(tokenizer, name, None), int)), 0)


def mask_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the mask token's id; raises `ConfigError` if there is none, as in causal models."""
    found = getattr(tokenizer, "mask_token_id", None)
    if not isinstance(found, int):
        raise ConfigError("The checkpoint's tokenizer has no mask: fill-mask and bias tasks are for masked models.")
    return found


@dataclass(frozen=True)
class Frame:
    """The special tokens that a tokenizer adds before and after a text."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    def around(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens with special tokens added."""
        return [*self.before, *tokens, *self.after]

    def room(self, length: int) -> int:
        """Return the number of tokens that fit between the special tokens."""
        return max(1, length - len(self.before) - len(self.after))


def frame_of(tokenizer: PreTrainedTokenizerBase) -> Frame:
    """Return the special tokens that a tokenizer adds to a text."""
    found = tokenizer("a", return_special_tokens_mask=True)
    ids, special = list(found["input_ids"]), list(found["special_tokens_mask"])
    if 0 not in special:  # the tokenizer has dropped the text "a"
        return Frame(tuple(ids[:1]), tuple(ids[1:]))
    first, last = special.index(0), len(special) - special[::-1].index(0)
    return Frame(tuple(ids[:first]), tuple(ids[last:]))


def padded(examples: Sequence[Mapping[str, Any]], pad: int) -> dict[str, Tensor]:
    """Pad lists to shape (batch, longest), stack numbers to (batch,), and add `attention_mask`."""
    columns = {name: [torch.tensor(each[name], dtype=torch.long) for each in examples] for name in examples[0]}
    columns["attention_mask"] = [torch.ones_like(ids) for ids in columns["input_ids"]]
    return {
        name: torch.stack(rows) if rows[0].dim() == 0 else pad_sequence(rows, True, PADDING.get(name, pad))
        for name, rows in columns.items()
    }


@dataclass
class WordWindow:
    """A window of consecutive words in a sentence."""

    sentence: int
    firsts: dict[int, int] = field(default_factory=dict)  # word index -> position of its first token in the window
    tokens: list[int] = field(default_factory=list)  # token ids without special tokens


def cut(sentences: Sequence[Sequence[str]], tokenize: Tokenize, room: int) -> Iterator[WordWindow]:
    """Yield windows of at most `room` tokens; truncate longer words, skip words without tokens."""
    tokens_of = cache(tokenize)
    for number, words in enumerate(sentences):
        window = WordWindow(number)
        for place, word in enumerate(words):
            tokens = tokens_of(word)[:room]
            if len(window.tokens) + len(tokens) > room:
                yield window
                window = WordWindow(number)
            if tokens:
                window.firsts[place] = len(window.tokens)
                window.tokens += tokens
        if window.tokens:
            yield window
