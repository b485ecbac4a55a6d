"""sentencepiece models as tokenizers: the same ids as sentencepiece's own."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import pytest
import sentencepiece

from auth.errors import ConfigError
from peer.data.tokenization.sentencepiece import convert_sentencepiece
from tests.support.many_scripts import BENGALI, COMPOSED, EMOJI, PROSE, SPACES


@cache
def model(**options: Any) -> bytes:
    """A model that sentencepiece trained on a little text, with its usual normalization."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*PROSE, " ".join(PROSE)] * 4),
        model_writer=written,
        hard_vocab_limit=False,
        minloglevel=2,
        **{"vocab_size": 600, "input_sentence_size": 1000, **options},
    )
    return written.getvalue()


KINDS = [
    {"model_type": "unigram"},
    {"model_type": "bpe", "vocab_size": 320},  # as Reformer's
    {"model_type": "unigram", "byte_fallback": True},
    {"model_type": "bpe", "byte_fallback": True},
    {"model_type": "bpe", "add_dummy_prefix": False, "remove_extra_whitespaces": False},
    {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc_cf"},
    {"model_type": "unigram", "normalization_rule_name": "identity", "split_by_whitespace": False},
]


@pytest.mark.parametrize("options", KINDS, ids=lambda options: "-".join(map(str, options.values())))
def test_ids_are_sentencepieces_own(options: dict[str, Any]) -> None:
    """Unigram and BPE, with and without bytes, whatever they do to spaces; decoded text too."""
    library = sentencepiece.SentencePieceProcessor(model_proto=model(**options))
    tokenizer = convert_sentencepiece(model(**options), "the model")
    for text in (*PROSE, EMOJI, COMPOSED, "a  b ", "Ω unknown ☃ here", ""):
        expected = library.encode(text)
        assert tokenizer.encode(text, add_special_tokens=False).ids == expected
        if library.unk_id() not in expected:
            assert tokenizer.decode(expected) == library.decode(expected)


def test_two_characters_that_make_one_are_composed() -> None:
    """A Bengali vowel sign that was typed in two halves is the same token."""
    tokenizer = convert_sentencepiece(model(model_type="unigram"), "the model")
    halves = BENGALI.replace("\u09cb", "\u09c7\u09be")
    assert halves != BENGALI
    assert tokenizer.encode(halves).ids == tokenizer.encode(BENGALI).ids


def test_odd_white_space_is_space() -> None:
    """Tabs, line ends and wide spaces, as sentencepiece's normalization has it."""
    library = sentencepiece.SentencePieceProcessor(model_proto=model(model_type="unigram"))
    tokenizer = convert_sentencepiece(model(model_type="unigram"), "the model")
    assert tokenizer.encode(SPACES).ids == library.encode(SPACES)


def test_special_tokens_are_special_and_the_users_symbols_are_found_in_text() -> None:
    """What sentencepiece calls control, unknown and user-defined."""
    content = model(model_type="unigram", user_defined_symbols="<br>", control_symbols="<mask>")
    library = sentencepiece.SentencePieceProcessor(model_proto=content)
    tokenizer = convert_sentencepiece(content, "the model")
    assert tokenizer.encode("cat<br>mat").ids == library.encode("cat<br>mat")
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    assert special == {"<unk>", "<s>", "</s>", "<mask>"}


def test_what_cannot_be_converted_is_one_sentence() -> None:
    """Another file, an empty one, and models of whole words or characters."""
    with pytest.raises(ConfigError, match="the file is not a sentencepiece model"):
        convert_sentencepiece(b"something else", "the file")
    with pytest.raises(ConfigError, match="the file is not a sentencepiece model: it has no vocabulary"):
        convert_sentencepiece(b"", "the file")
    with pytest.raises(ConfigError, match="the file is not a Unigram or BPE model"):
        convert_sentencepiece(model(model_type="char"), "the file")
