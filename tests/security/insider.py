"""What an insider changes in the program that it runs: one attack at a time, as the test tells it.

Only the peer that is told so attacks; for all others nothing here has any effect.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hivemind.dht import DHT
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import PeerID
from hivemind.utils.crypto import RSAPrivateKey

from auth.swarm.authorizer import RecordKey, owner_subkey
from peer.swarm.records import PeerRecord
from peer.swarm.state import SwarmStateAverager
from peer.swarm.swarm import Swarm
from peer.swarm.tracker import StepTracker
from tests.security.processes import Orders

BOMB = 10**9
CLAIMED = 10**7
FALSE_SHARE = 3  # of what it has: few enough to be believed once


def give_false_states(orders: Orders) -> None:
    """From now on let this process give a state of its own making while it is told to; call it before joining."""
    honest_state = SwarmStateAverager.get_current_state

    def state(averager: SwarmStateAverager) -> Any:
        metadata, tensors, infos = honest_state(averager)
        if orders.attack != "donor":
            return metadata, tensors, infos
        orders.say("donated")
        return metadata, [tensor * -3.0 for tensor in tensors], infos

    SwarmStateAverager.get_current_state = state  # type: ignore[method-assign]


class Insider:
    """Sits between a peer's program and the swarm."""

    def __init__(self, swarm: Swarm, orders: Orders) -> None:
        self._swarm, self._orders = swarm, orders
        self._tracker: StepTracker = swarm._tracker
        self._honest_record = self._tracker._record
        self._tracker._record = self._record  # type: ignore[method-assign]
        self._kept: Any = None

    def _record(self, now: float) -> PeerRecord:
        """What it says of itself."""
        record = self._honest_record(now)
        if self._orders.attack == "step bomb":
            return record.model_copy(update={"step": BOMB})
        if self._orders.attack == "inflation":
            return record.model_copy(update={"samples": CLAIMED, "rate": 1e6})
        if self._orders.attack == "false claims":
            return record.model_copy(update={"samples": FALSE_SHARE * record.samples})
        return record

    def act(self) -> None:
        """Attacks that send something of their own; each is played once."""
        attack, dht = self._orders.attack, self._swarm._dht
        if attack == "keep records":
            self._kept = dht.run_coroutine(partial(others_records, key=self._tracker.training_progress_key))
            self._orders.say("kept", records=len(self._kept))
        elif attack == "replay":
            forger = Forger(self._tracker.training_progress_key, self._tracker._owner, self._swarm_key(), self._kept)
            self._orders.say("replayed", **dht.run_coroutine(forger.replay))
        else:
            return
        self._orders.attack = ""

    def _swarm_key(self) -> bytes:
        return self._swarm._tracker._access.credentials.device_key.private_der


Stored = tuple[bytes, bytes, float]  # subkey, signed value, expiration


async def others_records(_dht: DHT, node: DHTNode, key: str) -> list[Stored]:
    """Every record that this node holds, as it was sent here: signed by its owner."""
    found = node.protocol.storage.get(DHTID.generate(source=key))
    return [(subkey, item.value, item.expiration_time) for subkey, item in found.value.items()]


@dataclass(frozen=True)
class Forger:
    """Sends records that are not its own, in every way there is, straight to each node."""

    key: str
    own_subkey: bytes
    own_private_der: bytes
    kept: list[Stored]

    async def replay(self, _dht: DHT, node: DHTNode) -> dict[str, list[bool | None]]:
        """What each node answered to each: whether it stored that."""
        own_key, unknown_key = RecordKey(self.own_private_der), RSAPrivateKey()
        unknown_subkey = owner_subkey(unknown_key.get_public_key().to_bytes())
        newest = {subkey: value for subkey, value, _ in await others_records(_dht, node, self.key)}
        own, another = newest[self.own_subkey], next(item for item in self.kept if item[0] != self.own_subkey)
        later = max(item[2] for item in await others_records(_dht, node, self.key)) + 5.0
        forged: dict[str, Stored] = {
            "older": another,
            "in_anothers_name": (another[0], self._signed(own_key, another[0], own, later), later),
            "with_anothers_token": (self.own_subkey, self._signed(own_key, self.own_subkey, another[1], later), later),
            "by_an_unknown_key": (unknown_subkey, self._signed(unknown_key, unknown_subkey, own, later), later),
            "own": (self.own_subkey, self._signed(own_key, self.own_subkey, own, later), later),
        }
        peers = list(node.protocol.routing_table.peer_id_to_uid)
        answers = {name: [await self._store(node, peer, item) for peer in peers] for name, item in forged.items()}
        answers["over_all"] = [await self._store(node, peer, (None, own, later)) for peer in peers]
        return answers

    async def _store(self, node: DHTNode, peer: PeerID, item: tuple[bytes | None, bytes, float]) -> bool | None:
        subkey, value, expiration = item
        stored = await node.protocol.call_store(
            peer, [DHTID.generate(source=self.key)], [value], expiration, subkeys=None if subkey is None else [subkey]
        )
        return None if stored is None else bool(stored[0])

    def _signed(self, key: RSAPrivateKey, subkey: bytes, signed: bytes, expiration: float) -> bytes:
        """Another's value under a new signature, by whatever key, over the record as the receiver will see it."""
        validator = RSASignatureValidator(key)
        record = DHTRecord(
            DHTID.generate(source=self.key).to_bytes(), DHTProtocol.serializer.dumps(subkey), signed, expiration
        )
        record = replace(record, value=validator.strip_value(record))
        signature = key.sign(validator._serialize_record(record))
        return record.value + validator.SIGNATURE_FORMAT.replace(b"_value_", signature)
