"""A tokenizer without a vocabulary: the normalizers, pre-tokenizers and decoder of a run file.

The decoder, which joins tokens to text, is not configured: it depends on how the pre-tokenizers
mark spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.decoders import Decoder
from tokenizers.models import Model
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.processors import PostProcessor

from auth.errors import ConfigError
from peer.config import tokenizer as steps
from peer.config.tokenizer import Tokenizer as TokenizerConfig

# GPT-2's words, except that combining marks (vowel signs, accents) and joiners stay with the
# preceding letter, digit or symbol. GPT-2 cuts at each mark, which splits most words of Indic
# scripts. Text without marks is split as in GPT-2. Patterns that attach punctuation to the next
# word or group digits by threes, as in Llama 3, would hide the starts of words.
UNICODE_WORDS = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}[\p{L}\p{M}\u200c\u200d]*| ?\p{N}[\p{N}\p{M}]*| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
CONTINUED = "##"  # prefix of pieces inside a word, for tokenizers that do not mark spaces
_NORMALIZERS: Mapping[str, Callable[..., Normalizer]] = {
    "nmt": normalizers.Nmt,
    "nfc": normalizers.NFC,
    "nfd": normalizers.NFD,
    "nfkc": normalizers.NFKC,
    "nfkd": normalizers.NFKD,
    "lowercase": normalizers.Lowercase,
    "strip-accents": normalizers.StripAccents,
    "strip": normalizers.Strip,
    "replace": normalizers.Replace,
    "prepend": normalizers.Prepend,
    "bert": normalizers.BertNormalizer,
}
_PRE_TOKENIZERS: Mapping[str, Callable[..., PreTokenizer]] = {
    "bert": pre_tokenizers.BertPreTokenizer,
    "whitespace": pre_tokenizers.Whitespace,
    "whitespace-split": pre_tokenizers.WhitespaceSplit,
    "unicode-scripts": pre_tokenizers.UnicodeScripts,
    "unicode-words": partial(pre_tokenizers.Split, Regex(UNICODE_WORDS), "isolated"),
    "metaspace": pre_tokenizers.Metaspace,
    "byte-level": pre_tokenizers.ByteLevel,
    "digits": pre_tokenizers.Digits,
    "punctuation": pre_tokenizers.Punctuation,
    "split": pre_tokenizers.Split,
    "char-delimiter": pre_tokenizers.CharDelimiterSplit,
    "fixed-length": pre_tokenizers.FixedLength,
}


def build_pipeline(model: Model, config: TokenizerConfig) -> Tokenizer:
    """Build a tokenizer from the model, normalizers and pre-tokenizers. Raises `ConfigError` if invalid."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = build_normalizer(config)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [_PRE_TOKENIZERS[step.name](**_parameters(step)) for step in config.chosen_pre_tokenizers]
    )
    tokenizer.decoder = _decoder(config.chosen_pre_tokenizers, word_pieces=marks_continuation(config))
    return tokenizer


def build_normalizer(config: TokenizerConfig) -> Normalizer | None:
    """Combine the run's normalizers; None if there are none. Raises `ConfigError` if invalid."""
    built = [_NORMALIZERS[step.name](**_parameters(step)) for step in config.chosen_normalizers]
    return normalizers.Sequence(built) if built else None


def frame(tokenizer: Tokenizer, names: Mapping[str, str]) -> PostProcessor:
    """Build BERT's or RoBERTa's template of special tokens, for one text and for two."""
    cls, sep = names["cls"], names["sep"]
    pair = f"{cls} $A {sep} $B:1 {sep}:1" if cls == "[CLS]" else f"{cls} $A {sep} {sep} $B {sep}"
    return processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=pair,
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in (cls, sep)],
    )


def uses_bytes(config: TokenizerConfig) -> bool:
    """Return whether the vocabulary is byte-level."""
    return any(step.name == "byte-level" for step in config.chosen_pre_tokenizers)


def marks_continuation(config: TokenizerConfig) -> bool:
    """Return whether every piece of a word except the first is prefixed with `CONTINUED`."""
    marked_spaces = any(step.name in ("metaspace", "byte-level") for step in config.chosen_pre_tokenizers)
    return config.chosen_algorithm == "wordpiece" or (config.chosen_algorithm == "bpe" and not marked_spaces)


def _parameters(step: steps.Normalizer | steps.PreTokenizer) -> dict[str, Any]:
    """Return a step's parameters as `tokenizers` expects them. Raises `ConfigError` for a bad pattern."""
    given = step.model_dump(exclude={"name"})
    if given.pop("regex", False):
        try:
            given["pattern"] = Regex(given["pattern"])
        except Exception as error:  # the library raises nothing more specific
            message = f"`tokenizer`: {step.name}: {given['pattern']!r} is not a regular expression: {error}."
            raise ConfigError(message) from error
    return given


def _decoder(pipeline: Sequence[steps.PreTokenizer], word_pieces: bool) -> Decoder:
    names = [step.name for step in pipeline]
    if "byte-level" in names:
        joined: Decoder = decoders.ByteLevel()
    elif "metaspace" in names:
        scheme = next(step.prepend_scheme for step in pipeline if isinstance(step, steps.Metaspace))
        joined = decoders.Metaspace(prepend_scheme=scheme)
    elif word_pieces:
        return decoders.WordPiece(prefix=CONTINUED, cleanup=False)
    else:
        joined = decoders.Fuse()
    return decoders.Sequence([decoders.Replace(Regex(f"^{CONTINUED}"), ""), joined]) if word_pieces else joined
