"""Special tokens by their role: how tokenizers spell them, and which ids packing and masking put in.

Every tokenizer must have an end of text (`sep`). GPT-2's has only that, `<|endoftext|>`, and it serves where the
others are missing, as it does in GPT-2 itself: nothing is padded in training, and a vocabulary of bytes knows every
text. Only a mask cannot be replaced; it is asked for where something is masked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, pre_tokenizers

from auth.errors import ConfigError

# role -> spellings, the likelier first: BERT's, sentencepiece's and RoBERTa's, GPT-2's
SPELLINGS = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>", "<bos>"),
    "sep": ("[SEP]", "</s>", "<eos>", "<|endoftext|>"),
    "mask": ("[MASK]", "<mask>"),
}
# The other name by which transformers' configurations know a role.
OTHER_KEYS = {"cls": "bos_token", "sep": "eos_token"}


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the tokens that are no text; pad, unk and cls are those of sep where the tokenizer has none."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int | None  # only masked objectives need it: `mask_id` asks for it

    @property
    def mask_id(self) -> int:
        """The mask's id; raises `ConfigError` for a tokenizer without a mask."""
        if self.mask is None:
            raise missing_token("mask")
        return self.mask


def special_names(tokenizer: Tokenizer, config: Mapping[str, object] | None = None) -> dict[str, str]:
    """Find a tokenizer's spelling of the special tokens it has: by its configuration, else by their usual names.

    `config` is what a `tokenizer_config.json` holds.
    """
    names = {}
    for role, usual in SPELLINGS.items():
        configured = (_configured_name(config or {}, key) for key in (f"{role}_token", OTHER_KEYS.get(role, "")))
        spellings = [name for name in (*configured, *usual) if name and tokenizer.token_to_id(name) is not None]
        if spellings:
            names[role] = spellings[0]
    return names


def special_ids(tokenizer: Tokenizer, config: Mapping[str, object] | None = None) -> SpecialIds:
    """The special tokens' ids, found as `special_names` finds them; raises `ConfigError` if no token ends a text."""
    vocabulary = tokenizer.get_vocab()
    ids = {role: vocabulary[name] for role, name in special_names(tokenizer, config).items()}
    if "sep" not in ids:
        raise missing_token("sep")
    sep = ids["sep"]
    return SpecialIds(
        pad=ids.get("pad", sep), unk=ids.get("unk", sep), cls=ids.get("cls", sep), sep=sep, mask=ids.get("mask")
    )


def added_tokens(names: Mapping[str, str]) -> list[AddedToken]:
    """Tokens to add; a mask takes the space before it along, so that it can stand for a word of a sentence."""
    return [AddedToken(name, lstrip=role == "mask", normalized=False, special=True) for role, name in names.items()]


def cut_special_spellings(tokenizer: Tokenizer) -> None:
    """See to it that text which spells a special token, such as "[MASK]", is encoded as the text it is.

    With `encode_special_tokens` such text goes to the model, and some models know it as a piece of their vocabulary: so
    it is cut in two beforehand.
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
    """Says which token a tokenizer lacks, and what it could be called."""
    spellings = [f"`{name}`" for name in SPELLINGS[role]]
    known = f"{', '.join(spellings[:-1])} nor {spellings[-1]}"
    return ConfigError(f"The run's tokenizer has no {role} token, neither {known}: add one to it.")


def _configured_name(config: Mapping[str, object], key: str) -> str | None:
    """A configuration gives a token as its text, or as an object with its `content`."""
    value = config.get(key)
    name = value.get("content") if isinstance(value, dict) else value
    return name if isinstance(name, str) else None
