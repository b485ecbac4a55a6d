"""An HTTP client that connects to public addresses only, so that none leads to the local network.

Names are resolved when a connection is opened, and the address is checked then. Private hosts in
the run file do not use this client; `peer.config.trust` has asked the machine's owner about them.
The module is separate because most runs read only local files and need not import aiohttp.
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
    """Return an HTTP session, as fsspec's `get_client`, that connects only to public addresses and proxies."""
    del loop
    proxies = await _proxies()

    def open_socket(info: Any) -> socket.socket:
        family, kind, protocol, _, address = info
        if address[0] not in proxies and not_public(ip_address(address[0].partition("%")[0])):
            raise PermissionError(errno.EACCES, f"the address {address[0]} is none of the public web")
        return socket.socket(family, kind, protocol)

    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(socket_factory=open_socket), **kwargs)


async def _proxies() -> frozenset[str]:
    """Return the addresses of the proxies in this machine's environment."""
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
