"""Special tokens by their role: whatever a tokenizer calls them, packing and masking find them."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models

from auth.errors import ConfigError
from peer.data.tokenization.special_tokens import SpecialIds, special_ids, special_names


def tokenizer_of(*tokens: str) -> Tokenizer:
    """A tokenizer whose vocabulary is these tokens, numbered from 0."""
    return Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token=tokens[0]))


def test_berts_and_robertas_spellings_are_known() -> None:
    """Wherever they stand in the vocabulary, and mixed: sahajBERT pads with `<pad>` and masks with `[MASK]`."""
    assert special_ids(tokenizer_of("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")) == SpecialIds(0, 1, 2, 3, 4)
    assert special_ids(tokenizer_of("a", "<s>", "<pad>", "</s>", "<unk>", "<mask>")) == SpecialIds(2, 4, 1, 3, 5)
    mixed = tokenizer_of("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
    assert special_names(mixed)["pad"] == "<pad>"
    assert special_ids(mixed) == SpecialIds(0, 1, 2, 3, 4)


def test_what_ends_a_text_stands_in_for_what_gpt2_lacks() -> None:
    """One token is enough, as long as nothing is masked."""
    special = special_ids(tokenizer_of("a", "b", "<|endoftext|>"))
    assert special == SpecialIds(pad=2, unk=2, cls=2, sep=2, mask=None)
    with pytest.raises(ConfigError, match=r"no mask token, neither `\[MASK\]` nor `<mask>`"):
        _ = special.mask_id


def test_a_configuration_may_give_any_names() -> None:
    """As text or as an object, by BERT's keys or by GPT's; a name that is no token is passed over."""
    odd = tokenizer_of("BEGIN", "END", "HOLE", "[CLS]")
    config = {"cls_token": "missing", "bos_token": {"content": "BEGIN"}, "eos_token": "END", "mask_token": "HOLE"}
    assert special_names(odd, config) == {"cls": "BEGIN", "sep": "END", "mask": "HOLE"}


def test_a_tokenizer_that_cannot_end_a_text_is_refused() -> None:
    """The message names the role and the usual spellings."""
    with pytest.raises(ConfigError, match=r"no sep token, neither `\[SEP\]`.*nor `<\|endoftext\|>`: add one"):
        special_ids(tokenizer_of("a", "<mask>"))
