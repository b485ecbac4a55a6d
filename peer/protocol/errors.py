"""Conversion between our errors and gRPC status codes, for coordinators and peers.

An error is sent as a gRPC status, with its message as details and its `code` as trailing metadata.
The peer then raises the same class of error as the coordinator.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator

import grpc

from auth.errors import (
    ExpiredTokenError,
    LoginDeniedError,
    ManyhandsError,
    NotAllowedError,
    NotInvitedError,
    ProviderError,
    RequestError,
    RevokedError,
    StorageError,
    TokenError,
    UnreachableError,
    VersionError,
)

ERROR_KEY = "manyhands-error"

# An error's nearest base class determines the status.
_STATUS: dict[type[ManyhandsError], grpc.StatusCode] = {
    ExpiredTokenError: grpc.StatusCode.UNAUTHENTICATED,
    TokenError: grpc.StatusCode.UNAUTHENTICATED,
    LoginDeniedError: grpc.StatusCode.PERMISSION_DENIED,
    NotAllowedError: grpc.StatusCode.PERMISSION_DENIED,
    NotInvitedError: grpc.StatusCode.PERMISSION_DENIED,
    ProviderError: grpc.StatusCode.UNAVAILABLE,
    RevokedError: grpc.StatusCode.PERMISSION_DENIED,
    RequestError: grpc.StatusCode.INVALID_ARGUMENT,
    StorageError: grpc.StatusCode.INTERNAL,
    UnreachableError: grpc.StatusCode.UNAVAILABLE,
    VersionError: grpc.StatusCode.FAILED_PRECONDITION,
    ManyhandsError: grpc.StatusCode.FAILED_PRECONDITION,
}

# Status codes set by gRPC itself, without an error code from the coordinator.
_BY_STATUS: dict[grpc.StatusCode, tuple[type[ManyhandsError], str]] = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: (RequestError, "The coordinator refused the request's size or number"),
    grpc.StatusCode.UNIMPLEMENTED: (VersionError, "The coordinator does not know this request; update manyhands"),
}


def status_of(error: ManyhandsError) -> grpc.StatusCode:
    """Return the gRPC status of an error."""
    return next(_STATUS[family] for family in type(error).__mro__ if family in _STATUS)


def metadata_of(error: ManyhandsError) -> tuple[tuple[str, str], ...]:
    """Return trailing metadata with the error's code, from which the peer finds the error class."""
    return ((ERROR_KEY, error.code),)


def error_from_rpc(error: grpc.aio.AioRpcError) -> ManyhandsError:
    """Return the coordinator's error; if it sent none, return an error for the gRPC status."""
    details = told(error.details() or "")
    known = {family.code: family for family in _families(ManyhandsError)}
    named = known.get(_named_code(error.trailing_metadata() or ()))
    if named is not None:
        return named(details)
    family, text = _BY_STATUS.get(error.code(), (UnreachableError, "The coordinator does not answer"))
    return family(f"{text} ({error.code().name.lower()}: {details}).")


def _named_code(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    return next((str(value) for key, value in metadata if key == ERROR_KEY), "")


def _families(root: type[ManyhandsError]) -> Iterator[type[ManyhandsError]]:
    yield root
    for child in root.__subclasses__():
        yield from _families(child)


def told(text: str) -> str:
    """Replace control characters in network text with spaces, for safe display in terminals."""
    return "".join(" " if unicodedata.category(char) == "Cc" else char for char in text)
