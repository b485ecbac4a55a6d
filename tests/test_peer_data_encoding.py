"""Documents to token ids: exactly what the tokenizer gives for each sentence, with less work."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Encoding, Regex, Tokenizer, models, normalizers, pre_tokenizers

from peer.data.encoding import Encoder, words_are_independent
from peer.data.sentences import split_sentences
from peer.data.word_memory import WordMemory, encode_words

PROSE = ["The cat sat on the mat. The dog sat by it.", "আমি ভাত খাই। তুমি ভাত খাও।", "One two three. Four five six!"]
PIECES = ["▁", "▁the", "▁c", "at", "▁sat", "▁আমি", "▁ভাত", "খাই", "।", ".", "t", "h", "e", "1", "a", "c", "́"]


def word_tokenizer() -> Tokenizer:
    """A Unigram tokenizer that splits at white space, normalizing as the run's own does."""
    vocabulary = [("<unk>", 0.0), *((piece, -float(number + 1)) for number, piece in enumerate(PIECES))]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="always"), pre_tokenizers.Punctuation()]
    )
    return tokenizer


def phrase_tokenizer() -> Tokenizer:
    """A tokenizer whose tokens reach over spaces."""
    pieces = [("<unk>", 0.0), ("the cat", -1.0), ("sat on", -1.0), *((letter, -9.0) for letter in "acehnostT .")]
    return Tokenizer(models.Unigram(pieces, unk_id=0))


class Counting:
    """A tokenizer that notes how many words it was given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.words = 0

    def encode_batch(self, texts: Sequence[str], **options: Any) -> list[Encoding]:
        """The tokenizer's own, counted."""
        self.words += sum(len(text.split()) for text in texts)
        return self._tokenizer.encode_batch(texts, **options)


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


def test_nothing_gives_an_empty_chunk() -> None:
    """No documents, or none with text, are no error."""
    for documents in ([], ["", "\n"]):
        chunk = Encoder(word_tokenizer(), "en").encode(documents)
        assert (len(chunk.tokens), len(chunk.sentence_ends), len(chunk.document_ends)) == (0, 0, 0)


@given(
    st.lists(st.text(st.sampled_from("the cat. আমি।\n\t\u00a0\u200b\u200c\ufffd\u2581´½ﷺ☃\u0301\r\x07A1"), max_size=60))
)
def test_words_remembered_are_the_tokenizers_own_tokens(documents: list[str]) -> None:
    """Strange spaces, controls and symbols included, the ids are those of the whole sentences."""
    tokenizer = word_tokenizer()
    encoder = Encoder(tokenizer, "en")
    encoder.encode(PROSE)  # ordinary text, by which the encoder learns that words are independent
    assert_encodes_exactly(encoder, tokenizer, documents)


@given(st.lists(st.text(max_size=40), max_size=5))
def test_any_text_at_all_is_encoded_exactly(documents: list[str]) -> None:
    """The same for text from all of Unicode."""
    tokenizer = word_tokenizer()
    encoder = Encoder(tokenizer, "en")
    encoder.encode(PROSE)
    assert_encodes_exactly(encoder, tokenizer, documents)


def test_a_tokenizer_whose_tokens_reach_over_spaces_gets_whole_sentences() -> None:
    """Such a tokenizer is noticed by its tokens and still encoded exactly."""
    tokenizer = phrase_tokenizer()
    assert not words_are_independent(tokenizer, ["the cat sat on"])
    assert_encodes_exactly(Encoder(tokenizer, "en"), tokenizer, ["the cat sat on the cat. Then the cat sat on."] * 2)


def test_a_word_is_tokenized_once() -> None:
    """A text of known words costs the tokenizer nothing."""
    counting = Counting(word_tokenizer())
    memory = WordMemory(counting)  # type: ignore[arg-type]
    tokens, lengths = memory.encode(["the", "cat", "the", "cat", "sat"])
    assert counting.words == 3
    again, _ = memory.encode(["the", "cat", "the", "cat", "sat"])
    assert counting.words == 3
    assert again.tolist() == tokens.tolist()
    assert lengths.sum() == len(tokens)


def test_the_memory_stays_small_and_keeps_what_came_first() -> None:
    """Past its limit it forgets the newer half of its words, and still knows the older ones' tokens."""
    counting = Counting(word_tokenizer())
    memory = WordMemory(counting, max_words=4)  # type: ignore[arg-type]
    first, _ = memory.encode(["the", "cat"])
    memory.encode(["sat", "on", "mat"])
    counting.words = 0
    again, _ = memory.encode(["the", "cat"])
    assert counting.words == 0
    assert again.tolist() == first.tolist()
    memory.encode(["sat"])
    assert counting.words == 1


@pytest.mark.parametrize("count", [1, 31, 32, 33, 100])
def test_words_that_share_a_line_get_their_own_tokens(count: int) -> None:
    """However many words are tokenized together, each has the tokens that it has alone."""
    tokenizer = word_tokenizer()
    words = ["the", "☃", "cat", "a\u200bb", "´", "1a1", "খাই।"] * (count // 7 + 1)
    tokens, lengths = encode_words(tokenizer, words[:count])
    apart = [tokenizer.encode(word, add_special_tokens=False).ids for word in words[:count]]
    assert lengths.tolist() == list(map(len, apart))
    assert np.split(tokens, np.cumsum(lengths)[:-1])[-1].tolist() == apart[-1]
    assert tokens.tolist() == list(chain.from_iterable(apart))
