"""Invitation page addresses, which commands accept in place of join links.

The join link is fetched from the run's public API. A page address has no fingerprint to
authenticate the coordinator, so it must use HTTPS or loopback. The invite code is in the URL
fragment, which is never sent to the server.
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
ANSWER_S = 20.0  # timeout for the connection, and for each chunk of the answer
_CODE = re.compile(r"[0-9A-Za-z -]{10,64}")


def read_link(text: str) -> tuple[JoinLink, str]:
    """Parse a join link, or fetch it for a page address; return the link and the invite code or "".

    Raises `LinkError` if the text is neither, `UnreachableError` if the site does not answer.
    """
    if not text.strip().lower().startswith(("https://", "http://")):
        return JoinLink.parse(text), ""
    site, code = parse_page(text)
    return ask_for_link(site), code


def parse_page(text: str) -> tuple[str, str]:
    """Split a page address into site and invite code. Raises `LinkError` for other addresses."""
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
    """Split an address into its parts; all parts are empty if the address is malformed."""
    try:
        parts = urlsplit(address)
        _ = parts.port  # reading the port validates it
    except ValueError:
        return urlsplit("")
    return parts


def ask_for_link(site: str) -> JoinLink:
    """Fetch a site's join link. Redirects are not followed, because they may leave HTTPS."""
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
