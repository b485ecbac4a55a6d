"""The same traffic as a round of averaging, over plain TCP with nothing computed: what the links and TCP allow at best.

averaging.py compares with it, because the headers, the acknowledgements and the losses of several connections on one
slow link cost a share of its rate that no averaging can win back.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence

from benchmarks.ring import CONNECT_TIMEOUT_S, TRANSFER_TIMEOUT_S, connect

PORT = 7602
CHUNK_BYTES = 65_536


def exchange(place: int, addresses: Sequence[str], outgoing_bytes: Sequence[int], port: int = PORT) -> float:
    """Send every other host so many bytes while they send theirs; the seconds until all of both is through."""
    senders = len(addresses) - 1
    with socket.create_server((addresses[place], port), backlog=senders) as server:
        began = time.perf_counter()
        hearing = threading.Thread(target=_hear_all, args=(server, senders))
        hearing.start()
        sending = [
            threading.Thread(target=_send, args=(address, port, size))
            for other, (address, size) in enumerate(zip(addresses, outgoing_bytes, strict=True))
            if other != place
        ]
        for thread in sending:
            thread.start()
        for thread in (*sending, hearing):
            thread.join()
        return time.perf_counter() - began


def _hear_all(server: socket.socket, senders: int) -> None:
    server.settimeout(CONNECT_TIMEOUT_S)
    connections = [server.accept()[0] for _ in range(senders)]
    threads = [threading.Thread(target=_hear, args=(connection,)) for connection in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _hear(connection: socket.socket) -> None:
    """Receive until the sender has sent all, and tell it so."""
    with connection:
        connection.settimeout(TRANSFER_TIMEOUT_S)
        while connection.recv(CHUNK_BYTES):
            pass
        connection.sendall(b".")


def _send(address: str, port: int, size_bytes: int) -> None:
    with connect(address, port) as connection:
        connection.settimeout(TRANSFER_TIMEOUT_S)
        for _ in range(size_bytes // CHUNK_BYTES):
            connection.sendall(bytes(CHUNK_BYTES))
        connection.sendall(bytes(size_bytes % CHUNK_BYTES))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
