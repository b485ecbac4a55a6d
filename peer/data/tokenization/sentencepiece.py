"""Conversion of sentencepiece models (ALBERT, XLM-R, Reformer) to tokenizers, and their training.

The tokenizer returns sentencepiece's own ids, except that it may choose another of several equally
probable segmentations, as in a row of dots. Unigram models are trained with the sentencepiece
library instead of `tokenizers`' own trainer.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from types import ModuleType
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.decoders import Decoder
from tokenizers.models import Model
from tokenizers.normalizers import Normalizer

from auth.errors import ConfigError
from peer.config.tokenizer import Tokenizer as TokenizerConfig
from peer.data.tokenization.pipelines import build_normalizer, uses_bytes
from peer.data.tokenization.special_tokens import added_tokens
from peer.runtime.software import how_to_add

SPACE = "▁"
UNIGRAM, BPE = 1, 2  # sentencepiece's numbers for its algorithms
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # sentencepiece's numbers for types of pieces
KEPT_SENTENCES = 200_000  # longer texts are sampled, because each character takes about 13 bytes of memory
LONGEST_BYTES = 16_384  # longer sentences are skipped; `split_sentences` leaves hardly any
ROLES = {"pad": "pad", "unk": "unk", "bos": "cls", "eos": "sep"}  # sentencepiece's name of a special token -> our name


def import_sentencepiece() -> ModuleType:
    """Import the sentencepiece library, needed only for such models. Raises `ConfigError` if missing."""
    try:
        import sentencepiece
    except ModuleNotFoundError as error:
        raise ConfigError(f"sentencepiece models need the package `sentencepiece`: {how_to_add('corpus')}.") from error
    return sentencepiece


def convert_sentencepiece(content: bytes, origin: str) -> Tokenizer:
    """Convert a `.model` file to a tokenizer without a template. Raises `ConfigError` if it is unusable."""
    proto = _parse(content, origin)
    if proto.trainer_spec.model_type not in (UNIGRAM, BPE) or proto.trainer_spec.treat_whitespace_as_suffix:
        raise ConfigError(f"{origin} is not a Unigram or BPE model with `{SPACE}` before words: give another one.")
    tokenizer = Tokenizer(_model(proto))
    tokenizer.normalizer = _normalizer(proto.normalizer_spec)
    scheme = _prepend_scheme(proto)
    inner_spaces = any(SPACE in piece.piece[1:] for piece in proto.pieces)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=not inner_spaces)
    tokenizer.decoder = _decoder(proto, scheme)
    tokenizer.add_tokens(list(_added_tokens(proto)))
    return tokenizer


def train_sentencepiece(
    config: TokenizerConfig, names: Mapping[str, str], sentences: Iterable[list[str]], seed: int
) -> Tokenizer:
    """Train a Unigram model on normalized text. Raises `ConfigError` on failure.

    With a byte-level preset, characters outside the vocabulary are encoded as bytes.
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
            hard_vocab_limit=False,  # a text with few words may yield a smaller vocabulary
            normalization_rule_name="identity",  # the run's normalizers have already been applied
            split_digits=True,
            byte_fallback=uses_bytes(config),
            input_sentence_size=KEPT_SENTENCES,
            max_sentence_length=LONGEST_BYTES,
            control_symbols=[name for role, name in names.items() if role not in ROLES.values()],
            minloglevel=2,  # log only errors, which are also raised
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


def _parse(content: bytes, origin: str) -> Any:
    """Parse the model's protobuf message. Raises `ConfigError` if it is invalid."""
    import_sentencepiece()
    from google.protobuf.message import DecodeError
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]  # generated

    proto = ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError as error:
        raise ConfigError(f"{origin} is not a sentencepiece model: {error}.") from error
    if not proto.pieces:
        raise ConfigError(f"{origin} is not a sentencepiece model: it has no vocabulary.")
    return proto


def _model(proto: Any) -> Model:
    trainer = proto.trainer_spec
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    if trainer.model_type == UNIGRAM:
        return models.Unigram(pieces, unk_id=trainer.unk_id, byte_fallback=trainer.byte_fallback)
    return models.BPE(
        {piece: number for number, (piece, _) in enumerate(pieces)},
        list(_merges(proto)),
        unk_token=trainer.unk_piece,
        fuse_unk=True,
        byte_fallback=trainer.byte_fallback,
    )


def _merges(proto: Any) -> Iterator[tuple[str, str]]:
    """Yield a BPE model's merges, best first, which `tokenizers` needs and sentencepiece omits."""
    ids = {piece.piece: number for number, piece in enumerate(proto.pieces)}
    by_score = sorted((piece for piece in proto.pieces if piece.type == NORMAL), key=lambda piece: -piece.score)
    for piece in by_score:
        halves = ((piece.piece[:cut], piece.piece[cut:]) for cut in range(1, len(piece.piece)))
        yield from sorted(
            (pair for pair in halves if pair[0] in ids and pair[1] in ids),
            key=lambda pair: (ids[pair[0]], ids[pair[1]]),
        )


def _normalizer(spec: Any) -> Normalizer:
    steps: list[Normalizer] = []
    if spec.precompiled_charsmap:
        # `tokenizers` looks up single characters and would miss composed pairs, such as Bengali
        # vowels.
        steps += [normalizers.NFC(), normalizers.Precompiled(spec.precompiled_charsmap)]
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    return normalizers.Sequence(steps)


def _prepend_scheme(proto: Any) -> str:
    """Return the scheme for prepending a space; no space is added after a user-defined symbol."""
    if not proto.normalizer_spec.add_dummy_prefix:
        return "never"
    return "first" if any(piece.type == USER_DEFINED for piece in proto.pieces) else "always"


def _decoder(proto: Any, scheme: str) -> Decoder:
    spaces = decoders.Metaspace(prepend_scheme=scheme)
    if not proto.trainer_spec.byte_fallback:
        return spaces
    return decoders.Sequence([decoders.ByteFallback(), spaces])


def _added_tokens(proto: Any) -> Iterator[AddedToken]:
    """Yield the tokens that are matched literally: user-defined symbols and special tokens."""
    for piece in proto.pieces:
        if piece.type in (UNKNOWN, CONTROL, USER_DEFINED):
            yield AddedToken(piece.piece, normalized=False, special=piece.type != USER_DEFINED)


class _Texts(Iterator[str]):
    """Normalized sentences for training; stores the source's error, which sentencepiece hides."""

    def __init__(self, sentences: Iterator[str], normalizer: Normalizer | None) -> None:
        self._sentences, self._normalizer = sentences, normalizer
        self._error: ConfigError | None = None

    def __next__(self) -> str:
        try:
            sentence = next(self._sentences)
        except ConfigError as error:  # raised by the source of the sentences
            self._error = error
            raise
        return sentence if self._normalizer is None else self._normalizer.normalize_str(sentence)

    def why_training_failed(self, error: RuntimeError) -> ConfigError:
        """Return the error of the sentences' source, or else the library's error message."""
        reason = str(error).rpartition("] ")[2].strip().rstrip(".") or "there is no text"
        return self._error or ConfigError(f"Cannot train the tokenizer: {reason}.")
