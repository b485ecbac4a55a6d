"""A cursor brings back the key of a row, and nothing that is no cursor is taken for one."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, strategies as st

from auth.errors import RequestError
from coordinator.web.http.paging import cursor_of, key_of


@given(st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=40))
def test_a_cursor_is_its_key(moment: float, name: str) -> None:
    """Whatever the row is ordered by."""
    assert key_of(cursor_of((moment, name)), (float, str)) == (moment, name)


def test_the_first_page_has_none() -> None:
    """Nobody needs one to begin."""
    assert key_of("", (int,)) is None


@pytest.mark.parametrize("text", ["x", "é", "{}", "[1]", "[1,2,3]", '["a",2]', "[true,2]", "[" * 200])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    """Neither other text, nor another list's cursor."""
    encoded = base64.urlsafe_b64encode(text.encode()).decode()
    for cursor in (text, encoded):
        with pytest.raises(RequestError, match="no page's `next`"):
            key_of(cursor, (int, int))
