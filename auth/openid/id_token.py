"""Validation of ID tokens: signature, issuer, audience, login and times (OpenID Connect Core 1.0, section 3.1.3.7)."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import dataclass
from typing import Any

from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import BadSignatureError, ClaimError, ExpiredTokenError, JoseError, SecurityWarning
from joserfc.jwk import Key
from joserfc.util import urlsafe_b64decode

from auth.errors import IdTokenError
from auth.openid.metadata import ALGORITHMS, fitting_keys

MAX_ID_TOKEN_CHARS = 32_768
MAX_SUBJECT_CHARS = 255
MAX_CLOCK_SKEW_S = 60


@dataclass(frozen=True)
class Expected:
    """The expected contents of one login's ID token."""

    title: str  # the provider's, for messages
    issuer: str
    audience: str  # the coordinator's client id
    nonce: str
    nonce_required: bool  # False: may be missing, but never another
    since: float  # Unix seconds: when the login began; what was issued before belongs to another


@dataclass(frozen=True)
class Header:
    """The header of an ID token on its own signature, before anything is checked."""

    algorithm: str
    key_id: str | None


def read_header(text: str) -> Header:
    """Read an ID token's header. Raises `IdTokenError` if it is no token, or not signed by an asymmetric key."""
    if len(text) > MAX_ID_TOKEN_CHARS or text.count(".") != 2:
        raise IdTokenError(f"The ID token is none: it has {len(text)} characters and {text.count('.')} dots.")
    try:
        header = json.loads(urlsafe_b64decode(text.partition(".")[0].encode("ascii")))
        algorithm, key_id = header["alg"], header.get("kid")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise IdTokenError("The ID token's header cannot be read.") from error
    if algorithm not in ALGORITHMS:
        raise IdTokenError(f"The ID token is signed by {algorithm!r:.20}, which proves nothing.")
    if key_id is not None and not isinstance(key_id, str):
        raise IdTokenError("The ID token's key id is no text.")
    return Header(algorithm, key_id)


def verify_id_token(
    text: str, keys: tuple[Key, ...], expected: Expected, now: float, access_token: str | None = None
) -> dict[str, Any]:
    """Check an ID token, and return its claims. Raises `IdTokenError` if anything in it is wrong.

    `access_token` came with the ID token: where the ID token names a hash, it must be this one's.
    """
    header = read_header(text)
    token = _verify_signature(text, fitting_keys(keys, header.key_id, header.algorithm), header, expected.title)
    _check_claims(token, expected, now, access_token)
    return token.claims


def _verify_signature(text: str, keys: list[Key], header: Header, title: str) -> jwt.Token:
    for key in keys:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SecurityWarning)  # that EdDSA has a newer name
                return jwt.decode(text, key, algorithms=[header.algorithm])
        except BadSignatureError:
            continue
        except (JoseError, ValueError, TypeError, RecursionError) as error:
            raise IdTokenError(f"The ID token cannot be read ({error}).") from error
    raise IdTokenError(f"The ID token is not signed by a key of {title}.")


def _check_claims(token: jwt.Token, expected: Expected, now: float, access_token: str | None) -> None:
    options: dict[str, dict[str, Any]] = {
        "iss": {"essential": True, "value": expected.issuer},
        "aud": {"essential": True, "value": expected.audience},
        "sub": {"essential": True},
        "exp": {"essential": True},
        "iat": {"essential": True},
    }
    claims = token.claims
    parameters = {"client_id": expected.audience, "access_token": access_token}
    if expected.nonce_required or "nonce" in claims:
        parameters["nonce"] = expected.nonce
    try:
        CodeIDToken(claims, token.header, options, parameters).validate(now=math.floor(now), leeway=MAX_CLOCK_SKEW_S)
    except ExpiredTokenError as error:
        raise IdTokenError(f"The ID token of {expected.title} has expired: check this machine's clock.") from error
    except ClaimError as error:
        raise IdTokenError(
            f"The ID token of {expected.title} is not for this login: its claim {error.claim!r} is missing or another."
        ) from error
    except (JoseError, ValueError, TypeError, AttributeError) as error:
        raise IdTokenError(f"The ID token of {expected.title} cannot be read ({error}).") from error
    if claims["iat"] < expected.since - MAX_CLOCK_SKEW_S:
        raise IdTokenError(f"The ID token of {expected.title} was issued before this login began.")
    if not 1 <= len(claims["sub"]) <= MAX_SUBJECT_CHARS:
        raise IdTokenError(f"The ID token of {expected.title} names a subject of {len(claims['sub'])} characters.")
