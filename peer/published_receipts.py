"""What a dashboard publishes of receipts, as it arrives over the network or lies in a file: by schema, bounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from auth.errors import RequestError
from auth.receipts import MAX_COUNT, MAX_RECEIPT_CHARS

_Count = Annotated[int, Field(ge=0, le=2**53)]
_Samples = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_Name = Annotated[str, Field(max_length=256)]


class _Published(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Claim(_Published):
    """What a device claims of a step, and what counts of it; None: nobody else has spoken yet."""

    device: _Name  # libp2p identity
    claimed: _Samples
    counted: _Samples | None


class SignedWord(_Published):
    """A receipt: its signed bytes and the signature in base64."""

    device: _Name
    body: Annotated[str, Field(max_length=MAX_RECEIPT_CHARS)]
    signature: Annotated[str, Field(max_length=1024)]


class Step(_Published):
    """One global step."""

    step: _Samples
    claims: tuple[Claim, ...] = Field(strict=False)
    receipts: tuple[SignedWord, ...] = Field(strict=False)


class Device(_Published):
    """Whose a libp2p identity is, and the key of one that signed."""

    member: _Name
    keeper: bool
    public_key: Annotated[str, Field(max_length=2048)] | None


class Page(_Published):
    """One answer of /api/v1/receipts."""

    run: _Name
    era: _Samples
    next: _Samples | None
    steps: tuple[Step, ...] = Field(strict=False)
    devices: Mapping[_Name, Device]


class Contribution(_Published):
    """One row of the leaderboard."""

    member: _Name
    samples: _Count


class Overview(_Published):
    """What matters here of /api/v1/overview."""

    contributions: tuple[Contribution, ...] = Field(strict=False)
    taken_at: float  # Unix seconds


class Authority(_Published):
    """What matters here of /api/v1/authority."""

    key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Published(_Published):
    """Everything, as `manyhands verify --save` keeps it: the leaderboard before and after the pages were read."""

    format: Literal["manyhands-receipts-v1"] = "manyhands-receipts-v1"
    before: Overview
    pages: tuple[Page, ...] = Field(strict=False)
    after: Overview


_AnyPublished = TypeVar("_AnyPublished", bound=_Published)


def parse(kind: type[_AnyPublished], content: bytes, where: str) -> _AnyPublished:
    """Read JSON; raises `RequestError`, which names `where` it came from."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise RequestError(
            f"{where} is nothing that a dashboard with receipts says: {place or 'it'} is not as it must be."
        ) from error
