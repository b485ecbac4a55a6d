"""A provider's public keys: what of its key set may verify an ID token at all."""

from __future__ import annotations

import warnings
from typing import Any

from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import JWKRegistry, Key, RSAKey

from auth.errors import ProviderError

# Asymmetric ones only: with HS256 anybody who knows the client's secret, or takes a public key for one, could sign.
ALGORITHMS_OF: dict[str, tuple[str, ...]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA", "Ed25519"),
}
ALGORITHMS = tuple(algorithm for algorithms in ALGORITHMS_OF.values() for algorithm in algorithms)
MAX_KEYS = 64
LEAST_RSA_BITS = 2048


def parse_keys(title: str, key_set: dict[str, Any]) -> tuple[Key, ...]:
    """The usable keys of a JSON Web Key Set; those that are not understood are passed over (RFC 7517, section 5)."""
    entries = key_set.get("keys")
    if not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise ProviderError(f"{title} publishes no list of up to {MAX_KEYS} keys.")
    return tuple(key for entry in entries if (key := _parse_key(entry)) is not None)


def _parse_key(entry: Any) -> Key | None:
    if not isinstance(entry, dict) or entry.get("kty") not in ALGORITHMS_OF or entry.get("use", "sig") != "sig":
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)  # of short keys: the next lines drop them
            key = JWKRegistry.import_key(entry)
            short = isinstance(key, RSAKey) and key.public_key.key_size < LEAST_RSA_BITS
    except (JoseError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return None if short else key


def fitting_keys(keys: tuple[Key, ...], key_id: str | None, algorithm: str) -> list[Key]:
    """The keys that may have made a signature by `algorithm`; without a key id, each of the right kind."""
    return [
        key
        for key in keys
        if algorithm in ALGORITHMS_OF[key.key_type]
        and (key_id is None or key.kid == key_id)
        and key.get("alg") in (None, algorithm)
    ]
