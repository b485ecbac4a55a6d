"""The join link: everything a volunteer needs to find a run and to know that it is the right one.

    manyhands://HOST:PORT/RUN#sha256=FINGERPRINT

The fingerprint of the coordinator's certificate authenticates the first connection, without a certificate authority.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from auth.errors import LinkError

SCHEME = "manyhands"
_RUN = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_HOST = re.compile(r"[A-Za-z0-9._:%-]{1,253}")
_FRAGMENT = re.compile(r"sha256=([0-9a-fA-F]{64})")
_SHAPE = "manyhands://HOST:PORT/RUN#sha256=FINGERPRINT"


@dataclass(frozen=True)
class JoinLink:
    """A parsed join link; `str()` gives it back."""

    host: str  # a name or an address, IPv6 without brackets
    port: int
    run: str
    fingerprint: str  # SHA-256 of the certificate's DER form, 64 lowercase hex digits

    @classmethod
    def parse(cls, text: str) -> JoinLink:
        """Read a link as a person pasted it; raises `LinkError`, which says what is wrong with it."""
        try:
            parts = urlsplit(text.strip())
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise _bad_link(text, "its address cannot be read") from error
        if parts.scheme != SCHEME:
            raise _bad_link(text, f"it does not begin with {SCHEME}://")
        if not host or not _HOST.fullmatch(host) or parts.username is not None:
            raise _bad_link(text, "its host is missing or malformed")
        if not port:
            raise _bad_link(text, "its port is missing")
        run = parts.path.removeprefix("/").removesuffix("/")
        if not _RUN.fullmatch(run) or parts.query:
            raise _bad_link(text, "its run name is missing or malformed")
        fragment = _FRAGMENT.fullmatch(parts.fragment)
        if fragment is None:
            raise _bad_link(text, "its fingerprint (the part after #, 64 hex digits) is missing or cut off")
        return cls(host, port, run, fragment[1].lower())

    @property
    def address(self) -> str:
        """HOST:PORT, with brackets around an IPv6 address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{SCHEME}://{self.address}/{self.run}#sha256={self.fingerprint}"


def _bad_link(text: str, problem: str) -> LinkError:
    return LinkError(f"{text.strip()!r:.120} is not a join link: {problem}; it should look like {_SHAPE}.")
