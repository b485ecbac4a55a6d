"""The base class of the sections of run files and settings, and descriptions of validation errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_after_validator_function

UNKNOWN_KEY = "unknown_key"


@dataclass(frozen=True)
class WrittenAs:
    """A validator for text that must fully match `pattern`; errors quote `words`, not `pattern`."""

    pattern: str
    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        allowed = re.compile(self.pattern)

        def check(text: str) -> str:
            if allowed.fullmatch(text) is None:
                raise PydanticCustomError("written_otherwise", "must be {words}", {"words": self.words})
            return text

        return no_info_after_validator_function(check, handler(source))


Positive = Annotated[int, Field(gt=0)]
WholeNumber = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
ShortName = Annotated[
    str,
    WrittenAs(
        r"[a-z0-9][a-z0-9-]{0,39}",
        "at most 40 lower-case letters, digits and hyphens, the first a letter or a digit",
    ),
]
Sha256 = Annotated[str, WrittenAs(r"[0-9a-f]{64}", "a SHA-256 digest: 64 digits and letters from a to f")]


class Section(BaseModel):
    """A frozen part of a file; unknown keys and silent type conversions are errors.

    The docstring below a field documents its key; the guide's reference is generated from it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    removed_keys: ClassVar[frozenset[str]] = frozenset()  # keys of older versions, which files may still have

    @model_validator(mode="before")
    @classmethod
    def _know_keys(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        content = {key: value for key, value in content.items() if key not in cls.removed_keys}
        for key in content:
            if key not in cls.model_fields:
                alike = get_close_matches(str(key)[:80], cls.model_fields, n=1)
                remedy = f"the nearest is `{alike[0]}`" if alike else "remove it or check its spelling"
                raise PydanticCustomError(
                    UNKNOWN_KEY, "`{key}` is not a known key; {remedy}", {"key": str(key), "remedy": remedy}
                )
        return content


def first_mistake(error: ValidationError, *, secret: bool = False) -> str:
    """Return the first mistake: key, value (unless `secret`) and remedy, without a full stop."""
    first = error.errors()[0]
    unknown = [first["ctx"]["key"]] if first["type"] == UNKNOWN_KEY else []
    key = ".".join(f"{part!s:.80}" for part in (*first["loc"], *unknown)) or "the file"  # keys may be very long
    if unknown:
        return f"`{key}` is not a known key; {first['ctx']['remedy']}"
    if first["type"] == "extra_forbidden":  # raised only by models other than `Section`
        return f"`{key}` is not a known key; remove it or check its spelling"
    if first["type"] == "value_error":
        message = first["msg"].removeprefix("Value error, ")
        return f"`{key}`: {message}" if first["loc"] else message
    value = "" if secret else f" ({_shown(first['input'])})"
    return f"`{key}`{value}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except ValueError:  # Python refuses to print very large integers
        return "a number that is too long to be shown"
