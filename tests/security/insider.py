"""What an insider changes in the program that it runs: one attack at a time, as the test tells it.

Only the peer that is told so attacks; for all others nothing here has any effect.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hivemind.dht import DHT
from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import PeerID
from hivemind.utils import get_dht_time

from auth.credentials import Credentials
from auth.swarm.authorizer import (
    MemberTokens,
    PeerRecordValidator,
    group_key,
    owner_of,
    record_subkey,
    token_subkey,
)
from peer.swarm.credit import Allowances
from peer.swarm.records import Course, KnownPeer, PeerRecord
from peer.swarm.state import SwarmStateAverager
from peer.swarm.swarm import Swarm
from peer.swarm.tracker import StepTracker
from tests.security.bad_parts import INFLATED
from tests.security.processes import Orders

BOMB = 10**9
CLAIMED = 10**7
FALSE_SHARE = 3  # of what it has: few enough to be believed once
FOREIGN_KEYS, FOREIGN_BYTES = 4000, 16_000
FOREIGN_SUBKEYS, AT_ONCE = 64, 50
DAY_S = 86_000.0
RECORD_S = 10.0  # that a record of a further device counts
AHEAD = 3  # steps that a member's further devices, or a false keeper, claim beyond the swarm's


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


def believe_less(orders: Orders) -> None:
    """From now on let others' samples fill no batch here while this process is told so; call it before joining."""
    honest = Allowances.counted

    def counted(allowances: Allowances, peers: Iterable[KnownPeer]) -> int:
        most = allowances.target - 1 if orders.attack == "believes less" else math.inf
        return int(min(most, honest(allowances, peers)))

    Allowances.counted = counted  # type: ignore[method-assign]


class Insider:
    """Sits between a peer's program and the swarm."""

    def __init__(self, swarm: Swarm, orders: Orders, more_devices: Sequence[Path] = ()) -> None:
        """`more_devices`: credentials of further devices of the same member."""
        self._swarm, self._orders = swarm, orders
        self._more_devices = [Credentials(directory) for directory in more_devices]
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
        if self._orders.attack.startswith("20 times"):
            return record.model_copy(update={"samples": INFLATED * record.samples, "rate": INFLATED * record.rate})
        if self._orders.attack == "false claims":
            return record.model_copy(update={"samples": FALSE_SHARE * record.samples})
        if self._orders.attack == "false sketch":
            return record.model_copy(update={"sketch": tuple(-value for value in record.sketch)})
        if self._orders.attack == "false beacon":
            course = Course(age_s=0.0, usual_s=0.0, credits={self._tracker.own_id: CLAIMED})
            return record.model_copy(update={"era": record.era + 1, "step": record.step + AHEAD, "course": course})
        return record

    def act(self) -> None:
        """Attacks that send something of their own; all but the many devices' records are played once."""
        attack, dht = self._orders.attack, self._swarm._dht
        if attack == "keep records":
            self._kept = dht.run_coroutine(partial(others_records, key=self._tracker.training_progress_key))
            self._orders.say("kept", records=len(self._kept))
        elif attack == "replay":
            forger = Forger(self._tracker.training_progress_key, self._credentials, self._kept)
            self._orders.say("replayed", **dht.run_coroutine(forger.replay))
        elif attack == "many devices":
            now = get_dht_time()
            false = {"step": self._tracker.step + AHEAD, "samples": CLAIMED, "training": True, "time": now}
            record = self._honest_record(now).model_copy(update=false)
            for credentials in self._more_devices:
                forger = Forger(self._tracker.training_progress_key, credentials, [])
                dht.run_coroutine(partial(forger.speak_for, record=record), return_future=True)
            return
        elif attack == "fill the nodes":
            filler = Filler(self._tracker.training_progress_key, self._credentials)
            self._orders.say("filled", **dht.run_coroutine(filler.fill))
        elif attack == "count":  # of an honest peer, too
            self._orders.say("held", **dht.run_coroutine(held))
        else:
            return
        self._orders.attack = ""

    @property
    def _credentials(self) -> Credentials:
        return self._swarm._tracker._access.credentials


Stored = tuple[bytes, bytes, float]  # subkey, signed value, expiration


async def others_records(_dht: DHT, node: DHTNode, key: str) -> list[Stored]:
    """Every record that this node holds, as it was sent here: signed by its owner."""
    found = node.protocol.storage.get(DHTID.generate(source=key))
    entries = [(subkey, item.value, item.expiration_time) for subkey, item in found.value.items()]
    return [entry for entry in entries if owner_of(entry[0])[1] == "record"]


async def held(_dht: DHT, node: DHTNode) -> dict[str, int]:
    """The keys, entries and bytes that this node stores."""
    stores = (node.protocol.storage, node.protocol.cache)
    values = [item.value for store in stores for _, item in store.items()]
    entries = [list(value.items()) if isinstance(value, DictionaryDHTValue) else [(b"", value)] for value in values]
    flat = [(subkey, getattr(item, "value", item)) for each in entries for subkey, item in each]
    size = sum(len(DHTProtocol.serializer.dumps(subkey)) + len(value) for subkey, value in flat)
    return {"keys": len(values), "entries": len(flat), "bytes": size}


@dataclass(frozen=True)
class Filler:
    """Stores all that it can at each node: under keys of its own, and under those of the run."""

    key: str
    credentials: Credentials

    async def fill(self, _dht: DHT, node: DHTNode) -> dict[str, Any]:
        """The entries of each kind that each node has taken, and the seconds of the whole attack."""
        dumps, began = DHTProtocol.serializer.dumps, time.monotonic()
        own = record_subkey(self.credentials.device_key.peer_id)
        peers, group = (DHTID.generate(source=key) for key in (self.key, group_key(self.credentials.run)))
        foreign = [DHTID.generate(source=f"foreign-{number}") for number in range(FOREIGN_KEYS)]
        names = [number.to_bytes(2, "big") for number in range(FOREIGN_SUBKEYS)]
        large, true = bytes(FOREIGN_BYTES), dumps(True)
        taken = {
            "foreign keys": await self._store(node, foreign, large, RECORD_S * 100),
            "peers' subkeys": await self._store(node, [peers] * len(names), large, RECORD_S, names),
            "group's subkeys": await self._store(node, [group] * len(names), true, RECORD_S, names),
            "large": await self._store(node, [peers], dumps("x" * FOREIGN_BYTES), RECORD_S, [own]),
            "for a day": await self._store(node, [group], true, DAY_S, [own]),
            "over the group": await self._store(node, [group], true, DAY_S),  # no other entry until then
        }
        return {"taken": taken, "seconds": time.monotonic() - began}

    async def _store(
        self,
        node: DHTNode,
        keys: Sequence[DHTID],
        value: bytes,
        lasts_s: float,
        subkeys: Sequence[bytes | None] = (),
    ) -> list[int]:
        """How many of these, each signed as it may be, each node has taken."""
        validator = PeerRecordValidator(self.credentials, MemberTokens(self.credentials), self.credentials.run)
        taken = []
        for peer in list(node.protocol.routing_table.peer_id_to_uid):
            taken.append(0)
            for at in range(0, len(keys), AT_ONCE):
                some, expires_at = keys[at : at + AT_ONCE], get_dht_time() + lasts_s
                names = list(subkeys[at : at + AT_ONCE]) or [None] * len(some)
                records = [
                    DHTRecord(key.to_bytes(), DHTProtocol.serializer.dumps(name), value, expires_at)
                    for key, name in zip(some, names, strict=True)
                ]
                values = [validator.sign_value(record) for record in records]
                answer = None
                while answer is None:  # a busy node may not have read it
                    answer = await node.protocol.call_store(peer, some, values, expires_at, subkeys=names)
                taken[-1] += sum(answer)
        return taken


@dataclass(frozen=True)
class Forger:
    """Sends records that are not its own, in every way there is, straight to each node."""

    key: str
    credentials: Credentials
    kept: list[Stored]

    async def replay(self, _dht: DHT, node: DHTNode) -> dict[str, list[bool | None]]:
        """What each node answered to each: whether it stored that."""
        own_id = self.credentials.device_key.peer_id
        own_subkey, unknown_subkey = record_subkey(own_id), record_subkey(PeerID(bytes(34)).to_base58())
        newest = {subkey: value for subkey, value, _ in await others_records(_dht, node, self.key)}
        own, another = newest[own_subkey], next(item for item in self.kept if item[0] != own_subkey)
        later = max(item[2] for item in await others_records(_dht, node, self.key)) + 5.0
        token = DHTProtocol.serializer.dumps(self.credentials.token_jwt)
        expires_at = self.credentials.access_token(time.time()).expires_at
        forged: dict[str, Stored] = {
            "older": another,
            "in_anothers_name": (another[0], self._signed(another[0], own, later), later),
            "with_anothers_signature": (own_subkey, another[1], later),
            "of_an_unknown_device": (unknown_subkey, self._signed(unknown_subkey, own, later), later),
            "token_in_anothers_name": (token_subkey(owner_of(another[0])[0]), token, expires_at),
            "token_for_longer": (token_subkey(own_id), token, expires_at + 5.0),
            "own": (own_subkey, self._signed(own_subkey, own, later), later),
        }
        peers = list(node.protocol.routing_table.peer_id_to_uid)
        answers = {name: [await self._store(node, peer, item) for peer in peers] for name, item in forged.items()}
        answers["over_all"] = [await self._store(node, peer, (None, own, later)) for peer in peers]
        return answers

    async def speak_for(self, _dht: DHT, node: DHTNode, record: PeerRecord) -> None:
        """Store this device's token and a record in its name at each node: they are its own, and so are taken."""
        peer_id, dumps = self.credentials.device_key.peer_id, DHTProtocol.serializer.dumps
        token = dumps(self.credentials.token_jwt)
        ends_at, soon = self.credentials.access_token(time.time()).expires_at, get_dht_time() + RECORD_S
        own = record_subkey(peer_id)
        signed = self._sign(own, dumps(record.pack()), soon)
        for peer in list(node.protocol.routing_table.peer_id_to_uid):
            await self._store(node, peer, (token_subkey(peer_id), token, ends_at))
            await self._store(node, peer, (own, signed, soon))

    async def _store(self, node: DHTNode, peer: PeerID, item: tuple[bytes | None, bytes, float]) -> bool | None:
        subkey, value, expiration = item
        stored = await node.protocol.call_store(
            peer, [DHTID.generate(source=self.key)], [value], expiration, subkeys=None if subkey is None else [subkey]
        )
        return None if stored is None else bool(stored[0])

    def _signed(self, subkey: bytes, signed: bytes, expiration: float) -> bytes:
        """A value under a new signature by the own key, over the record as the receiver will see it."""
        record = DHTRecord(DHTID.generate(source=self.key).to_bytes(), b"", signed, expiration)
        validator = PeerRecordValidator(self.credentials, MemberTokens(self.credentials), self.credentials.run)
        stripped = validator.strip_value(replace(record, subkey=DHTProtocol.serializer.dumps(subkey)))
        return self._sign(subkey, stripped, expiration)

    def _sign(self, subkey: bytes, value: bytes, expiration: float) -> bytes:
        validator = PeerRecordValidator(self.credentials, MemberTokens(self.credentials), self.credentials.run)
        validator._own = DHTProtocol.serializer.dumps(subkey)
        key = DHTID.generate(source=self.key).to_bytes()
        return validator.sign_value(DHTRecord(key, validator._own, value, expiration))
