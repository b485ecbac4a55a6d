"""What all fuzzing has in common: how many inputs, and how a valid message is spoilt.

`make test` tries a bounded number, always the same; `make fuzz` sets MANYHANDS_FUZZ_EXAMPLES and draws new ones.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings, strategies as st

VARIABLE = "MANYHANDS_FUZZ_EXAMPLES"
# Numbers at which readers break: signs, widths, and what is no number.
NASTY_NUMBERS = (0, 1, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 10**400)
NASTY_FLOATS = (0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 5e-324)
_EDITS = ("flip", "insert", "delete", "repeat", "cut", "swap")


def inputs(bounded: int, *, each: int = 1) -> settings:
    """`bounded` examples, or as many as give the wanted number of inputs where an example holds `each`."""
    wanted = -(-int(os.environ.get(VARIABLE, "0")) // each)
    return settings(
        max_examples=max(bounded, wanted),
        derandomize=not wanted,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@st.composite
def spoilt(draw: st.DrawFn, content: bytes) -> bytes:
    """`content` after a few edits, such as lines and malice make."""
    data = bytearray(content)
    for _ in range(draw(st.integers(0, 6))):
        edit, at = draw(st.sampled_from(_EDITS)), draw(st.integers(0, len(data)))
        length = draw(st.sampled_from((1, 2, 4, 16)))
        if edit == "flip":
            data[at : at + 1] = bytes(byte ^ 1 << draw(st.integers(0, 7)) for byte in data[at : at + 1])
        elif edit == "insert":
            data[at:at] = draw(st.binary(max_size=16))
        elif edit == "delete":
            del data[at : at + length]
        elif edit == "repeat":
            data[at:at] = data[at : at + length] * draw(st.integers(1, 50))
        elif edit == "cut":
            del data[at:]
        else:
            data[at : at + length] = data[at : at + length][::-1]
    return bytes(data)


def spoilt_text(content: str) -> st.SearchStrategy[str]:
    """The same of text: what is not UTF-8 any more becomes lone surrogates, as a careless reader lets them through."""
    return spoilt(content.encode()).map(lambda data: data.decode("utf-8", errors="surrogateescape"))


ANY_TEXT = st.text(st.characters(codec=None, categories=None), max_size=40)  # surrogates included
NUMBERS = st.sampled_from(NASTY_NUMBERS) | st.sampled_from(NASTY_FLOATS) | st.integers() | st.floats()
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=12,
)


def tuples_in_tuples(depth: int) -> bytes:
    """hivemind's code of a tuple, each in another: its reader calls itself for each."""
    content = b"\xc0"
    for _ in range(depth):
        inner = b"\x91" + content
        content = b"\xc9" + len(inner).to_bytes(4, "big") + b"\x40" + inner
    return content
