"""Ring all-reduce over plain TCP: what averaging.py compares with.

Every host sends to the next and hears from the one before: 2 * (n - 1) times V / n values, fp16 on the wire (Patarasuk
and Yuan 2009, "Bandwidth optimal all-reduce algorithms"). Best where links are alike, else as slow as the slowest.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PORT = 7601
CONNECT_TIMEOUT_S = 30.0
TRANSFER_TIMEOUT_S = 600.0

Values = NDArray[np.float32]


def average_in_ring(place: int, addresses: Sequence[str], values: int, port: int = PORT) -> tuple[float, Values]:
    """Average vectors of `values` times the host's place with the others: the seconds it took here, the average."""
    vector = np.full(values, float(place), dtype=np.float32)
    with socket.create_server((addresses[place], port)) as server:
        following = connect(addresses[(place + 1) % len(addresses)], port)
        before, _ = server.accept()
        with following, before:
            for connection in following, before:
                connection.settimeout(TRANSFER_TIMEOUT_S)
            began = time.perf_counter()
            _reduce(vector, place, len(addresses), following, before)
            return time.perf_counter() - began, vector


def _reduce(vector: Values, place: int, hosts: int, following: socket.socket, before: socket.socket) -> None:
    """First every host ends with the sum of one chunk, then the averages go round."""
    chunks = np.array_split(vector, hosts)  # views
    for turn in range(2 * (hosts - 1)):
        summing = turn < hosts - 1
        outgoing, incoming = chunks[(place - turn) % hosts], chunks[(place - turn - 1) % hosts]
        wire = outgoing.astype(np.float16).tobytes()
        sending = threading.Thread(target=following.sendall, args=(wire,))
        sending.start()
        received = np.frombuffer(_receive(before, 2 * len(incoming)), dtype=np.float16)
        sending.join()
        incoming[:] = incoming + received if summing else received
        if turn == hosts - 2:
            incoming /= hosts


def _receive(connection: socket.socket, size_bytes: int) -> bytes:
    buffer = bytearray(size_bytes)
    view, done = memoryview(buffer), 0
    while done < size_bytes:
        count = connection.recv_into(view[done:])
        if not count:
            raise ConnectionError("the host before this one has gone")
        done += count
    return bytes(buffer)


def connect(address: str, port: int) -> socket.socket:
    """Connect to a host whose server may not be up yet."""
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            return socket.create_connection((address, port), timeout=CONNECT_TIMEOUT_S)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
