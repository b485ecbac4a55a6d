"""The base class of all sections of a run file."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
WholeNumber = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A frozen part of the run file; unknown keys and silent type conversions are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
