"""A bound on how deeply hivemind's messages may be nested.

hivemind writes a tuple as a message within a message, and its reader calls itself for each of them without end: ten
kilobytes of tuples in tuples overflow the C stack, and the process dies of it. So one member's record could have ended
every node that looked at it.
"""

from __future__ import annotations

import threading
from typing import Any

from hivemind.utils.serializer import MSGPackSerializer

MAX_NESTING = 16  # what hivemind writes by itself has three levels
_reading = threading.local()
_decode: Any = MSGPackSerializer._decode_ext_types


def bound_nesting() -> None:
    """From now on, in this process and its forks, hivemind's reader raises `ValueError` for what is nested deeper."""
    MSGPackSerializer._decode_ext_types = _decode_bounded


def _decode_bounded(type_code: int, data: bytes) -> Any:
    depth = getattr(_reading, "depth", 0)
    if depth >= MAX_NESTING:
        raise ValueError(f"a message is nested more than {MAX_NESTING} levels deep")
    _reading.depth = depth + 1
    try:
        return _decode(type_code, data)
    finally:
        _reading.depth = depth
