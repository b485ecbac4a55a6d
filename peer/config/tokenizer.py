"""`tokenizer:` in a run file: the run's tokenizer, imported or trained.

`normalizers` and `pre_tokenizers` list steps, each a name, or an object with `name` and parameters.
A preset is a named list of steps (`PRESETS`). `peer.data.tokenization.pipelines` builds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from peer.config.base import Positive, Section

Text = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Behavior = Literal["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
PresetName = Literal["albert", "bengali", "byte-level", "multilingual-cased"]
Algorithm = Literal["unigram", "bpe", "wordpiece", "sentencepiece"]
BERT_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_TOKENS = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
MARKS_SPACES = {"metaspace", "byte-level"}  # pre-tokenizers that mark spaces
DROPS_SPACES = {"bert", "whitespace", "whitespace-split", "char-delimiter"}


class SimpleNormalizer(Section):
    """A normalizer without parameters."""

    name: Literal["nmt", "nfc", "nfd", "nfkc", "nfkd", "lowercase", "strip-accents"]
    """Name of the step; these steps have no parameters."""


class Strip(Section):
    """A normalizer that strips leading and trailing white space."""

    name: Literal["strip"]
    """Strip white space at the ends of the text."""
    left: bool = True
    """Strip white space at the beginning."""
    right: bool = True
    """Strip white space at the end."""


class Replace(Section):
    """A normalizer that replaces each match of a pattern with `content`."""

    name: Literal["replace"]
    """Replace each match of a pattern."""
    pattern: Text
    """Text to search for."""
    content: str = Field(max_length=1000)
    """Replacement for each match."""
    regex: bool = False
    """Interpret `pattern` as a regular expression (Oniguruma)."""


class Prepend(Section):
    """A normalizer that prepends a string to each text."""

    name: Literal["prepend"]
    """Prepend a string to each text."""
    prepend: Text
    """String to prepend."""


class BertNormalizer(Section):
    """BERT's normalizer of control characters, white space, Chinese text, accents and case."""

    name: Literal["bert"]
    """Apply BERT's normalizer."""
    clean_text: bool = True
    """Remove control characters, and replace white space with plain spaces."""
    handle_chinese_chars: bool = True
    """Put a space before and after each Chinese character."""
    strip_accents: bool = False
    """Remove accents."""
    lowercase: bool = False
    """Convert the text to lower case."""


class SimplePreTokenizer(Section):
    """A pre-tokenizer without parameters."""

    name: Literal["bert", "whitespace", "whitespace-split", "unicode-scripts", "unicode-words"]
    """Name of the step; these steps have no parameters."""


class Metaspace(Section):
    """A pre-tokenizer that splits before each space and replaces it with `▁`."""

    name: Literal["metaspace"]
    """Replace each space with `▁`, which begins a word."""
    prepend_scheme: Literal["always", "first", "never"] = "always"
    """When to put `▁` before the first word of the text, too."""
    split: bool = True
    """Split the text before each `▁`."""


class ByteLevel(Section):
    """A pre-tokenizer that maps bytes to printable characters; `use_regex` splits as in GPT-2."""

    name: Literal["byte-level"]
    """Apply GPT-2's step, which maps every byte to a character of a special alphabet."""
    add_prefix_space: bool = False
    """Put a space before the first word of the text."""
    use_regex: bool = True
    """Split the text into words with GPT-2's pattern, which also splits at vowel signs and other combining marks;
    set it to false after `unicode-words`."""


class Digits(Section):
    """A pre-tokenizer that splits numbers from other text, and digits from each other."""

    name: Literal["digits"]
    """Split numbers from other text."""
    individual_digits: bool = True
    """Make each digit a word of its own."""


class Punctuation(Section):
    """A pre-tokenizer that splits text at punctuation."""

    name: Literal["punctuation"]
    """Split the text at punctuation."""
    behavior: Behavior = "isolated"
    """Treatment of the punctuation mark at a split."""


class Split(Section):
    """A pre-tokenizer that splits at each match of a pattern, or with `invert` between matches."""

    name: Literal["split"]
    """Split the text at each match of a pattern."""
    pattern: Text
    """Text to split at."""
    regex: bool = False
    """Interpret `pattern` as a regular expression (Oniguruma)."""
    behavior: Behavior = "isolated"
    """Treatment of the matched text at a split."""
    invert: bool = False
    """Split the text at everything that does not match."""


class CharDelimiter(Section):
    """A pre-tokenizer that splits at a character and drops it."""

    name: Literal["char-delimiter"]
    """Split the text at a character, which is dropped."""
    delimiter: Annotated[str, StringConstraints(min_length=1, max_length=1)]
    """Character to split at."""


class FixedLength(Section):
    """A pre-tokenizer that splits after every `length` characters."""

    name: Literal["fixed-length"]
    """Split the text into pieces of a fixed length."""
    length: Positive = 5
    """Number of characters in a piece."""


def _by_name(step: Any) -> Any:
    return {"name": step} if isinstance(step, str) else step


Normalizer = Annotated[
    Annotated[SimpleNormalizer | Strip | Replace | Prepend | BertNormalizer, Field(discriminator="name")],
    BeforeValidator(_by_name),
]

PreTokenizer = Annotated[
    Annotated[
        SimplePreTokenizer | Metaspace | ByteLevel | Digits | Punctuation | Split | CharDelimiter | FixedLength,
        Field(discriminator="name"),
    ],
    BeforeValidator(_by_name),
]


@dataclass(frozen=True)
class Preset:
    """A preset of steps that clean and split text before a vocabulary is learned."""

    algorithm: Algorithm
    normalizers: tuple[Normalizer, ...]
    pre_tokenizers: tuple[PreTokenizer, ...]
    special_tokens: Mapping[str, str]  # role -> token; ids from 0 in this order


NMT = SimpleNormalizer(name="nmt")  # removes control characters and normalizes white space
NFKC = SimpleNormalizer(name="nfkc")
ONE_SPACE = Replace(name="replace", pattern=" {2,}", content=" ", regex=True)
LOWERCASE = SimpleNormalizer(name="lowercase")
# Unifies the characters used for danda and visarga by keyboards and old fonts, as in sahajBERT.
BENGALI_MARKS = (
    Replace(name="replace", pattern="\u09e4", content="।"),  # an unassigned code point, reserved for a danda
    Replace(name="replace", pattern="\u09e5", content="॥"),
    Replace(name="replace", pattern="|", content="।"),
    Replace(name="replace", pattern="\u09f7", content="।"),  # a currency sign that resembles a danda
    Replace(name="replace", pattern=r"(?<=[\u0980-\u09ff]):", content="\u0983", regex=True),  # a colon as visarga
)
# Separates single digits and punctuation, to keep numbers and "word," out of the vocabulary.
WORDS_DIGITS_MARKS = (Metaspace(name="metaspace"), Digits(name="digits"), Punctuation(name="punctuation"))

PRESETS: Mapping[PresetName, Preset] = {
    "albert": Preset("unigram", (NMT, NFKC, ONE_SPACE, LOWERCASE), WORDS_DIGITS_MARKS, BERT_TOKENS),
    "bengali": Preset("unigram", (NMT, NFKC, ONE_SPACE, *BENGALI_MARKS, LOWERCASE), WORDS_DIGITS_MARKS, BERT_TOKENS),
    "byte-level": Preset(
        "bpe",
        (),
        (SimplePreTokenizer(name="unicode-words"), ByteLevel(name="byte-level", use_regex=False)),
        ROBERTA_TOKENS,
    ),
    "multilingual-cased": Preset(
        "wordpiece", (BertNormalizer(name="bert"),), (SimplePreTokenizer(name="bert"),), BERT_TOKENS
    ),
}


class Tokenizer(Section):
    """The run's tokenizer: imported from `path`, or trained by `coordinator init` from a preset.

    A key that is None has the preset's value.
    """

    path: str | None = None
    """Tokenizer to import: a `tokenizer.json` (optionally gzipped), a `.model` of sentencepiece, or a folder with
    one of these; by default `coordinator init` trains one."""
    preset: PresetName = "albert"
    """Preset that chooses the algorithm, and the steps that clean and split text."""
    algorithm: Algorithm | None = None
    """Algorithm that learns the vocabulary (`sentencepiece`: the Unigram of that library); by default the preset's."""
    vocab_size: int = Field(32_000, ge=100, le=1_000_000)
    """Maximum size of the vocabulary, including special tokens."""
    lowercase: bool | None = None
    """Convert text to lower case; by default the preset's choice."""
    normalizers: tuple[Normalizer, ...] | None = Field(None, max_length=50, strict=False)
    """Steps that clean the text, each a name or an object with `name` and parameters; by default the preset's."""
    pre_tokenizers: tuple[PreTokenizer, ...] | None = Field(None, min_length=1, max_length=50, strict=False)
    """Steps that split the text into words, each a name or an object with `name` and parameters; by default the
    preset's."""
    max_training_documents: Positive = 200_000
    """Maximum number of documents to train the tokenizer on."""

    @model_validator(mode="after")
    def _no_choice_is_lost(self) -> Tokenizer:
        choices = ("algorithm", "lowercase", "normalizers", "pre_tokenizers")
        given = [name for name in choices if getattr(self, name) is not None]
        if self.path is not None and given:
            raise ValueError(
                f"`tokenizer.path` imports a tokenizer as it is: remove `{given[0]}`, or `path` to train one"
            )
        if self.normalizers is not None and self.lowercase is not None:
            raise ValueError(
                "`tokenizer.normalizers` replaces `tokenizer.lowercase`: write `lowercase` as its last step"
            )
        return self

    @model_validator(mode="after")
    def _words_can_be_joined_again(self) -> Tokenizer:
        if self.pre_tokenizers is None or self.path is not None:
            return self
        if self.chosen_algorithm == "sentencepiece":
            raise ValueError("`tokenizer.pre_tokenizers` is not for `sentencepiece`, which cuts by itself: remove it")
        if self.chosen_algorithm == "unigram" and _loses_spaces(self.pre_tokenizers):
            raise ValueError(
                "`tokenizer.pre_tokenizers` drops spaces, and `unigram` does not mark words: add `metaspace`"
            )
        return self

    @property
    def chosen_algorithm(self) -> Algorithm:
        """The configured algorithm, or the preset's."""
        return self.algorithm or PRESETS[self.preset].algorithm

    @property
    def chosen_normalizers(self) -> tuple[Normalizer, ...]:
        """The configured normalizers, or the preset's with the configured lowercasing."""
        if self.normalizers is not None:
            return self.normalizers
        steps = PRESETS[self.preset].normalizers
        if self.lowercase is None:
            return steps
        kept = tuple(step for step in steps if step != LOWERCASE)
        return (*kept, LOWERCASE) if self.lowercase else kept

    @property
    def chosen_pre_tokenizers(self) -> tuple[PreTokenizer, ...]:
        """The configured pre-tokenizers, or the preset's, plus `Metaspace` if Unigram needs it."""
        if self.pre_tokenizers is not None:
            return self.pre_tokenizers
        steps = PRESETS[self.preset].pre_tokenizers
        if self.chosen_algorithm == "unigram" and _loses_spaces(steps):
            return (*steps, Metaspace(name="metaspace"))
        return steps


def _loses_spaces(steps: Sequence[PreTokenizer]) -> bool:
    names = {step.name for step in steps}
    return bool(names & DROPS_SPACES) and not names & MARKS_SPACES
