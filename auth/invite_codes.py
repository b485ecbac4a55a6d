"""One-time invite codes: issued by the operator to prove a person's name, and stored as hashes."""

from __future__ import annotations

import hashlib
import secrets

# Crockford's base 32 has no I, L, O or U, so a code can be read aloud and typed without errors.
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_LOOKALIKES = str.maketrans("ILO", "110")
_GROUPS, _GROUP_LENGTH = 4, 5  # 20 characters of 5 bits: 100 bits, so a plain hash cannot be reversed by guessing
_LABEL = b"manyhands-invite-v1:"


def new_invite_code() -> str:
    """Draw a random code such as 7K2QM-0XW9P-C4RTB-3ZJ5D."""
    groups = ("".join(secrets.choice(_ALPHABET) for _ in range(_GROUP_LENGTH)) for _ in range(_GROUPS))
    return "-".join(groups)


def hash_invite_code(code: str) -> bytes:
    """Return the 32 bytes under which a code is stored; case, dashes, blanks and look-alikes do not matter."""
    return hashlib.sha256(_LABEL + _letters(code).encode()).digest()


def tidy_invite_code(code: str) -> str:
    """Return a typed code in the form in which it was issued: letters, digits and dashes only."""
    letters = _letters(code)
    return "-".join(letters[start : start + _GROUP_LENGTH] for start in range(0, len(letters), _GROUP_LENGTH))


def _letters(code: str) -> str:
    """Return a code's letters and digits in capitals, with look-alikes replaced."""
    return "".join(character for character in code.upper() if character.isalnum()).translate(_LOOKALIKES)
