"""Checks by a peer before it trusts a coordinator (certificate, version, run, clock), each with its own error.

The join link's fingerprint is the only trust anchor: the server's certificate is read once and compared with it.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import Sequence

from auth.errors import ClockError, FingerprintError, LinkError, UnreachableError, VersionError
from auth.join_link import JoinLink
from auth.keys import TLS_NAME, certificate_fingerprint
from peer.protocol import MAX_CLOCK_SKEW_S, MAX_VERSION_CHARS, PROTOCOL_VERSION, control_pb2
from peer.protocol.errors import told
from peer.runtime.software import update_command

CONNECT_TIMEOUT_S = 10.0


async def find_coordinator(links: Sequence[JoinLink]) -> tuple[JoinLink, str]:
    """The first of these links, each to one address, where the right coordinator answers, and its certificate (PEM).

    Raises `FingerprintError` where another one answers and the right one does not, and else `UnreachableError`.
    """
    failures: list[UnreachableError | FingerprintError] = []
    for link in links:
        try:
            certificate = await read_certificate(link)
            check_fingerprint(link, certificate)
        except (UnreachableError, FingerprintError) as error:
            failures.append(error)
        else:
            return link, certificate
    strangers = [error for error in failures if isinstance(error, FingerprintError)]
    if strangers or len(failures) == 1:
        raise (strangers or failures)[0]
    raise UnreachableError(" ".join(map(str, failures)))


async def read_certificate(link: JoinLink) -> str:
    """The certificate (PEM) at the link's first address, not trusted yet: the caller compares its fingerprint."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    opening = asyncio.open_connection(link.host, link.port, ssl=context, server_hostname=TLS_NAME)
    try:
        _, writer = await asyncio.wait_for(opening, CONNECT_TIMEOUT_S)
    except asyncio.TimeoutError as error:
        raise UnreachableError(
            f"No answer from {link.address} within {CONNECT_TIMEOUT_S:.0f} s; is the coordinator running?"
        ) from error
    except ssl.SSLError as error:
        raise UnreachableError(f"What answers at {link.address} does not speak TLS; check the link's port.") from error
    except (OSError, UnicodeError) as error:  # the latter: a name that cannot be one
        reason = getattr(error, "strerror", None) or error
        raise UnreachableError(f"Cannot reach the coordinator at {link.address}: {reason}; is it running?") from error
    try:
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.transport.abort()
    return ssl.DER_cert_to_PEM_cert(certificate)


def check_fingerprint(link: JoinLink, certificate: str) -> None:
    """Raise `FingerprintError` unless the certificate (PEM) is the one that the link names."""
    if not hmac.compare_digest(certificate_fingerprint(certificate), link.fingerprint):
        raise FingerprintError(
            f"The coordinator at {link.address} is not the one that the link names: its certificate is another. "
            "Ask the operator for the current link; do not join this one."
        )


def check_version(greeting: control_pb2.ChallengeReply) -> None:
    """Raise `VersionError` unless the coordinator speaks this program's protocol."""
    if greeting.protocol_version != PROTOCOL_VERSION:
        raise VersionError(
            f"The coordinator speaks protocol version {greeting.protocol_version}, this program {PROTOCOL_VERSION}; "
            f"install {_named(greeting.software_version)}"
            + (f": {command}" if (command := update_command(greeting.software_address)) else ".")
        )


def check_run(link: JoinLink, greeting: control_pb2.ChallengeReply) -> None:
    """Raise `LinkError` unless the coordinator serves the link's run."""
    if greeting.run_name != link.run:
        raise LinkError(f"The coordinator's run is `{told(greeting.run_name)}`, but the link says `{link.run}`.")


def check_clock(greeting: control_pb2.ChallengeReply, now: float) -> None:
    """Raise `ClockError` if this machine's clock differs from the coordinator's by more than tokens allow."""
    skew_s = now - greeting.server_time
    if not abs(skew_s) <= MAX_CLOCK_SKEW_S:
        raise ClockError(
            f"This machine's clock is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the coordinator's; "
            f"set it right (at most {MAX_CLOCK_SKEW_S:.0f} s are allowed)."
        )


def _named(software_version: str) -> str:
    """The coordinator's version, if it is one that can be shown."""
    known = software_version.isascii() and software_version.replace(".", "").isalnum()
    return f"manyhands {software_version:.{MAX_VERSION_CHARS}}" if known else "the version that the operator names"
