"""Small tokenizers, one of each kind that the encoder knows: what they treat apart, and what they do to spaces."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

PROSE = ["The cat sat on the mat. The dog sat by it.", "আমি ভাত খাই। তুমি ভাত খাও।", "One two three. Four five six!"]
PIECES = ["▁", "▁the", "▁c", "at", "▁sat", "▁আমি", "▁ভাত", "খাই", "।", ".", "t", "h", "e", "1", "a", "c", "́"]


def word_tokenizer() -> Tokenizer:
    """A Unigram tokenizer that splits at white space, normalizing as the run's own does."""
    tokenizer = marked_space_tokenizer()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Lowercase()]
    )
    return tokenizer


def marked_space_tokenizer() -> Tokenizer:
    """The same without normalizers: each space of several is a token, and a line end is a character of a word."""
    vocabulary = [("<unk>", 0.0), *((piece, -float(number + 1)) for number, piece in enumerate(PIECES))]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="always"), pre_tokenizers.Punctuation()]
    )
    return tokenizer


def byte_tokenizer(add_prefix_space: bool = False) -> Tokenizer:
    """Byte-level BPE, as GPT-2 and RoBERTa have it: white space belongs to the word behind it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(PROSE, trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    return tokenizer


def phrase_tokenizer() -> Tokenizer:
    """A tokenizer whose tokens reach over spaces."""
    pieces = [("<unk>", 0.0), ("the cat", -1.0), ("sat on", -1.0), *((letter, -9.0) for letter in "acehnostT .")]
    return Tokenizer(models.Unigram(pieces, unk_id=0))
