"""One-time invite codes, which the operator issues to named people; only hashes are stored."""

from __future__ import annotations

import hashlib
import secrets

# Crockford's base 32 omits I, L, O and U to avoid errors in reading and typing.
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_LOOKALIKES = str.maketrans("ILO", "110")
_GROUPS, _GROUP_LENGTH = 4, 5  # 20 characters of 5 bits = 100 bits, too many to guess
_LABEL = b"manyhands-invite-v1:"


def new_invite_code() -> str:
    """Return a random code such as 7K2QM-0XW9P-C4RTB-3ZJ5D."""
    groups = ("".join(secrets.choice(_ALPHABET) for _ in range(_GROUP_LENGTH)) for _ in range(_GROUPS))
    return "-".join(groups)


def hash_invite_code(code: str) -> bytes:
    """Return a code's 32-byte hash for storage; ignore case, dashes, spaces and look-alikes."""
    return hashlib.sha256(_LABEL + _letters(code).encode()).digest()


def tidy_invite_code(code: str) -> str:
    """Return a typed code as it was issued: groups of letters and digits, separated by dashes."""
    letters = _letters(code)
    return "-".join(letters[start : start + _GROUP_LENGTH] for start in range(0, len(letters), _GROUP_LENGTH))


def _letters(code: str) -> str:
    """Return a code's letters and digits in upper case, with look-alikes replaced."""
    return "".join(character for character in code.upper() if character.isalnum()).translate(_LOOKALIKES)
