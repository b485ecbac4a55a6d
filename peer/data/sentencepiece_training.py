"""Trains a Unigram with the sentencepiece library in place of `tokenizers`' own trainer."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from tokenizers import Tokenizer, normalizers
from tokenizers.normalizers import Normalizer

from auth.errors import ConfigError
from peer.config.tokenizer import Tokenizer as TokenizerConfig
from peer.data.sentencepiece_models import convert_sentencepiece, import_sentencepiece
from peer.data.special_tokens import added_tokens
from peer.data.tokenizer_pipelines import build_normalizer, uses_bytes

KEPT_SENTENCES = 200_000  # of a longer text so many are drawn at random: each character costs about 13 bytes
LONGEST_BYTES = 16_384  # a longer sentence is skipped; `split_sentences` hardly leaves one
ROLES = {"pad": "pad", "unk": "unk", "bos": "cls", "eos": "sep"}  # its word for a role -> ours


def train_sentencepiece(
    config: TokenizerConfig, names: Mapping[str, str], sentences: Iterable[list[str]], seed: int
) -> Tokenizer:
    """A Unigram of text that the run's normalizers have cleaned; raises `ConfigError`.

    Where the preset is one of bytes, what the vocabulary lacks is spelled in bytes.
    """
    library = import_sentencepiece()
    normalizer = build_normalizer(config)
    texts = _Texts(chain.from_iterable(sentences), normalizer)
    roles = list(names)
    written = io.BytesIO()
    library.set_random_generator_seed(seed)
    try:
        library.SentencePieceTrainer.train(
            sentence_iterator=texts,
            model_writer=written,
            vocab_size=config.vocab_size,
            hard_vocab_limit=False,  # a text with few words gives a smaller vocabulary
            normalization_rule_name="identity",  # the run's normalizers have done it
            split_digits=True,
            byte_fallback=uses_bytes(config),
            input_sentence_size=KEPT_SENTENCES,
            max_sentence_length=LONGEST_BYTES,
            control_symbols=[name for role, name in names.items() if role not in ROLES.values()],
            minloglevel=2,  # errors, which come as exceptions too
            **{f"{theirs}_id": roles.index(ours) for theirs, ours in ROLES.items()},
            **{f"{theirs}_piece": names[ours] for theirs, ours in ROLES.items()},
        )
    except RuntimeError as error:
        raise texts.why_training_failed(error) from error
    tokenizer = convert_sentencepiece(written.getvalue(), "the trained model")
    tokenizer.add_special_tokens(added_tokens(names))
    if normalizer is not None:
        tokenizer.normalizer = normalizers.Sequence([normalizer, tokenizer.normalizer])
    return tokenizer


class _Texts(Iterator[str]):
    """Cleaned sentences for the library, which turns an exception of theirs into one of its own."""

    def __init__(self, sentences: Iterator[str], normalizer: Normalizer | None) -> None:
        self._sentences, self._normalizer = sentences, normalizer
        self._error: ConfigError | None = None

    def __next__(self) -> str:
        try:
            sentence = next(self._sentences)
        except ConfigError as error:  # a source's
            self._error = error
            raise
        return sentence if self._normalizer is None else self._normalizer.normalize_str(sentence)

    def why_training_failed(self, error: RuntimeError) -> ConfigError:
        """The source's error, or the library's without the place in its own code."""
        reason = str(error).rpartition("] ")[2].strip().rstrip(".") or "there is no text"
        return self._error or ConfigError(f"Cannot train the tokenizer: {reason}.")
