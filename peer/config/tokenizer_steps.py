"""The steps of `tokenizer.normalizers` and `tokenizer.pre_tokenizers`: their names, parameters and defaults.

A step is written as its name, or as an object with `name` and parameters. `peer.data.tokenizer_pipelines` builds them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from peer.config.base import Positive, Section

Text = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Behavior = Literal["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]


class SimpleNormalizer(Section):
    """A change of the text that has no parameters."""

    name: Literal["nmt", "nfc", "nfd", "nfkc", "nfkd", "lowercase", "strip-accents"]


class Strip(Section):
    """White space at the text's ends."""

    name: Literal["strip"]
    left: bool = True
    right: bool = True


class Replace(Section):
    """Each match of a pattern becomes `content`."""

    name: Literal["replace"]
    pattern: Text
    content: str = Field(max_length=1000)
    regex: bool = False  # whether the pattern is a regular expression (Oniguruma's)


class Prepend(Section):
    """Something before the text."""

    name: Literal["prepend"]
    prepend: Text


class BertNormalizer(Section):
    """What BERT does: control characters go, white space becomes a space, Chinese characters stand apart."""

    name: Literal["bert"]
    clean_text: bool = True
    handle_chinese_chars: bool = True
    strip_accents: bool = False
    lowercase: bool = False


class SimplePreTokenizer(Section):
    """A way to cut that has no parameters."""

    name: Literal["bert", "whitespace", "whitespace-split", "unicode-scripts"]


class Metaspace(Section):
    """Cut before each space, which becomes a `▁`."""

    name: Literal["metaspace"]
    prepend_scheme: Literal["always", "first", "never"] = "always"
    split: bool = True


class ByteLevel(Section):
    """Every byte becomes a letter of its own alphabet; cut as GPT-2 does if `use_regex`."""

    name: Literal["byte-level"]
    add_prefix_space: bool = False
    use_regex: bool = True


class Digits(Section):
    """Cut digits from the rest, and from each other."""

    name: Literal["digits"]
    individual_digits: bool = True


class Punctuation(Section):
    """Cut at punctuation."""

    name: Literal["punctuation"]
    behavior: Behavior = "isolated"


class Split(Section):
    """Cut at each match of a pattern, or with `invert` at all that is none."""

    name: Literal["split"]
    pattern: Text
    regex: bool = False
    behavior: Behavior = "isolated"
    invert: bool = False


class CharDelimiter(Section):
    """Cut at a character, which is dropped."""

    name: Literal["char-delimiter"]
    delimiter: Annotated[str, StringConstraints(min_length=1, max_length=1)]


class FixedLength(Section):
    """Cut after every `length` characters."""

    name: Literal["fixed-length"]
    length: Positive = 5


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
