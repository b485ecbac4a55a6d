"""The join link: what parses, what does not, and what it says then."""

from __future__ import annotations

import pytest

from auth.errors import LinkError
from auth.join_link import Address, JoinLink

FINGERPRINT = "0123456789abcdef" * 4
GOOD = f"manyhands://example.org:7443/demo#sha256={FINGERPRINT}"


@pytest.mark.parametrize("host", ["example.org", "192.0.2.7", "2001:db8::1", "localhost"])
def test_link_survives_printing(host: str) -> None:
    """What `str` prints, `parse` reads back."""
    link = JoinLink(host, 7443, "demo", FINGERPRINT)
    assert JoinLink.parse(str(link)) == link


def test_printed_form_is_the_documented_one() -> None:
    """The format is a contract with people's chats and bookmarks."""
    assert str(JoinLink("example.org", 7443, "demo", FINGERPRINT)) == GOOD
    assert str(JoinLink("2001:db8::1", 7443, "demo", FINGERPRINT).address) == "[2001:db8::1]:7443"


def test_several_addresses_are_tried_in_their_order() -> None:
    """The first one leads; one that stands there twice is tried once."""
    text = GOOD.replace("example.org:7443", "example.org:7443,[2001:db8::1]:7444,192.0.2.7:7443,example.org:7443")
    link = JoinLink.parse(text)
    assert str(link) == text
    assert link.address == Address("example.org", 7443)
    assert [str(each.address) for each in link.each()] == ["example.org:7443", "[2001:db8::1]:7444", "192.0.2.7:7443"]
    assert [JoinLink.parse(str(each)) for each in link.each()] == [*link.each()]


def test_pasted_link_may_have_blanks_and_capitals() -> None:
    """Blanks around a pasted link and capital hex digits do no harm."""
    assert JoinLink.parse(f"  {GOOD.replace(FINGERPRINT, FINGERPRINT.upper())}\n") == JoinLink.parse(GOOD)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "begin with"),
        ("manyhands:example.org", "begin with"),
        (GOOD.replace(":7443", ":7443?x=1"), "host"),
        (GOOD.replace("manyhands", "https"), "begin with"),
        (GOOD.replace("example.org", ""), "host"),
        (GOOD.replace("example.org", "ada@example.org"), "host"),
        (GOOD.replace("example.org", "exa mple"), "host"),
        (GOOD.replace("example.org", "[::1"), "address"),
        (GOOD.replace(":7443", ""), "port"),
        (GOOD.replace(":7443", ":0"), "port"),
        (GOOD.replace(":7443", ":70000"), "address"),
        (GOOD.replace(":7443", ":7443,"), "host"),
        (GOOD.replace(":7443", ":7443,other.example.org"), "port"),
        (GOOD.replace(":7443", ":7443,a b:1"), "host"),
        (GOOD.replace(":7443", ":7443" + ",a:1" * 8), "more than 8 addresses"),
        (GOOD.replace("/demo", ""), "run name"),
        (GOOD.replace("/demo", "/Demo run"), "run name"),
        (GOOD.replace("/demo", "/demo?x=1"), "run name"),
        (GOOD[:-1], "fingerprint"),
        (GOOD.partition("#")[0], "fingerprint"),
        (GOOD.replace("sha256", "sha1"), "fingerprint"),
    ],
)
def test_bad_link_says_what_is_wrong(text: str, problem: str) -> None:
    """Each kind of damage is a LinkError that names the damaged part and the right form."""
    with pytest.raises(LinkError, match=problem) as raised:
        JoinLink.parse(text)
    assert "manyhands://HOST:PORT/RUN#sha256=" in str(raised.value)
