"""Who may take a step: majorities of those that took the last one, and the certificates of what they hold."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hivemind.utils.serializer import MSGPackSerializer
from hypothesis import example, given, strategies as st

from auth.keys import DeviceKey
from peer.node.quorum import (
    GROUP_ID_BYTES,
    MOST_PEERS,
    MOST_SIGNATURE_BYTES,
    HeldAverage,
    Quorum,
    Ruling,
    certificate,
    read_average,
    read_certificate,
    ruling,
)
from peer.reduction.attestation import DIGEST_BYTES
from peer.reduction.findings import MAX_ID_CHARS
from tests.support.receipts import key_of

HELD = HeldAverage("run", 2, 7, b"g" * GROUP_ID_BYTES, b"d" * DIGEST_BYTES)
GROUPS = st.frozensets(st.sampled_from("abcdefgh"))
GONE = st.just(frozenset[str]()) | GROUPS


def quorum_of(voters: str, keepers: str = "", gone: str = "") -> Quorum:
    """A quorum of peers with IDs of one letter."""
    return Quorum(frozenset(voters), frozenset(gone), frozenset(keepers))


@pytest.mark.parametrize(
    ("quorum", "deciding", "others"),
    [
        (quorum_of("abc"), ["ab", "bcxyz", "abc"], ["axyz", "c", ""]),
        (quorum_of("abcd"), ["ad", "bcd"], ["bc", "bdxyz"]),
        (quorum_of("abck", "k"), ["kc", "abc"], ["ab", "kxyz"]),
        (quorum_of("abcd", "k"), ["ab", "bcd"], ["bck", "ak"]),
        (quorum_of("abcd", "dc"), ["ca", "abd"], ["ad", "ab"]),
        (quorum_of("a"), ["a", "axyz"], ["xyz", ""]),
        (quorum_of("ab"), ["a", "ab"], ["b"]),
        (quorum_of("ab", "k"), ["ab", "abx"], ["a", "axyz", "ak"]),
        (quorum_of("ak", "k"), ["k", "kx", "ak"], ["a"]),
        (quorum_of("ab", "k", gone="b"), ["ak", "ab"], ["a", "bk"]),
        (quorum_of("", "k"), ["k", "xyzk"], ["xyz", ""]),
        (quorum_of(""), ["xyz", ""], []),
        (quorum_of("abcde", gone="cde"), ["a", "cde"], ["b", "cd", "xyz"]),
        (quorum_of("abcdk", "k", gone="bcd"), ["ak", "kx", "abc"], ["ab", "bc"]),
        (quorum_of("abcde", "k", gone="cde"), ["abk", "abc"], ["ab", "ak", "bk", "k"]),
        (quorum_of("abc", gone="abc"), ["", "x", "ab"], []),
        (quorum_of("abc", "k", gone="abc"), ["k", "ab"], ["a", "x", ""]),
    ],
)
def test_most_of_the_voters_decide(quorum: Quorum, deciding: list[str], others: list[str]) -> None:
    """Of two halves the keeper's or the first's; beside the keeper, or without any, those that are gone do not count.

    Of two voters beside whom no keeper took the step, neither decides alone. If all are gone, the keeper decides by
    itself; without voters and keepers everybody may.
    """
    assert [group for group in [*deciding, *others] if quorum.is_in(group)] == deciding


@given(voters=GROUPS, gone=GONE, keepers=GROUPS, one=GROUPS, other=GROUPS)
def test_two_groups_that_may_take_a_step_share_a_voter(
    voters: frozenset[str], gone: frozenset[str], keepers: frozenset[str], one: frozenset[str], other: frozenset[str]
) -> None:
    """So no step is taken from two averages, if the gone take none.

    Yet of two parts of the voters one goes on, unless the run has a keeper and these are two peers without it.
    """
    quorum, present = Quorum(voters, gone, keepers), voters - gone
    if present and quorum.is_in(one - gone) and quorum.is_in(other - gone):
        assert one & other & present
    if present == voters != frozenset() and (len(voters) != 2 or not keepers or voters & keepers):
        assert quorum.is_in(one) or quorum.is_in(voters - one)


@pytest.mark.parametrize(
    ("voters", "holders", "possible", "expected"),
    [
        ("abc", "ab", "", Ruling.CONFIRMED),
        ("abc", "ab", "abc", Ruling.CONFIRMED),
        ("abc", "a", "ac", Ruling.OPEN),
        ("abcd", "bc", "", Ruling.VOID),
        ("abcd", "bc", "abc", Ruling.OPEN),
    ],
)
def test_an_average_is_confirmed_open_or_void(voters: str, holders: str, possible: str, expected: Ruling) -> None:
    """While any of those that may hold it together could decide, it is not void."""
    assert ruling(quorum_of(voters), holders, possible) is expected


@given(voters=GROUPS, gone=GONE, keepers=GROUPS, holders=GROUPS, unasked=GROUPS, heard=GROUPS)
def test_no_later_word_changes_a_ruling(
    voters: frozenset[str],
    gone: frozenset[str],
    keepers: frozenset[str],
    holders: frozenset[str],
    unasked: frozenset[str],
    heard: frozenset[str],
) -> None:
    """Whichever of those that could not be asked hold the average."""
    quorum, possible = Quorum(voters, gone, keepers), holders | unasked
    later = ruling(quorum, holders | (unasked & heard), possible)
    assert ruling(quorum, holders, possible) in (later, Ruling.OPEN)


@pytest.mark.parametrize(
    "changes", [{"run": "other"}, {"era": 1}, {"step": 8}, {"group_id": b"G" * 20}, {"digest": b"D" * 32}]
)
def test_a_signature_is_of_one_average(key: DeviceKey, changes: dict[str, Any]) -> None:
    """At one place, and by one device; what is no signature is false."""
    signature, public_key = HELD.signature(key.sign), key.public_key.decode()
    assert HELD.is_signed(public_key, signature)
    assert not replace(HELD, **changes).is_signed(public_key, signature)
    assert not HELD.is_signed(key_of("ada").public_key.decode(), signature)
    assert not HELD.is_signed(public_key, signature[:-1])
    assert not HELD.is_signed("no key", signature)


@pytest.mark.parametrize("size", [0, 1, MOST_SIGNATURE_BYTES, MOST_SIGNATURE_BYTES + 1])
def test_a_holding_is_read_as_it_was_sent(size: int) -> None:
    """Of whose era and step the reader knows; one without a signature, or with more than that, is refused."""
    message = HELD.message(bytes(size))
    if 0 < size <= MOST_SIGNATURE_BYTES:
        assert read_average(message, "run", (2, 7), MOST_SIGNATURE_BYTES) == (HELD, bytes(size))
    else:
        with pytest.raises(ValueError, match="names no average"):
            read_average(message, "run", (2, 7), MOST_SIGNATURE_BYTES)


@cache
def signed() -> dict[str, bytes]:
    """The signatures of two holders."""
    return {name: HELD.signature(key_of(name).sign) for name in ("ada", "bob")}


def signers(message: bytes, held: HeldAverage = HELD, known: Collection[str] = ("ada", "bob")) -> frozenset[str]:
    """Who has signed, to a peer that has the tokens of some."""
    return read_certificate(message, held, {name: key_of(name).public_key.decode() for name in known}.get)


def test_a_certificate_shows_who_holds_the_average() -> None:
    """As far as the reader knows them: of a stranger's signature it says nothing, whatever that is."""
    assert signers(certificate(signed())) == {"ada", "bob"}
    assert signers(certificate(signed()), known=["bob"]) == {"bob"}
    assert signers(certificate(signed() | {"bob": b"false"}), known=["ada"]) == {"ada"}
    assert signers(certificate({})) == frozenset()


def test_a_certificate_with_a_false_signature_shows_nothing() -> None:
    """Nor does one of another average: whoever sends it is no honest leader."""
    ada = signed()["ada"]
    for signatures in ({"ada": ada, "bob": ada}, {"ada": ada, "bob": b""}):
        with pytest.raises(ValueError, match="false signature"):
            signers(certificate(signatures))
    for other in (replace(HELD, step=8), replace(HELD, digest=b"D" * DIGEST_BYTES)):
        with pytest.raises(ValueError, match="false signature"):
            signers(certificate(signed()), other)


@pytest.mark.parametrize(
    "content",
    [
        7,
        "words",
        {"Qm1": b""},
        ["Qm1"],
        [["Qm1", b""]],
        ["Qm1", b"", "Qm2"],
        ["Qm1", "signature"],
        [b"Qm1", b""],
        [7, b""],
        ["Q" * (MAX_ID_CHARS + 1), b""],
        ["Qm1", b""] * (MOST_PEERS + 1),
    ],
)
def test_a_malformed_certificate_is_refused(content: object) -> None:
    """Whatever a leader sends."""
    with pytest.raises(ValueError, match="it "):
        signers(MSGPackSerializer.dumps(content))


@given(st.binary(max_size=40))
@example(certificate({"Qm1": b"signature"})[:-1])
@example(certificate({}) + b"more")
def test_what_is_no_message_is_no_certificate(message: bytes) -> None:
    """Nor is a part of one; there is no other error."""
    try:
        assert signers(message, known=()) == frozenset()
    except ValueError as error:
        assert str(error)  # noqa: PT017 - a few bytes may make an empty one


def test_as_many_as_a_group_may_have_sign() -> None:
    """And no ID is too long that a token may name."""
    names = [f"{number:0{MAX_ID_CHARS}}" for number in range(MOST_PEERS)]
    assert signers(certificate(dict.fromkeys(names, b"")), known=()) == frozenset()
