"""Connections to the public web only: no source's host, and no redirect, leads into the machine's own network.

Names are looked up when a connection is made, so that is where the address is checked. A host that the run file itself
names as a private one is let through: `peer.config.trust` asked the machine's owner about it before. aiohttp is loaded
here, apart from `peer.network.remote_files`, which most runs use for local files only.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import aiohttp

from peer.config.trust import not_public


async def public_client(loop: Any = None, **kwargs: Any) -> aiohttp.ClientSession:
    """An HTTP session for fsspec (its `get_client`) whose connections end at public addresses, or at a proxy."""
    del loop
    proxies = await _proxies()

    def open_socket(info: Any) -> socket.socket:
        family, kind, protocol, _, address = info
        if address[0] not in proxies and not_public(ip_address(address[0].partition("%")[0])):
            raise PermissionError(errno.EACCES, f"the address {address[0]} is none of the public web")
        return socket.socket(family, kind, protocol)

    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(socket_factory=open_socket), **kwargs)


async def _proxies() -> frozenset[str]:
    """The addresses of the proxies that this machine's environment names."""
    found: set[str] = set()
    for url in getproxies().values():
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.hostname:
            try:
                infos = await asyncio.get_running_loop().getaddrinfo(parts.hostname, None)
            except OSError:
                continue
            found |= {str(info[4][0]) for info in infos}
    return frozenset(found)
