"""Which peers may take a step together, so that no step is taken from two averages.

A group may take the next step if more than half of the peers that took the last step together, the
voters, are in it, and if more than half of them hold the round's average. Any two majorities of the
voters have a peer in common, so no other group can take the same step. This is dynamic voting, with
a casting vote for the keeper (S. Jajodia and D. Mutchler, "Dynamic voting algorithms for
maintaining the consistency of a replicated database", ACM Transactions on Database Systems 15,
1990). Voters that have left, or that nobody has seen for the lifetime of a record, do not count.
Of two voters that count, neither goes on without the other: a keeper believes no single peer.

The holders sign what they hold. The signatures of a majority are the step's certificate, so nobody
has to trust the leader that collects them (`peer.averaging.meetings`). The step is taken once the
leader has sent them. It declares an average void that too few hold, unless absent voters may know more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from enum import Enum

from hivemind.utils.serializer import MSGPackSerializer

from auth.keys import verify_signature
from peer.node.scalars import read_scalars, write_scalars
from peer.reduction.attestation import DIGEST_BYTES
from peer.reduction.findings import MAX_ID_CHARS

GROUP_ID_BYTES = 20  # the size of hivemind's group IDs
MOST_SIGNATURE_BYTES = 512  # of an RSA key of 4096 bits
MOST_PEERS = 4096  # of a group
ALL_HOLD_S = 2.0  # longest wait of a leader that holds its average until all do, once most of its group do
LOST_S = 60.0  # longest time until the transport notices that a peer is lost
MOST_REMEMBERED = 1000
CONFIRMED, VOID = b"k", b"v"  # a leader's words for its ruling begin with this
Verify = Callable[[bytes, bytes, bytes], bool]  # (public key, content, signature) -> whether it is valid


class Ruling(Enum):
    """A leader's ruling on an average, from the voters that hold it."""

    CONFIRMED = "confirmed"  # most of them hold it: it is the step's average
    OPEN = "open"  # those that cannot be asked decide
    VOID = "void"  # most of them do not hold it, and another group may average


@dataclass(frozen=True)
class Quorum:
    """The peers that decide on a step."""

    voters: frozenset[str] = frozenset()  # peer IDs
    gone: frozenset[str] = frozenset()  # voters that nobody has seen for a time; they do not count beside the keeper
    keepers: frozenset[str] = frozenset()

    @property
    def present(self) -> frozenset[str]:
        """The voters that are not gone."""
        return self.voters - self.gone

    def is_in(self, peers: Collection[str]) -> bool:
        """Return whether these peers may decide; if all voters are gone, the keeper does, or everybody without one."""
        if self._are_most(peers, self.voters):
            return True
        has_keeper = not (self.keepers and self.keepers.isdisjoint(peers))
        return has_keeper and (not self.present or self._are_most(peers, self.present))

    def _are_most(self, peers: Collection[str], voters: frozenset[str]) -> bool:
        """Return whether these peers are most of the voters; of two halves, the keeper's or the first by ID counts.

        If the halves are single peers and the run has a keeper, only the keeper's counts.
        """
        may_cast = voters & self.keepers or (voters if len(voters) > 2 or not self.keepers else frozenset[str]())
        twice = 2 * len(voters & set(peers))
        return twice > len(voters) or (twice == len(voters) and bool(may_cast) and min(may_cast) in peers)


def ruling(quorum: Quorum, holders: Collection[str], possible: Collection[str] = ()) -> Ruling:
    """Return the ruling on the average of `holders`; `possible`: the peers that may confirm it elsewhere, or later."""
    if quorum.is_in(holders):
        return Ruling.CONFIRMED
    return Ruling.OPEN if quorum.is_in(possible) else Ruling.VOID


@dataclass(frozen=True)
class HeldAverage:
    """A round's average, as its holders sign that they hold it."""

    run: str
    era: int
    step: int  # global step after which the group averaged
    group_id: bytes  # determined by the group's peers and what each has declared
    digest: bytes  # of all reducers' attestations

    @property
    def position(self) -> tuple[int, int]:
        """The era and the step, as in declarations."""
        return self.era, self.step

    def signature(self, sign: Callable[[bytes], bytes]) -> bytes:
        """Sign that this peer holds this average."""
        return sign(self._content)

    def message(self, proof: bytes) -> bytes:
        """Return the message that a peer holds this average (proof: its signature), or that it is confirmed."""
        return self.group_id + self.digest + proof

    def is_signed(self, public_key: str, signature: bytes, verify: Verify = verify_signature) -> bool:
        """Return whether the owner of this key (OpenSSH) has signed that it holds this average."""
        return verify(public_key.encode(), self._content, signature)

    @property
    def _content(self) -> bytes:
        said = ["manyhands-average-v1", self.run, self.era, self.step, self.group_id, self.digest]
        content: bytes = MSGPackSerializer.dumps(said)
        return content


def read_average(
    message: bytes, run: str, position: tuple[int, int], most_bytes: float = math.inf
) -> tuple[HeldAverage, bytes]:
    """Read the average after `position` (era, step) that a message names, and its proof of at most `most_bytes`.

    Raises `ValueError` if the message is malformed. The proof is not verified.
    """
    proof_at = GROUP_ID_BYTES + DIGEST_BYTES
    if not proof_at < len(message) <= proof_at + most_bytes:
        raise ValueError("it names no average")
    return HeldAverage(run, *position, message[:GROUP_ID_BYTES], message[GROUP_ID_BYTES:proof_at]), message[proof_at:]


def certificate(signatures: Mapping[str, bytes]) -> bytes:
    """Return the message with the holders' signatures, by peer ID."""
    return write_scalars(itertools.chain(*signatures.items()))


def read_certificate(
    message: bytes, held: HeldAverage, key_of: Callable[[str], str | None], verify: Verify = verify_signature
) -> frozenset[str]:
    """Return the peers that have signed that they hold this average; `key_of`: peer ID -> its key (OpenSSH).

    Raises `ValueError` if the message is malformed, or a signature is false.
    """
    values = read_scalars(message, 2 * MOST_PEERS)
    signers = set[str]()
    for entry in itertools.zip_longest(values[::2], values[1::2]):
        match entry:
            case str(peer), bytes(signature) if len(peer) <= MAX_ID_CHARS and peer not in signers:
                key = key_of(peer)
                if key is not None and not held.is_signed(key, signature, verify):
                    raise ValueError("it has a certificate with a false signature")
                signers |= set() if key is None else {peer}  # this peer may miss the token of an honest one
            case _:
                raise ValueError("it has no certificate")
    return frozenset(signers)


@dataclass(eq=False)
class GroupRound:
    """The round of a group."""

    group_id: bytes
    peers: set[str]
    ends_at: float = math.inf  # time by which it has ended for all its peers


class KnownAverages:
    """The averages of a step that one peer knows: the one that it holds, and those on which it rules as a leader."""

    def __init__(self, own: str, clock: Callable[[], float]) -> None:
        self._own, self._clock = own, clock
        self.quorum = Quorum()
        self.held: HeldAverage | None = None  # what this peer holds until there is a ruling
        self.signature, self._held_at = b"", -math.inf  # with the time since which this peer holds it
        self.led: GroupRound | None = None  # the newest round that this peer has led
        self.confirmed: HeldAverage | None = None  # the newest average that has been confirmed here
        self.certified = b""  # the word that has confirmed it, for holders that have missed it
        self.lacking: dict[HeldAverage, set[str]] = {}  # -> peers that have come here without it after its round

    def hold(self, held: HeldAverage, signature: bytes) -> None:
        """Hold an average from now on."""
        self.held, self.signature, self._held_at = held, signature, self._clock()

    def decide(
        self, holdings: Mapping[str, tuple[HeldAverage, bytes]], groups: Mapping[str, bytes]
    ) -> dict[HeldAverage, tuple[Ruling, bytes]]:
        """As the leader, rule on each average that peers at this step hold; return each ruling, and its word.

        `holdings`: follower -> its average and signature; `groups`: follower -> ID of the group that it has met here.
        """
        if len(self.lacking) > MOST_REMEMBERED:
            self.lacking.clear()
        found: dict[HeldAverage, dict[str, bytes]] = {}
        if self.held is not None:
            found[self.held] = {self._own: self.signature}
        for peer, (held, signature) in holdings.items():
            found.setdefault(held, {})[peer] = signature
        rulings = {}
        for held, signatures in found.items():
            holders, members = signatures.keys(), {peer for peer in groups if groups[peer] == held.group_id}
            lacking = self.lacking.setdefault(held, set())
            lacking |= groups.keys() - holders - members
            given = ruling(self.quorum, holders, self.possible_holders(held, holders, groups.keys(), members) - lacking)
            if given is Ruling.CONFIRMED and self._awaits_others(held, len(holders), bool(members - holdings.keys())):
                given = Ruling.OPEN
            word = CONFIRMED + held.message(certificate(signatures))
            if self.confirmed is not None and self.confirmed.position == held.position:
                given, word = (Ruling.CONFIRMED if held == self.confirmed else Ruling.VOID), self.certified
            elif given is Ruling.CONFIRMED and held == self.held:
                self.confirmed, self.certified = held, word
            rulings[held] = given, VOID if given is Ruling.VOID else word
        return rulings

    def _awaits_others(self, held: HeldAverage, holders: int, are_silent: bool) -> bool:
        """Return whether this peer's own round waits for half of the group, and then a moment for all, to hold it.

        `are_silent`: whether members of the group are here and hold nothing. A keeper that has just
        restarted counts other voters than its group does.
        """
        now = self._clock()
        if self.led is None or self.led.group_id != held.group_id or now >= self.led.ends_at:
            return False
        return 2 * holders < len(self.led.peers) or (are_silent and now < self._held_at + ALL_HOLD_S)

    def possible_holders(self, held: HeldAverage, holders: Set[str], here: Set[str], members: Set[str]) -> set[str]:
        """Return the peers that may have confirmed an average elsewhere, or may yet do so here.

        `here`: this peer's followers; `members`: those that have met this average's group here. A
        follower may be lost for a time before that is noticed. This peer itself, and who has
        followed it without interruption, have met no other leader since it began this round.
        """
        own, quorum = self._own, self.quorum
        absent = quorum.voters - here - {own} - (quorum.gone if own in quorum.keepers else frozenset())
        if self.led is None or self.led.group_id != held.group_id:
            return {*holders, *absent}
        over_s = self._clock() - self.led.ends_at
        elsewhere = {*(holders | members if over_s < LOST_S else holders - members), *(absent & self.led.peers)}
        return elsewhere if over_s < 0 else elsewhere - {own}
