"""Training a tokenizer: every preset and algorithm gives a folder that transformers reads alike, in bounded memory.

Rare words are left out, so that the memory does not grow with the text.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import cache
from itertools import chain, product
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from auth.errors import ConfigError
from peer.config.run import RunConfig
from peer.data.tokenization.encoding import Encoder
from peer.data.tokenization.sentences import split_sentences
from peer.data.tokenization.special_tokens import special_ids
from peer.data.tokenization.tokenizers import load_special_ids, load_tokenizer, save_tokenizer
from peer.data.tokenization.training import RareWordFilter, train_tokenizer
from tests.support.many_scripts import PROSE, TEXTS

PRESETS = ("albert", "bengali", "byte-level", "multilingual-cased")

KINDS = tuple(product(PRESETS, ("unigram", "bpe", "wordpiece", "sentencepiece")))

DOCUMENTS = [*PROSE, " ".join(PROSE)] * 4


def config(**tokenizer: object) -> RunConfig:
    """A run with these tokenizer settings."""
    return RunConfig.from_mapping({"tokenizer": {"vocab_size": 800, **tokenizer}})


@cache
def trained(preset: str, algorithm: str) -> Tokenizer:
    """A small tokenizer for several scripts."""
    return train_tokenizer(config(preset=preset, algorithm=algorithm), iter(DOCUMENTS))


@pytest.mark.parametrize(("preset", "algorithm"), KINDS)
def test_transformers_tokenizes_alike(tmp_path: Path, preset: str, algorithm: str) -> None:
    """Texts and pairs of several scripts, with their special tokens, masks and segments."""
    save_tokenizer(trained(preset, algorithm), config(preset=preset, algorithm=algorithm), tmp_path)
    auto, plain = AutoTokenizer.from_pretrained(tmp_path), Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        assert auto(text)["input_ids"] == plain.encode(text).ids
        pair, expected = auto(text, TEXTS[0]), plain.encode(text, TEXTS[0])
        assert pair["input_ids"] == expected.ids
        assert pair.get("token_type_ids", [0] * len(expected)) == expected.type_ids
    special = load_special_ids(tmp_path)
    assert (auto.pad_token_id, auto.unk_token_id, auto.mask_token_id) == (special.pad, special.unk, special.mask)
    assert (auto.cls_token_id, auto.sep_token_id) == (special.cls, special.sep)
    assert (auto.bos_token_id, auto.eos_token_id) == (special.cls, special.sep)
    expected_ids = [0, 2, 1, 3, 4] if preset == "byte-level" else [2, 3, 0, 1, 4]  # RoBERTa's order, and BERT's
    assert [special.cls, special.sep, special.pad, special.unk, special.mask] == expected_ids


@pytest.mark.parametrize(("preset", "algorithm"), KINDS)
def test_text_that_spells_a_special_token_stays_text(tmp_path: Path, preset: str, algorithm: str) -> None:
    """A document about masked language models puts no mask into the samples, whatever the vocabulary knows."""
    save_tokenizer(trained(preset, algorithm), config(preset=preset, algorithm=algorithm), tmp_path)
    special = load_special_ids(tmp_path)
    forbidden = {special.pad, special.cls, special.sep, special.mask}
    for text in TEXTS:
        assert not forbidden & set(load_tokenizer(tmp_path).encode(text, add_special_tokens=False).ids)


STRANGE = st.sampled_from("the cat. আমি।\n\t\u00a0\u200b\u200c\ufffd\u2581´½ﷺ☃\u0301\r\x07A1 中#<s>")


@pytest.mark.parametrize(("preset", "algorithm"), KINDS)
@given(documents=st.lists(st.one_of(st.text(STRANGE, max_size=60), st.text(max_size=40)), max_size=4))
@settings(max_examples=10)  # of each of the kinds
def test_the_data_path_gives_the_tokenizers_own_ids(preset: str, algorithm: str, documents: list[str]) -> None:
    """Any text at all, words remembered or not."""
    tokenizer = trained(preset, algorithm)
    encoder = Encoder(tokenizer, "en")
    encoder.encode(DOCUMENTS)  # ordinary text, by which the encoder learns how the tokenizer treats words
    sentences = chain.from_iterable(split_sentences(document, "en") for document in documents)
    expected = [tokenizer.encode(sentence, add_special_tokens=False).ids for sentence in sentences]
    assert encoder.encode(documents).tokens.tolist() == list(chain.from_iterable(expected))


@pytest.mark.parametrize("preset", PRESETS)
def test_known_text_comes_back(preset: str) -> None:
    """A vocabulary that holds all of a text's characters loses none of them."""
    tokenizer = trained(preset, "sentencepiece")
    text = "The cat sat on the mat"
    wanted = text if preset in ("byte-level", "multilingual-cased") else text.lower()
    assert tokenizer.decode(tokenizer.encode(text).ids) == wanted


def test_a_vocabulary_of_bytes_knows_every_text() -> None:
    """Whatever the text it was trained on."""
    tokenizer = train_tokenizer(config(preset="byte-level", vocab_size=300), iter(["only this"]))
    tokenizer.encode_special_tokens = True
    unknown = tokenizer.token_to_id("<unk>")
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert unknown not in ids
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(("preset", "algorithm"), KINDS)
def test_a_mask_takes_the_space_before_it_along(preset: str, algorithm: str) -> None:
    """So that a masked word in the middle of a sentence is one token, as it was in training."""
    tokenizer = trained(preset, algorithm)
    mask = "<mask>" if preset == "byte-level" else "[MASK]"
    encoding = tokenizer.encode(f"the {mask} sat")
    covered = [f"the {mask} sat"[start:end] for start, end in encoding.offsets]
    assert special_ids(tokenizer).mask in encoding.ids
    assert " " not in covered


class Document(str):
    """A text whose end can be noticed."""


def test_documents_are_read_as_a_stream() -> None:
    """Only a few of them are there at any time."""
    alive: weakref.WeakSet[Document] = weakref.WeakSet()
    most = 0

    def documents() -> Iterator[str]:
        nonlocal most
        for number in range(3000):
            document = Document(f"The cat number {number} sat on the mat. And so did the dog.")
            alive.add(document)
            most = max(most, len(alive))
            yield document

    for algorithm in ("unigram", "sentencepiece"):
        train_tokenizer(config(algorithm=algorithm, vocab_size=100), documents())
    assert most < 10


@pytest.mark.parametrize("algorithm", ["bpe", "sentencepiece"])
def test_training_again_gives_the_same_tokenizer(algorithm: str) -> None:
    """From the same documents in the same order; the library's other trainers settle ties by chance."""
    run = config(algorithm=algorithm, vocab_size=300)
    assert train_tokenizer(run, iter(DOCUMENTS)).to_str() == train_tokenizer(run, iter(DOCUMENTS)).to_str()


@pytest.mark.parametrize("algorithm", ["unigram", "bpe", "wordpiece", "sentencepiece"])
def test_too_many_characters_for_the_vocabulary_are_one_sentence(algorithm: str) -> None:
    """No larger vocabulary than wanted is made in silence."""
    text = "".join(map(chr, range(0x4E00, 0x4F00)))
    with pytest.raises(ConfigError, match=r"all chars.*vocab_size|vocab_size` \(100\): \d+ are needed|100 vs \d+"):
        train_tokenizer(config(algorithm=algorithm, vocab_size=100), iter([text]))


@pytest.mark.parametrize("algorithm", ["unigram", "sentencepiece"])
def test_no_text_is_one_sentence(algorithm: str) -> None:
    """The operator is sent to the sources."""
    with pytest.raises(ConfigError, match="hold no text to train a tokenizer on"):
        train_tokenizer(config(algorithm=algorithm), iter(["", " \n "]))


@pytest.mark.parametrize("algorithm", ["unigram", "sentencepiece"])
def test_a_sources_error_comes_through(algorithm: str) -> None:
    """The libraries do not hide which source failed, and why."""

    def failing() -> Iterator[str]:
        yield from DOCUMENTS
        raise ConfigError("the source is gone")

    with pytest.raises(ConfigError, match="the source is gone"):
        train_tokenizer(config(algorithm=algorithm), failing())


@given(st.lists(st.text(max_size=80), max_size=5))
def test_a_short_text_passes_as_it_is(texts: list[str]) -> None:
    """White space too; only what follows the last word is no part of one."""
    unlimited = RareWordFilter(free_words=1000)
    assert [unlimited(text) for text in texts] == [text.rstrip() for text in texts]


def test_once_there_are_many_words_a_new_one_has_to_come_again() -> None:
    """Twice after the first `free_words`, four times after as many more; those let through before stay welcome."""
    rare = RareWordFilter(free_words=2)
    assert rare("one two") == "one two"
    assert rare("three one  three three") == " one  three three"
    assert rare("four four") == " four"
    assert [rare("five") for _ in range(5)] == ["", "", "", "five", "five"]
    assert rare("one two three four") == "one two three four"
    assert rare.let_through == 5


def test_few_of_a_million_words_are_let_through() -> None:
    """The number grows with the logarithm of the text's length."""
    rare = RareWordFilter(free_words=1000)
    for start in range(0, 300_000, 1000):
        rare(" ".join(map(str, range(start, start + 1000))))
    assert rare.let_through < 8_000
    frequent = " ".join(f"frequent{number}" for number in range(100))
    for _ in range(200):
        passed = rare(frequent)
    assert passed == frequent


def test_clauses_without_spaces_are_drawn_from_the_whole_text() -> None:
    """None comes twice, so none can prove itself; words beside them stay as welcome as without them."""
    rare = RareWordFilter(free_words=10_000)
    clauses = [f"{number:050}" for number in range(40_000)]
    kept = [clause for clause in clauses if rare(clause)]
    assert kept[:99] == clauses[:99]
    assert 200_000 > sum(map(len, kept)) > 25_000
    assert sum(clause > clauses[30_000] for clause in kept) > 20
    assert rare("a new word") == "a new word"
