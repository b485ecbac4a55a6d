"""Encoded examples as tensors: padded to the longest of a batch, with the mask that says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from auth.errors import ConfigError

IGNORED = -100
PADDING = {"labels": IGNORED, "attention_mask": 0, "token_type_ids": 0}


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """What fills short samples; a tokenizer that knows no such token lends its last word for it, under the mask."""
    for name in ("pad_token_id", "eos_token_id", "unk_token_id"):
        found = getattr(tokenizer, name, None)
        if isinstance(found, int):
            return found
    return 0


def mask_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The mask's id; raises `ConfigError` where there is none, as of models that only see what came before."""
    found = getattr(tokenizer, "mask_token_id", None)
    if not isinstance(found, int):
        raise ConfigError("The checkpoint's tokenizer has no mask: fill-mask and bias tasks are for masked models.")
    return found


@dataclass(frozen=True)
class Frame:
    """The special tokens that a tokenizer puts before and after a text."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    def around(self, tokens: Sequence[int]) -> list[int]:
        """The tokens between them."""
        return [*self.before, *tokens, *self.after]

    def room(self, length: int) -> int:
        """How many tokens fit between them."""
        return max(1, length - len(self.before) - len(self.after))


def frame_of(tokenizer: PreTrainedTokenizerBase) -> Frame:
    """As it frames a short text."""
    found = tokenizer("a", return_special_tokens_mask=True)
    ids, special = list(found["input_ids"]), list(found["special_tokens_mask"])
    if 0 not in special:  # nothing is left of that text
        return Frame(tuple(ids[:1]), tuple(ids[1:]))
    first, last = special.index(0), len(special) - special[::-1].index(0)
    return Frame(tuple(ids[:first]), tuple(ids[last:]))


def padded(examples: Sequence[Mapping[str, Any]], pad: int) -> dict[str, torch.Tensor]:
    """Tensors (batch, longest) of lists, and (batch,) of single numbers; `attention_mask` is made."""
    batch: dict[str, torch.Tensor] = {}
    length = max(len(example["input_ids"]) for example in examples)
    for name in examples[0]:
        values = [example[name] for example in examples]
        if isinstance(values[0], int):
            batch[name] = torch.tensor(values)
            continue
        fill = PADDING.get(name, pad)
        batch[name] = torch.tensor([[*value, *[fill] * (length - len(value))] for value in values])
    lengths = torch.tensor([len(example["input_ids"]) for example in examples])
    batch["attention_mask"] = (torch.arange(length)[None, :] < lengths[:, None]).long()
    return batch
