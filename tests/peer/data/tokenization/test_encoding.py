"""Documents to token ids: exactly what the tokenizer gives for each sentence, with less work."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate, chain

import pytest
from hypothesis import given, strategies as st
from tokenizers import Tokenizer

from peer.data.tokenization.encoding import Encoder
from peer.data.tokenization.sentences import split_sentences
from tests.support.many_scripts import ENGLISH
from tests.support.small_tokenizers import (
    PROSE,
    byte_tokenizer,
    marked_space_tokenizer,
    phrase_tokenizer,
    word_tokenizer,
)

KINDS = [word_tokenizer, marked_space_tokenizer, byte_tokenizer, partial(byte_tokenizer, True), phrase_tokenizer]
STRANGE = "the cat. আমি।\n\t\u00a0\u200b\u200c\ufffd\u2581´½ﷺ☃\u0301\r\x07A1"


def by_sentence(tokenizer: Tokenizer, document: str) -> list[list[int]]:
    """The plain way: each sentence by itself, those without tokens left out."""
    ids = [tokenizer.encode(sentence, add_special_tokens=False).ids for sentence in split_sentences(document, "en")]
    return [sentence for sentence in ids if sentence]


def assert_encodes_exactly(encoder: Encoder, tokenizer: Tokenizer, documents: list[str]) -> None:
    """The chunk holds the plain way's tokens, sentences and documents."""
    expected = [sentences for document in documents if (sentences := by_sentence(tokenizer, document))]
    chunk = encoder.encode(documents)
    flat = list(chain.from_iterable(expected))
    assert chunk.tokens.tolist() == list(chain.from_iterable(flat))
    assert chunk.sentence_ends.tolist() == list(accumulate(map(len, flat)))
    assert chunk.document_ends.tolist() == list(accumulate(sum(map(len, document)) for document in expected))


def test_sentences_and_documents_end_where_their_tokens_end() -> None:
    """Ends count tokens; what has no tokens leaves no trace."""
    assert_encodes_exactly(Encoder(word_tokenizer(), "en"), word_tokenizer(), ["", *PROSE, "  \n\n ", PROSE[0]])


def test_a_tokenizer_that_cuts_words_at_vowel_signs_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Once, with the share of the words and the remedy; of text without marks nothing is said."""
    encoder = Encoder(byte_tokenizer(), "bn")
    for _ in range(2):
        encoder.encode(["আমি ভাত খাই, বল।"])
    Encoder(byte_tokenizer(), "en").encode([ENGLISH])
    [record] = caplog.records
    assert "cuts 75 % of words at vowel signs" in record.getMessage()
    assert "the preset `byte-level`" in record.getMessage()


@pytest.mark.parametrize("kind", KINDS)
@given(documents=st.lists(st.one_of(st.text(STRANGE, max_size=60), st.text(max_size=40)), max_size=5))
def test_any_text_at_all_is_encoded_exactly(kind: Callable[[], Tokenizer], documents: list[str]) -> None:
    """Strange spaces, controls and symbols included, the ids are those of whole sentences, words remembered or not."""
    tokenizer = kind()
    encoder = Encoder(tokenizer, "en")
    encoder.encode(PROSE)  # ordinary text, by which the encoder learns how words can be cut
    for _ in range(2):
        assert_encodes_exactly(encoder, tokenizer, documents)


def test_halves_of_characters_do_not_stop_the_encoder() -> None:
    """What JSON can spell and no tokenizer takes is replaced before."""
    assert len(Encoder(word_tokenizer(), "en").encode(["The \ud83d cat."]).tokens)
