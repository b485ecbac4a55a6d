"""An HTTP client that connects only to public addresses, to protect the local network.

The resolved address is checked when a connection is opened. Private hosts in the run file do not
use this client; the machine's owner has allowed them (`peer.config.trust`). The module is separate
because most runs read only local files and need not import aiohttp.
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
    """Return an HTTP session (as fsspec's `get_client`) restricted to public addresses and proxies."""
    del loop
    proxies = await _proxies()

    def open_socket(info: Any) -> socket.socket:
        family, kind, protocol, _, address = info
        if address[0] not in proxies and not_public(ip_address(address[0].partition("%")[0])):
            raise PermissionError(errno.EACCES, f"the address {address[0]} is not a public address")
        return socket.socket(family, kind, protocol)

    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(socket_factory=open_socket), **kwargs)


async def _proxies() -> frozenset[str]:
    """Return the addresses of the proxies in the environment."""
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
