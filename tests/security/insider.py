"""What an insider changes in the program that it runs: one attack at a time, as the test tells it.

Only the peer that is told so attacks; for all others nothing here has any effect.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.utils import get_dht_time

from auth.credentials import Credentials
from auth.swarm.authorizer import (
    MemberTokens,
    PeerRecordValidator,
    record_subkey,
    token_subkey,
)
from peer.averaging.declarations import DeclaredGroup
from peer.averaging.meetings import BEGIN, Meetings
from peer.node.states import StateCopy
from peer.progress.credit import Allowances
from peer.progress.records import Course, KnownPeer, PeerRecord
from peer.progress.tracker import StepTracker
from peer.swarm.board import Board
from peer.swarm.swarm import Swarm
from peer.swarm.training_state import TrainingState
from tests.security.bad_parts import INFLATED
from tests.support.peer_processes import Orders

BOMB = 10**9
CLAIMED = 10**7
FALSE_SHARE = 3  # of what it has: few enough to be believed once
RECORD_S = 10.0  # that a record of a further device counts
AHEAD = 3  # steps that a member's further devices, or a false keeper, claim beyond the swarm's


def give_false_states(orders: Orders) -> None:
    """From now on let this process give a state of its own making while it is told to; call it before joining."""
    honest_state = TrainingState.copy

    def state(own: TrainingState) -> StateCopy:
        copy = honest_state(own)
        if orders.told != "donor":
            return copy
        orders.say("donated")
        copy.tensors.values.mul_(-3.0)
        return copy

    TrainingState.copy = state  # type: ignore[method-assign]


def believe_less(orders: Orders) -> None:
    """From now on let others' samples fill no batch here while this process is told so; call it before joining."""
    honest = Allowances.counted

    def counted(allowances: Allowances, peers: Iterable[KnownPeer]) -> int:
        most = allowances.target - 1 if orders.told == "believes less" else math.inf
        return int(min(most, honest(allowances, peers)))

    Allowances.counted = counted  # type: ignore[method-assign]


def lead_falsely(orders: Orders) -> None:
    """From now on let this process, and what it forks, tell those who follow it that others said what it says.

    It does so while it is told to; call it before joining.
    """
    honest = Meetings.welcome

    async def welcome(meetings: Meetings, caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        if orders.told != "false leader":
            async with aclosing(honest(meetings, caller, requests)) as answers:
                async for answer in answers:
                    yield answer
            return
        await anext(requests)
        orders.say("led")
        yield (
            BEGIN + DeclaredGroup(bytes(20), (meetings._transport.peer_id, caller), (meetings._declared,) * 2).message()
        )

    Meetings.welcome = welcome  # type: ignore[method-assign]


def speak_for_many(orders: Orders, more_devices: Sequence[Path]) -> None:
    """From now on let this process's node speak for further devices of its member while it is told to.

    They speak whenever it publishes its own record; call it before joining. `more_devices`: their credentials.
    """
    honest, devices = Board.put, [Credentials(directory) for directory in more_devices]

    async def put(board: Board, subkey: bytes, value: Any, expiration_time: float) -> bool:
        if orders.told == "many devices" and subkey == record_subkey(board._node.peer_id.to_base58()):
            own = PeerRecord.unpack(value)
            false = {"step": own.step + AHEAD, "samples": CLAIMED, "training": True, "time": get_dht_time()}
            for credentials in devices:
                await FurtherDevice(board._key, credentials).speak(board._node, own.model_copy(update=false))
        return await honest(board, subkey, value, expiration_time)

    Board.put = put  # type: ignore[method-assign]


class Insider:
    """Sits between a peer's program and the swarm."""

    def __init__(self, swarm: Swarm, orders: Orders) -> None:
        self._orders = orders
        self._tracker: StepTracker = swarm._tracker
        self._honest_record = self._tracker.record
        self._tracker.record = self._record  # type: ignore[method-assign]

    def _record(self) -> PeerRecord:
        """What it says of itself."""
        record = self._honest_record()
        if self._orders.told == "step bomb":
            return record.model_copy(update={"step": BOMB})
        if self._orders.told == "inflation":
            return record.model_copy(update={"samples": CLAIMED, "rate": 1e6})
        if self._orders.told.startswith("20 times"):
            return record.model_copy(update={"samples": INFLATED * record.samples, "rate": INFLATED * record.rate})
        if self._orders.told == "false claims":
            return record.model_copy(update={"samples": FALSE_SHARE * record.samples})
        if self._orders.told == "false sketch":
            return record.model_copy(update={"sketch": tuple(-value for value in record.sketch)})
        if self._orders.told == "false beacon":
            course = Course(age_s=0.0, usual_s=0.0, credits={self._tracker.own_id: CLAIMED})
            return record.model_copy(update={"era": record.era + 1, "step": record.step + AHEAD, "course": course})
        return record


@dataclass(frozen=True)
class FurtherDevice:
    """Another device of the insider's member, which has no program of its own."""

    key: str
    credentials: Credentials

    async def speak(self, node: DHTNode, record: PeerRecord) -> None:
        """Store its token and this record at each node: they are its own, and so are taken."""
        peer_id, dumps = self.credentials.device_key.peer_id, DHTProtocol.serializer.dumps
        token_ends_at, soon = self.credentials.access_token(time.time()).expires_at, get_dht_time() + RECORD_S
        token, own = dumps(self.credentials.token_jwt), record_subkey(peer_id)
        signed = self._signed(own, dumps(record.pack()), soon)
        for peer in list(node.protocol.routing_table.peer_id_to_uid):
            for subkey, value, ends_at in ((token_subkey(peer_id), token, token_ends_at), (own, signed, soon)):
                await node.protocol.call_store(
                    peer, [DHTID.generate(source=self.key)], [value], ends_at, subkeys=[subkey]
                )

    def _signed(self, subkey: bytes, value: bytes, expiration: float) -> bytes:
        validator = PeerRecordValidator(self.credentials, MemberTokens(self.credentials), self.credentials.run)
        key, owner = DHTID.generate(source=self.key).to_bytes(), DHTProtocol.serializer.dumps(subkey)
        return validator.sign_value(DHTRecord(key, owner, value, expiration))
