"""The run's tokenizer: trained, imported, and read alike by the data path and by transformers."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models
from transformers import AlbertConfig, AutoTokenizer

from auth.errors import ConfigError
from peer.data.special_tokens import SpecialIds
from peer.data.tokenizers import (
    load_special_ids,
    load_tokenizer,
    prepare_tokenizer,
    train_unigram,
)
from peer.run_config import RunConfig

BENGALI = [
    "আমার সোনার বাংলা, আমি তোমায় ভালোবাসি। চিরদিন তোমার আকাশ, তোমার বাতাস, আমার প্রাণে বাজায় বাঁশি।",
    "ও মা, ফাগুনে তোর আমের বনে ঘ্রাণে পাগল করে। কৃষ্ণচূড়া, দুঃখ, ঐক্য, ১৯৭১ সালের ২৬ মার্চ।",
] * 20


@pytest.fixture(scope="module")
def bengali(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tokenizer trained on Bengali verse."""
    folder = tmp_path_factory.mktemp("tokenizer")
    train_unigram(config(vocab_size=150), BENGALI, folder)
    return folder


def config(**tokenizer: object) -> RunConfig:
    """A run with these tokenizer settings."""
    return RunConfig.from_mapping({"tokenizer": tokenizer})


def test_special_tokens_have_the_first_ids(bengali: Path) -> None:
    """Their ids do not depend on the corpus."""
    assert load_special_ids(bengali) == SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)


def test_the_vocabulary_is_no_larger_than_wanted(bengali: Path) -> None:
    """The run file's size is the most, special tokens included; two verses do not fill it."""
    assert 5 < load_tokenizer(bengali).get_vocab_size() <= 150


def test_transformers_gives_the_same_ids(bengali: Path) -> None:
    """`AutoTokenizer` reads the folder, keeps Bengali vowel signs, and agrees on every id."""
    auto, ours = AutoTokenizer.from_pretrained(bengali), load_tokenizer(bengali)
    for text in BENGALI[:2]:
        assert auto(text)["input_ids"] == ours.encode(text).ids
        assert "া" in auto.decode(auto(text)["input_ids"])


def test_transformers_gives_the_same_ids_beside_a_model(bengali: Path, tmp_path: Path) -> None:
    """In a checkpoint, where the model is an ALBERT, the tokenizer is still the plain one."""
    load_tokenizer(bengali)
    for file in bengali.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    AlbertConfig().save_pretrained(tmp_path)
    auto = AutoTokenizer.from_pretrained(tmp_path)
    assert auto(BENGALI[1])["input_ids"] == load_tokenizer(bengali).encode(BENGALI[1]).ids


def test_transformers_builds_pairs_like_the_data_path(bengali: Path) -> None:
    """[CLS] A [SEP] B [SEP] with segments 0 and 1, for those who use the model later."""
    pair = AutoTokenizer.from_pretrained(bengali)("আমার", "তোমার")
    ids, types = pair["input_ids"], pair["token_type_ids"]
    first_sep = ids.index(3)
    assert (ids[0], ids[-1]) == (2, 3)
    assert types == [0] * (first_sep + 1) + [1] * (len(ids) - first_sep - 1)


def test_text_that_spells_a_special_token_stays_text(bengali: Path) -> None:
    """A document about masked language models puts no mask into the samples."""
    assert not {0, 2, 3, 4} & set(load_tokenizer(bengali).encode("[MASK] [CLS] [PAD]", add_special_tokens=False).ids)


def test_lower_case_is_a_choice_of_the_run(tmp_path: Path) -> None:
    """Without it, capital letters are kept apart."""
    texts = ["Word word WORD and other words"] * 50
    for lowercase in (True, False):
        train_unigram(config(vocab_size=100, lowercase=lowercase), texts, tmp_path)
        tokenizer = load_tokenizer(tmp_path)
        assert (tokenizer.encode("WORD").ids == tokenizer.encode("word").ids) is lowercase


def test_a_run_without_a_tokenizer_trains_one_on_its_documents(tmp_path: Path) -> None:
    """The vocabulary comes from the run's own sources."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(f"{text} {number}" for number, text in enumerate(BENGALI)), encoding="utf-8")
    mapping = {"tokenizer": {"vocab_size": 150}, "data": {"sources": [{"kind": "text", "path": str(corpus)}]}}
    prepare_tokenizer(RunConfig.from_mapping(mapping), tmp_path / "out")
    assert any("ত" in token for token in load_tokenizer(tmp_path / "out").get_vocab())


@pytest.mark.parametrize("form", ["folder", "file", "gzipped"])
def test_a_run_can_name_a_tokenizer(bengali: Path, tmp_path: Path, form: str) -> None:
    """A folder, a `tokenizer.json` or a gzipped one is imported as it is."""
    file = bengali / "tokenizer.json"
    packed = tmp_path / "tokenizer.json.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    path = {"folder": bengali, "file": file, "gzipped": packed}[form]
    prepare_tokenizer(config(path=str(path)), tmp_path / "out")
    assert load_tokenizer(tmp_path / "out").get_vocab() == load_tokenizer(bengali).get_vocab()


def test_a_tokenizer_without_a_mask_cannot_be_imported_for_a_masked_objective(tmp_path: Path) -> None:
    """The operator learns which token is missing, before anything is written."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    given = tmp_path / "tokenizer.json"
    Tokenizer(models.Unigram([(word, 0.0) for word in words], unk_id=1)).save(str(given))
    with pytest.raises(ConfigError, match=r"no mask token, neither `\[MASK\]` nor `<mask>`"):
        prepare_tokenizer(config(path=str(given)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("content", "message"), [(None, "Cannot read"), (b"{}", "is no tokenizer")])
def test_a_wrong_tokenizer_path_is_one_sentence(tmp_path: Path, content: bytes | None, message: str) -> None:
    """A missing file and a file that is something else are told apart."""
    path = tmp_path / "given.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        prepare_tokenizer(config(path=str(path)), tmp_path / "out")
