"""The address of an invitation page, which commands accept in place of a join link.

The run's public API returns the join link for such an address. A join link contains the fingerprint
that authenticates the coordinator; an address does not, so the connection must be trustworthy:
HTTPS or loopback. The invite code is in the URL fragment, which is never sent to the server.
"""

from __future__ import annotations

import json
import re
from urllib.parse import SplitResult, parse_qs, urlsplit

from auth.errors import LinkError, UnreachableError
from auth.join_link import JoinLink
from auth.openid.provider import is_loopback
from peer.network.http import asking, beginning, reaching

PAGE = "/join"
API = "/api/v1/joining"
MAX_ANSWER_BYTES = 256 * 1024
ANSWER_S = 20.0  # to connect, or between two pieces of the answer
_CODE = re.compile(r"[0-9A-Za-z -]{10,64}")


def read_link(text: str) -> tuple[JoinLink, str]:
    """Read a join link or an invitation page's address; return the link, and the invite code or "".

    Raises `LinkError` if the text leads to no run, and `UnreachableError` if no site answers.
    """
    if not text.strip().lower().startswith(("https://", "http://")):
        return JoinLink.parse(text), ""
    site, code = parse_page(text)
    return ask_for_link(site), code


def parse_page(text: str) -> tuple[str, str]:
    """Split a pasted page address into the site and the invite code; raises `LinkError`."""
    address, _, fragment = text.strip().partition("#")
    parts = _split(address)
    host, path = parts.hostname, parts.path.rstrip("/")
    if not host or "@" in parts.netloc or not path.endswith(PAGE) or not re.fullmatch(r"[!-~]+", address):
        raise LinkError(
            f"{address!r:.120} is neither a join link nor the address of a run's page, which looks like https://HOST/join."
        )
    if parts.scheme == "http" and not is_loopback(host):
        raise LinkError(
            f"{address:.120} comes without encryption, so anybody between could name another run: give the join link "
            "that the page shows (manyhands://...), or the page's https:// address."
        )
    code = parse_qs(fragment).get("invite", [""])[0].strip()
    if fragment and not _CODE.fullmatch(code):
        raise LinkError("The invite code behind the # of the page's address is damaged: copy the whole address again.")
    return f"{parts.scheme}://{parts.netloc}{path.removesuffix(PAGE)}", code


def _split(address: str) -> SplitResult:
    """Split an address into its parts, all empty if it is malformed."""
    try:
        parts = urlsplit(address)
        _ = parts.port  # reading the port validates it
    except ValueError:
        return urlsplit("")
    return parts


def ask_for_link(site: str) -> JoinLink:
    """Ask a run's site for its join link; redirects are not followed, as they might leave HTTPS."""
    url = f"{site}{API}"
    with reaching(url), asking("GET", url, timeout_s=ANSWER_S) as answer:
        status = answer.status_code
        content = beginning(answer, MAX_ANSWER_BYTES)
    if status == 429 or status >= 500:
        raise UnreachableError(f"{url} answers {status}: try again in a minute.")
    try:
        if status != 200:
            raise ValueError(f"it answers {status}")
        return JoinLink.parse(json.loads(content)["join_link"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, LinkError) as error:
        raise LinkError(
            f"{site}{PAGE} is not the page of a manyhands run: {url} names no join link. Check the address."
        ) from error
