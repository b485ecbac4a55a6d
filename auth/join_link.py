"""The join link, which a volunteer's machine uses to find and authenticate a run.

    manyhands://HOST:PORT[,HOST:PORT...]/RUN#sha256=FINGERPRINT

The fingerprint of the coordinator's certificate authenticates the first connection without a
certificate authority. Addresses are tried in order, so a link stays valid if the coordinator moves
to another listed address.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import urlsplit

from auth.errors import LinkError

SCHEME = "manyhands"
MAX_ADDRESSES = 8
_RUN = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_HOST = re.compile(r"[A-Za-z0-9._:%-]{1,253}")
_FRAGMENT = re.compile(r"sha256=([0-9a-fA-F]{64})")
_SHAPE = "manyhands://HOST:PORT/RUN#sha256=FINGERPRINT"


class Address(NamedTuple):
    """A host and port of the coordinator; `str()` returns HOST:PORT."""

    host: str  # name or IP address; IPv6 without brackets
    port: int

    @classmethod
    def parse(cls, text: str, default_port: int | None = None) -> Address:
        """Parse HOST:PORT, with brackets around IPv6 addresses. Raises `ValueError` with the reason."""
        try:
            parts = urlsplit(f"//{text}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ValueError("its address cannot be read") from error
        if not host or not _HOST.fullmatch(host) or parts.username is not None or parts.netloc != text:
            raise ValueError("its host is missing or malformed")
        port = default_port if port is None else port
        if not port:
            raise ValueError("its port is missing")
        return cls(host, port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True)
class JoinLink:
    """A parsed join link; `str()` returns the link."""

    host: str  # host of the first address, in the format of `Address.host`
    port: int
    run: str
    fingerprint: str  # SHA-256 of the certificate in DER, 64 lowercase hex digits
    others: tuple[Address, ...] = ()  # alternative addresses, in order of preference

    @classmethod
    def parse(cls, text: str) -> JoinLink:
        """Parse a pasted link. Raises `LinkError` with the reason."""
        scheme, _, rest = text.strip().partition("://")
        if scheme.lower() != SCHEME:
            raise _bad_link(text, f"it does not begin with {SCHEME}://")
        place, _, fragment = rest.partition("#")
        addresses, _, run = place.partition("/")
        pieces = addresses.split(",")  # `urlsplit` rejects lists with an IPv6 address after the first entry
        if len(pieces) > MAX_ADDRESSES:
            raise _bad_link(text, f"it has more than {MAX_ADDRESSES} addresses")
        try:
            first, *others = map(Address.parse, pieces)
        except ValueError as error:
            raise _bad_link(text, str(error)) from error
        if not _RUN.fullmatch(run := run.removesuffix("/")):
            raise _bad_link(text, "its run name is missing or malformed")
        fingerprint = _FRAGMENT.fullmatch(fragment)
        if fingerprint is None:
            raise _bad_link(text, "its fingerprint (the part after #, 64 hex digits) is missing or cut off")
        return cls(*first, run, fingerprint[1].lower(), tuple(others))

    @property
    def address(self) -> Address:
        """The link's first address."""
        return Address(self.host, self.port)

    def each(self) -> tuple[JoinLink, ...]:
        """Return one link per address, in order of preference."""
        addresses = dict.fromkeys((self.address, *self.others))
        return tuple(replace(self, host=host, port=port, others=()) for host, port in addresses)

    def __str__(self) -> str:
        addresses = ",".join(map(str, (self.address, *self.others)))
        return f"{SCHEME}://{addresses}/{self.run}#sha256={self.fingerprint}"


def _bad_link(text: str, problem: str) -> LinkError:
    return LinkError(f"{text.strip()!r:.120} is not a join link: {problem}; it should look like {_SHAPE}.")
