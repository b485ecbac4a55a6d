"""Which of a peer's addresses accept a connection now, tried before libp2p is told of them.

libp2p dials by QUIC first wherever a peer has it, and over QUIC, of which the p2p daemon handles every small packet
itself, rounds on shaped lines took several times longer than by TCP. So it is for those whom TCP fails.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

CONNECT_TIMEOUT_S = 2.0
MAX_DIALLED = 16
_KEEPER = re.compile(
    r"/(ip4|ip6|dns|dns4|dns6)/[A-Za-z0-9._:%-]{1,253}/(tcp/\d{1,5}|udp/\d{1,5}/quic-v1)/p2p/\w{1,128}"
)


async def answering(maddrs: Sequence[str]) -> tuple[str, ...]:
    """Those whose TCP port accepts a connection now."""
    tried = maddrs[:MAX_DIALLED]
    answers = await asyncio.gather(*map(_answers, tried))
    return tuple(maddr for maddr, answers_now in zip(tried, answers, strict=True) if answers_now)


async def best_ways(maddrs: Sequence[str]) -> tuple[str, ...]:
    """The addresses that answer by TCP; if none does, all: QUIC, or a later try, may succeed."""
    return await answering(maddrs) or tuple(maddrs)


def are_keepers(maddrs: Sequence[str]) -> bool:
    """Whether these can be a keeper's addresses: what the p2p daemon is told is looked at before."""
    return len(maddrs) <= MAX_DIALLED and all(_KEEPER.fullmatch(maddr) is not None for maddr in maddrs)


async def _answers(maddr: str) -> bool:
    parts = maddr.split("/")  # "", "ip4", host, "tcp", port, ...
    if len(parts) < 5 or parts[3] != "tcp" or not parts[4].isdecimal():
        return False
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(parts[2], int(parts[4])), CONNECT_TIMEOUT_S)
    except (OSError, OverflowError, asyncio.TimeoutError):
        return False
    writer.close()
    return True
