"""Invite codes: hard to guess, easy to type."""

from __future__ import annotations

import re

from auth.invite_codes import hash_invite_code, new_invite_code, tidy_invite_code


def test_codes_differ_and_are_long_enough() -> None:
    """A code has 20 characters of 5 bits, none of them easily confused."""
    codes = {new_invite_code() for _ in range(100)}
    assert len(codes) == 100
    assert all(re.fullmatch(r"([0-9A-HJKMNP-TV-Z]{5}-){3}[0-9A-HJKMNP-TV-Z]{5}", code) for code in codes)


def test_typing_makes_no_difference() -> None:
    """Case, dashes, blanks and look-alike letters lead to the same hash."""
    code = "7K2QM-01W9P-C4RTB-3ZJ5D"
    typed = ("7k2qm-01w9p-c4rtb-3zj5d", "7K2QM01W9PC4RTB3ZJ5D", " 7K2QM OIW9P C4RTB 3ZJ5D\n", "7K2QM-oLW9P-C4RTB-3ZJ5D")
    assert {hash_invite_code(text) for text in typed} == {hash_invite_code(code)}


def test_a_code_is_written_as_it_was_issued() -> None:
    """Whatever stands between its letters and digits, a shell's characters too, is left out."""
    assert tidy_invite_code(" 7k2qm OIW9P $(C4RTB);3ZJ5D\n") == "7K2QM-01W9P-C4RTB-3ZJ5D"


def test_another_code_has_another_hash() -> None:
    """One changed character is another code, and the hash is 32 bytes."""
    assert hash_invite_code("7K2QM") != hash_invite_code("7K2QN")
    assert len(hash_invite_code("")) == 32
