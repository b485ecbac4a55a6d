"""Special tokens by role: their spellings in tokenizers, and their ids for packing and masking.

Every tokenizer must have an end of text (`sep`). GPT-2's tokenizer has only this special token,
`<|endoftext|>`, which replaces the missing ones, as in GPT-2 itself: training has no padding, and a
byte-level vocabulary has no unknown text. Masked objectives also require a mask.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, pre_tokenizers

from auth.errors import ConfigError

# role -> spellings, the most likely first: BERT's, sentencepiece's and RoBERTa's, GPT-2's
SPELLINGS = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>", "<bos>"),
    "sep": ("[SEP]", "</s>", "<eos>", "<|endoftext|>"),
    "mask": ("[MASK]", "<mask>"),
}
# Alternative keys of roles in transformers' configurations.
OTHER_KEYS = {"cls": "bos_token", "sep": "eos_token"}


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the special tokens; missing pad, unk and cls have the id of sep."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int | None  # required by masked objectives only, through `mask_id`

    @property
    def mask_id(self) -> int:
        """The mask's id. Raises `ConfigError` for a tokenizer without a mask."""
        if self.mask is None:
            raise missing_token("mask")
        return self.mask


def special_names(tokenizer: Tokenizer, config: Mapping[str, object] | None = None) -> dict[str, str]:
    """Return the spellings of a tokenizer's special tokens by role.

    The spellings come from `config`, a parsed `tokenizer_config.json`, or else from `SPELLINGS`.
    """
    names = {}
    for role, usual in SPELLINGS.items():
        configured = (_configured_name(config or {}, key) for key in (f"{role}_token", OTHER_KEYS.get(role, "")))
        spellings = [name for name in (*configured, *usual) if name and tokenizer.token_to_id(name) is not None]
        if spellings:
            names[role] = spellings[0]
    return names


def special_ids(tokenizer: Tokenizer, config: Mapping[str, object] | None = None) -> SpecialIds:
    """Return the ids of the `special_names`. Raises `ConfigError` without an end-of-text token."""
    vocabulary = tokenizer.get_vocab()
    ids = {role: vocabulary[name] for role, name in special_names(tokenizer, config).items()}
    if "sep" not in ids:
        raise missing_token("sep")
    sep = ids["sep"]
    return SpecialIds(
        pad=ids.get("pad", sep), unk=ids.get("unk", sep), cls=ids.get("cls", sep), sep=sep, mask=ids.get("mask")
    )


def added_tokens(names: Mapping[str, str]) -> list[AddedToken]:
    """Return the tokens to add; the mask absorbs the preceding space, so it can replace a word."""
    return [AddedToken(name, lstrip=role == "mask", normalized=False, special=True) for role, name in names.items()]


def cut_special_spellings(tokenizer: Tokenizer) -> None:
    """Make the tokenizer encode text that spells a special token, such as "[MASK]", as ordinary text.

    `encode_special_tokens` passes such text to the model, whose vocabulary may contain the text
    as a piece, so the text is also cut in two beforehand.
    """
    tokenizer.encode_special_tokens = True
    leaking = [
        token.content
        for number, token in tokenizer.get_added_tokens_decoder().items()
        if token.special and number in tokenizer.encode(token.content, add_special_tokens=False).ids
    ]
    if not leaking:
        return
    spellings = "|".join(f"{re.escape(text[0])}(?={re.escape(text[1:])})" for text in leaking)
    cut = pre_tokenizers.Split(Regex(spellings), "merged_with_previous")
    before = tokenizer.pre_tokenizer
    tokenizer.pre_tokenizer = cut if before is None else pre_tokenizers.Sequence([before, cut])


def missing_token(role: str) -> ConfigError:
    """Return an error that lists the missing token's possible spellings."""
    spellings = [f"`{name}`" for name in SPELLINGS[role]]
    known = f"{', '.join(spellings[:-1])} nor {spellings[-1]}"
    return ConfigError(f"The run's tokenizer has no {role} token, neither {known}: add one to it.")


def _configured_name(config: Mapping[str, object], key: str) -> str | None:
    """Return the token stored under a key, as a string or as the `content` of an object."""
    value = config.get(key)
    name = value.get("content") if isinstance(value, dict) else value
    return name if isinstance(name, str) else None
