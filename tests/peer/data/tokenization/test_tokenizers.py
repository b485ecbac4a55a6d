"""The run's tokenizer: trained or imported, read alike by data path and transformers, refused if unfit."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer, models
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    AlbertConfig,
    AutoTokenizer,
    BertConfig,
    DebertaV2Config,
    ElectraConfig,
    GPT2Config,
    PreTrainedConfig,
    ReformerConfig,
    RobertaConfig,
)

from auth.errors import ConfigError
from peer.config.run import RunConfig
from peer.data.prepare import prepare_tokenizer, training_sample
from peer.data.selection.hashing import uniform
from peer.data.tokenization.special_tokens import SpecialIds
from peer.data.tokenization.tokenizers import check_tokenizer, load_special_ids, load_tokenizer, save_tokenizer
from peer.data.tokenization.training import train_tokenizer
from tests.support.many_scripts import PROSE

BENGALI = [
    "আমার সোনার বাংলা, আমি তোমায় ভালোবাসি। চিরদিন তোমার আকাশ, তোমার বাতাস, আমার প্রাণে বাজায় বাঁশি।",
    "ও মা, ফাগুনে তোর আমের বনে ঘ্রাণে পাগল করে। কৃষ্ণচূড়া, দুঃখ, ঐক্য, ১৯৭১ সালের ২৬ মার্চ।",
] * 20


@pytest.fixture(scope="module")
def bengali(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tokenizer trained on Bengali verse."""
    folder = tmp_path_factory.mktemp("tokenizer")
    run = config(preset="bengali", vocab_size=150)
    save_tokenizer(train_tokenizer(run, BENGALI), run, folder)
    return folder


def config(**tokenizer: object) -> RunConfig:
    """A run with these tokenizer settings."""
    return RunConfig.from_mapping({"tokenizer": tokenizer})


def test_the_vocabulary_is_no_larger_than_wanted(bengali: Path) -> None:
    """The run file's size is the most, special tokens included; two verses do not fill it."""
    assert 5 < load_tokenizer(bengali).get_vocab_size() <= 150


@pytest.mark.parametrize(
    "family", [AlbertConfig, BertConfig, RobertaConfig, ElectraConfig, DebertaV2Config, ReformerConfig, GPT2Config]
)
def test_transformers_gives_the_same_ids_beside_a_model(
    bengali: Path, tmp_path: Path, family: type[PreTrainedConfig]
) -> None:
    """In a checkpoint, whatever the model's family is, the tokenizer is still the plain one; vowel signs are kept."""
    for file in bengali.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    family().save_pretrained(tmp_path)
    auto = AutoTokenizer.from_pretrained(tmp_path)
    ids = auto(BENGALI[1])["input_ids"]
    assert ids == load_tokenizer(bengali).encode(BENGALI[1]).ids
    assert "া" in auto.decode(ids)


def test_transformers_knows_what_the_model_takes(bengali: Path, tmp_path: Path) -> None:
    """Its longest sequence, and segments where the family tells them apart."""
    auto = AutoTokenizer.from_pretrained(bengali)
    assert auto.model_max_length == 512
    assert auto.model_input_names == ["input_ids", "token_type_ids", "attention_mask"]
    prepare_tokenizer(family_config("roberta", path=str(bengali)), tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).model_input_names == ["input_ids", "attention_mask"]


def family_config(architecture: str, **tokenizer: object) -> RunConfig:
    """A run of a family, with the objective that fits it."""
    objective = {"name": "clm" if architecture == "gpt2" else "mlm"}
    sections = {"model": {"architecture": architecture}, "objective": objective, "tokenizer": tokenizer}
    return RunConfig.from_mapping(sections)


def test_a_causal_models_tokenizer_puts_nothing_around_a_text(tmp_path: Path) -> None:
    """A prompt must not end with what ends a text; pairs are one text after the other."""
    run = family_config("gpt2", preset="byte-level", vocab_size=300)
    save_tokenizer(train_tokenizer(run, BENGALI), run, tmp_path)
    auto, ours = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    for text in PROSE:
        assert auto(text)["input_ids"] == ours.encode(text).ids == ours.encode(text, add_special_tokens=False).ids
        assert auto(text, text)["input_ids"] == ours.encode(text, text).ids
    assert auto.eos_token_id == load_special_ids(tmp_path).sep


@pytest.mark.parametrize("with_config", [True, False])
def test_gpt2s_own_tokenizer_can_be_imported_for_a_causal_model(tmp_path: Path, with_config: bool) -> None:
    """It has one special token, and needs no more."""
    given = tmp_path / "given"
    given.mkdir()
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(ByteLevel.alphabet())}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(given / "tokenizer.json"))
    if with_config:
        names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
        (given / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", **names}))
    prepare_tokenizer(family_config("gpt2", path=str(given)), tmp_path / "out")
    assert load_special_ids(tmp_path / "out") == SpecialIds(pad=256, unk=256, cls=256, sep=256, mask=None)
    auto = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert auto(PROSE[0])["input_ids"] == tokenizer.encode(PROSE[0]).ids
    assert auto.eos_token == "<|endoftext|>"
    with pytest.raises(ConfigError, match="no mask token"):
        prepare_tokenizer(family_config("bert", path=str(given)), tmp_path / "other")


@pytest.mark.parametrize("form", ["folder", "file", "gzipped", "folder with a gzipped one"])
def test_a_run_can_name_a_tokenizer(bengali: Path, tmp_path: Path, form: str) -> None:
    """A folder, a `tokenizer.json` or a gzipped one is imported as it is."""
    file = bengali / "tokenizer.json"
    packed = tmp_path / "given" / "tokenizer.json.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(file.read_bytes()))
    path = {"folder": bengali, "file": file, "gzipped": packed}.get(form, packed.parent)
    prepare_tokenizer(config(path=str(path)), tmp_path / "out")
    assert load_tokenizer(tmp_path / "out").get_vocab() == load_tokenizer(bengali).get_vocab()


def test_a_folders_configuration_names_the_special_tokens(tmp_path: Path) -> None:
    """However unusual the names are, they are kept for the data path and for transformers."""
    vocabulary = {token: number for number, token in enumerate(["?", "BEGIN", "END", "HOLE", "[MASK]"])}
    given = {"bos_token": "BEGIN", "eos_token": "END", "unk_token": "?", "mask_token": {"content": "HOLE"}}
    (tmp_path / "given").mkdir()
    Tokenizer(models.WordLevel(vocabulary, unk_token="?")).save(str(tmp_path / "given" / "tokenizer.json"))
    (tmp_path / "given" / "tokenizer_config.json").write_text(json.dumps(given))
    prepare_tokenizer(config(path=str(tmp_path / "given")), tmp_path / "out")
    assert load_special_ids(tmp_path / "out") == SpecialIds(pad=2, unk=0, cls=1, sep=2, mask=3)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").mask_token == "HOLE"


def sentencepiece_model(**options: object) -> bytes:
    """A model with sentencepiece's usual special tokens: `<unk>`, `<s>`, `</s>` and no mask."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*PROSE] * 4), model_writer=written, vocab_size=120, minloglevel=2, **options
    )
    return written.getvalue()


@pytest.mark.parametrize("in_folder", [True, False])
def test_a_sentencepiece_model_gets_what_a_masked_objective_needs(tmp_path: Path, in_folder: bool) -> None:
    """Padding and a mask after its vocabulary, and a frame around texts; its own ids stay what they are."""
    file = tmp_path / "given" / "spiece.model"
    file.parent.mkdir()
    file.write_bytes(sentencepiece_model())
    prepare_tokenizer(config(path=str(file.parent if in_folder else file)), tmp_path / "out")
    assert load_special_ids(tmp_path / "out") == SpecialIds(pad=120, unk=0, cls=1, sep=2, mask=121)
    library = sentencepiece.SentencePieceProcessor(model_proto=file.read_bytes())
    auto = AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in PROSE:
        assert load_tokenizer(tmp_path / "out").encode(text, add_special_tokens=False).ids == library.encode(text)
        assert auto(text)["input_ids"] == [1, *library.encode(text), 2]


def test_text_that_spells_a_piece_of_the_vocabulary_that_is_special_stays_text(tmp_path: Path) -> None:
    """A sentencepiece model knows `<s>` as a piece; the data path cuts it before it is looked up."""
    (tmp_path / "given.model").write_bytes(sentencepiece_model(character_coverage=1.0))
    prepare_tokenizer(config(path=str(tmp_path / "given.model")), tmp_path / "out")
    special = load_special_ids(tmp_path / "out")
    ids = load_tokenizer(tmp_path / "out").encode("a <s> b</s> <mask>", add_special_tokens=False).ids
    assert not {special.cls, special.sep, special.mask_id} & set(ids)


def test_what_a_tokenizer_cuts_off_or_fills_up_is_left_to_packing(bengali: Path, tmp_path: Path) -> None:
    """A published tokenizer may bring a longest text and padding along; the data path reads every text as it is."""
    tokenizer = Tokenizer.from_file(str(bengali / "tokenizer.json"))
    plain = tokenizer.encode(BENGALI[0]).ids
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode(BENGALI[0]).ids == plain


def test_no_tokenizer_is_trained_on_what_is_held_out(tmp_path: Path) -> None:
    """The documents of validation are as new to it as to the model."""
    (tmp_path / "corpus.txt").write_text("\n\n".join(f"document {number}" for number in range(500)))
    sources = [{"kind": "text", "path": str(tmp_path / "corpus.txt")}]
    run = RunConfig.from_mapping({"data": {"sources": sources, "validation": {"share": 0.1}}})
    trained_on = list(training_sample(run))
    assert 400 < len(trained_on) < 480
    assert all(uniform(document, "validation") >= 0.1 for document in trained_on)


def test_single_sentences_are_told_when_a_tokenizer_is_imported(
    bengali: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No text is needed for that; but what is at hand is looked at."""
    text = tmp_path / "corpus.txt"
    data = {"sources": [{"kind": "text", "path": str(text)}]}
    run = RunConfig.from_mapping({"data": data, "tokenizer": {"path": str(bengali)}})
    prepare_tokenizer(run, tmp_path / "without")
    caplog.clear()
    text.write_text("\n\n".join(f"document {number}" for number in range(8)))
    prepare_tokenizer(run, tmp_path / "with")
    assert [message.partition(";")[0] for message in caplog.messages] == ["100 % of 8 documents are one sentence"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "Cannot read the tokenizer .*tokenizer.json: .*No such file"),
        ("tokenizer.json", b"{}", "tokenizer.json is not a tokenizer"),
        ("tokenizer.json.gz", b"{}", "Cannot read .*gzip"),
        ("spiece.model", b"{}", "spiece.model is not a sentencepiece model"),
    ],
)
def test_a_wrong_tokenizer_path_is_one_sentence(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    """A missing file and a file that is something else are told apart."""
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        prepare_tokenizer(config(path=str(path)), tmp_path / "out")


@pytest.mark.parametrize(("content", "message"), [("{", "Cannot read .*tokenizer_config"), ("[]", "a JSON object")])
def test_a_damaged_configuration_is_one_sentence(bengali: Path, tmp_path: Path, content: str, message: str) -> None:
    """The file is named."""
    (tmp_path / "tokenizer.json").write_bytes((bengali / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_special_ids(tmp_path)


FULL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)

GPT2 = SpecialIds(pad=0, unk=0, cls=0, sep=0, mask=None)


def words(*names: str) -> Tokenizer:
    """A WordPiece tokenizer with this vocabulary, or one without a sign for where words begin."""
    vocabulary = {name: index for index, name in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *names])}
    kind = models.WordPiece if names else models.WordLevel
    return Tokenizer(kind(vocabulary, unk_token="[UNK]"))


def run(architecture: str, objective: str, whole_words: bool = False) -> RunConfig:
    """A run of this family."""
    sections = {"model": {"architecture": architecture}, "objective": {"name": objective, "whole_words": whole_words}}
    return RunConfig.from_mapping(sections)


@pytest.mark.parametrize(
    ("architecture", "objective", "special"),
    [
        ("albert", "mlm+sop", FULL),
        ("roberta", "mlm", FULL),
        ("gpt2", "clm", FULL),
        ("gpt2", "clm", GPT2),
        ("bert", "mlm", SpecialIds(pad=3, unk=1, cls=2, sep=3, mask=4)),
    ],
    ids=["albert", "roberta", "gpt2", "gpt2 with its own, a separator", "bert whose separator stands for padding"],
)
def test_nothing_is_asked_for_that_is_not_needed(architecture: str, objective: str, special: SpecialIds) -> None:
    """Nothing is ever padded, and GPT-2 needs nothing but a separator."""
    check_tokenizer(run(architecture, objective), words(), special)


@pytest.mark.parametrize(
    ("special", "missing"),
    [(GPT2, "pad"), (SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=None), "mask")],
)
def test_roberta_needs_padding_and_every_encoder_a_mask(special: SpecialIds, missing: str) -> None:
    """RoBERTa gives padding no position, so a separator cannot stand for it; and what masks needs a mask."""
    with pytest.raises(ConfigError, match=f"has no {missing} token"):
        check_tokenizer(run("roberta", "mlm"), words(), special)


def test_whole_words_need_word_starts() -> None:
    """A tokenizer that hides where words begin is refused, and only where it matters."""
    check_tokenizer(run("bert", "mlm", whole_words=True), words("a", "##b"), FULL)
    check_tokenizer(run("bert", "mlm"), words(), FULL)
    with pytest.raises(ConfigError, match="whole_words"):
        check_tokenizer(run("bert", "mlm", whole_words=True), words(), FULL)
