"""What the benchmark of authorization stands on: the delayed line, and both kinds of calls in turns."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack

import pytest

from benchmarks.authorization import compare, delayed
from tests.support.waiting import PATIENCE_S

SENT = bytes(range(256)) * 2000


def echo_once(listener: socket.socket) -> None:
    """Send back all that the first caller sends."""
    caller, _ = listener.accept()
    with caller:
        while content := caller.recv(65_536):
            caller.sendall(content)


def test_a_delayed_line_loses_nothing() -> None:
    """Everything comes back in order, also what was sent before the first of it had arrived."""
    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=echo_once, args=(listener,), daemon=True).start()
        address = f"/ip4/127.0.0.1/tcp/{listener.getsockname()[1]}/p2p/Qm"
        line = delayed(address, 0.01, stack)
        assert line != address
        with socket.create_connection(("127.0.0.1", int(line.split("/")[4]))) as caller:
            caller.settimeout(PATIENCE_S)
            received = b""
            caller.sendall(SENT)
            caller.shutdown(socket.SHUT_WR)
            while content := caller.recv(65_536):
                received += content
    assert received == SENT


def test_a_call_that_fails_is_no_figure() -> None:
    """Refused calls are quick: they may not count."""
    with pytest.raises(RuntimeError, match="reading: the call failed"):
        compare("reading", {False: lambda: False, True: lambda: True}, 3)
