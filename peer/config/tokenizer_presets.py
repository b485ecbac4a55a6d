"""The named ways to treat text, as steps: what `tokenizer.preset` stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from peer.config.tokenizer_steps import (
    BertNormalizer,
    ByteLevel,
    Digits,
    Metaspace,
    Normalizer,
    PreTokenizer,
    Punctuation,
    Replace,
    SimpleNormalizer,
    SimplePreTokenizer,
)

PresetName = Literal["albert", "bengali", "byte-level", "multilingual-cased"]
Algorithm = Literal["unigram", "bpe", "wordpiece", "sentencepiece"]
BERT_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_TOKENS = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}


@dataclass(frozen=True)
class Preset:
    """How text is cleaned and cut before a vocabulary is learnt on it."""

    algorithm: Algorithm
    normalizers: tuple[Normalizer, ...]
    pre_tokenizers: tuple[PreTokenizer, ...]
    special_tokens: Mapping[str, str]  # role -> token, in the order of the ids from 0


NMT = SimpleNormalizer(name="nmt")  # drops control characters, makes all white space spaces
NFKC = SimpleNormalizer(name="nfkc")
ONE_SPACE = Replace(name="replace", pattern=" {2,}", content=" ", regex=True)
LOWERCASE = SimpleNormalizer(name="lowercase")
# Keyboards and old fonts write the danda and the visarga in several ways; as sahajBERT's tokenizer unifies them.
BENGALI_MARKS = (
    Replace(name="replace", pattern="\u09e4", content="।"),  # reserved for a danda in the Bengali block, never assigned
    Replace(name="replace", pattern="\u09e5", content="॥"),
    Replace(name="replace", pattern="|", content="।"),
    Replace(name="replace", pattern="\u09f7", content="।"),  # a currency sign that looks like one
    Replace(name="replace", pattern=r"(?<=[\u0980-\u09ff]):", content="\u0983", regex=True),  # a colon as visarga
)
# Digits one by one and punctuation apart: the vocabulary goes to words, not to numbers and "word,".
WORDS_DIGITS_MARKS = (Metaspace(name="metaspace"), Digits(name="digits"), Punctuation(name="punctuation"))

PRESETS: Mapping[PresetName, Preset] = {
    "albert": Preset("unigram", (NMT, NFKC, ONE_SPACE, LOWERCASE), WORDS_DIGITS_MARKS, BERT_TOKENS),
    "bengali": Preset("unigram", (NMT, NFKC, ONE_SPACE, *BENGALI_MARKS, LOWERCASE), WORDS_DIGITS_MARKS, BERT_TOKENS),
    "byte-level": Preset("bpe", (), (ByteLevel(name="byte-level"),), ROBERTA_TOKENS),
    "multilingual-cased": Preset(
        "wordpiece", (BertNormalizer(name="bert"),), (SimplePreTokenizer(name="bert"),), BERT_TOKENS
    ),
}
