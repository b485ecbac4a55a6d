"""The averager's process: one event loop, in which the trainer's orders are executed (`peer.swarm.averager`)."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from hivemind.dht import DHT
from hivemind.utils.asyncio import switch_to_uvloop

from auth.swarm.directory import PeerDirectory, SwarmAccess
from auth.tokens import AccessToken
from peer.averaging.absences import Attendance
from peer.averaging.declarations import Declaration, open_declaration
from peer.averaging.exchange import GradientExchange
from peer.averaging.meetings import Meetings
from peer.averaging.reduction_service import ReductionService
from peer.averaging.requirements import Heard, Requirements
from peer.averaging.rounds import AveragingRounds, OwnSide, RoundSearch, SearchStage
from peer.config.training import Averaging
from peer.gradients.buffer import SharedTensors
from peer.network.traffic import Traffic
from peer.node.states import COPY_S, StateCopy, StateService
from peer.reduction.auditing import Auditing
from peer.reduction.findings import Accusations, Finding
from peer.reduction.guard import ReductionGuard, WeightCaps
from peer.reporting.event_log import NOWHERE, EventLog
from peer.runtime.channel import Channel
from peer.runtime.processes import name_fork
from peer.swarm.messages import (
    CopyWanted,
    GivenUp,
    Loaded,
    Order,
    OrderDone,
    SearchUpdate,
    Served,
    Sought,
    StateCopied,
    StateOrdered,
    TransferUpdate,
)
from peer.transport.p2p import P2PTransport
from peer.transport.transport import Transport

logger = logging.getLogger(__name__)
TRANSFERS_S = 0.5  # shortest interval between words on transfers


@dataclass(frozen=True)
class AveragerParts:
    """The averager's parts, as the trainer's process makes them before it forks the averager's."""

    dht: DHT
    access: SwarmAccess
    own: OwnSide
    averaging: Averaging  # initial settings
    tensors: SharedTensors
    traffic: Traffic = field(default_factory=Traffic)
    events: EventLog = NOWHERE  # the log of its process


def serve(outer: Connection, inner: Connection, parts: AveragerParts) -> None:
    """Run the forked process, until the trainer leaves or its process ends."""
    outer.close()  # so that the pipe ends with the trainer's process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    name_fork("averager")
    # PyTorch's pool of threads, as the fork has left it, works only in another thread than the main one.
    serving = threading.Thread(target=lambda: switch_to_uvloop().run_until_complete(_serve(inner, parts)), daemon=True)
    serving.start()
    serving.join()


async def _serve(inner: Connection, parts: AveragerParts) -> None:
    channel = Channel(inner, lambda word: OrderDone(word.number) if isinstance(word, OrderDone) else None)
    orders = asyncio.Queue[Order]()
    reading = threading.Thread(target=_read, args=(channel, orders, asyncio.get_running_loop()), daemon=True)
    reading.start()
    try:
        loop = AveragerLoop(parts, P2PTransport(await parts.dht.replicate_p2p()), channel)
        if parts.own.takes_connections:
            await loop.serve()
    except Exception as error:  # noqa: BLE001 - fault boundary: the trainer's process gets the reason
        channel.send(Served(f"The averager's process could not start: {error!r}."))
    else:
        channel.send(Served())
        while (order := await orders.get()) is not None:
            loop.obey(order)
    channel.flush()


def _read(channel: Channel, orders: asyncio.Queue[Order], loop: asyncio.AbstractEventLoop) -> None:
    """Pass the trainer's orders to the event loop."""
    with suppress(EOFError, OSError):  # the trainer's process has ended
        while (order := channel.receive()) is not None:
            loop.call_soon_threadsafe(orders.put_nowait, order)
    loop.call_soon_threadsafe(orders.put_nowait, None)


class AveragerLoop:
    """The averager in its event loop."""

    def __init__(self, parts: AveragerParts, transport: Transport, channel: Channel) -> None:
        """Build the parts that belong to the event loop."""
        access, own, traffic, prefix = parts.access, parts.own, parts.traffic, f"{parts.own.run}_averager"
        self._channel, self._loop = channel, asyncio.get_running_loop()
        self._run, self._tasks = own.run, set[asyncio.Task[None]]()
        self._moves = self._turned_away = 0  # in downloads; requests for the state that were rejected as busy
        self._telling: asyncio.TimerHandle | None = None  # of these two numbers
        self._copied: asyncio.Future[StateCopy] | None = None
        self._accusations = Accusations(self._loop.time)
        self._directory = PeerDirectory(parts.dht, access.credentials, own.run, access.clock)
        self._guard = ReductionGuard(self._note, parts.averaging)
        sign = access.credentials.device_key.sign
        attendance = Attendance(own.peer_id, self._directory.name_of)
        self._reductions = ReductionService(transport, f"{prefix}.reduce", self._directory, traffic)
        self._auditing = Auditing(transport, f"{prefix}.audit", self._directory, traffic, self._note)
        self._meetings = Meetings(transport, f"{prefix}.meet", self._directory, self._opened, sign, self._deliver)
        self._states = StateService(
            transport,
            prefix,
            self._directory,
            values=sum(shape.numel() for shape in parts.tensors.shapes),
            donor_roles=access.donor_roles,
            traffic=traffic,
            copy=self._copy,
            moved=self._moved,
            turned_away=self._turn_away,
        )
        exchange = GradientExchange(
            parts.tensors,
            parts.averaging,
            own.run,
            access.credentials.device_key,
            transport,
            self._reductions,
            self._directory,
            self._guard,
            self._auditing,
            attendance,
            self._accusations,
            self._note,
            traffic,
            parts.events,
        )
        self.rounds = AveragingRounds(
            self._meetings,
            exchange,
            attendance,
            self._accusations,
            self._directory,
            own,
            parts.averaging,
            opened=self._opened,
            signed=lambda said: said.signed(sign),
            changed=self._tell_update,
        )
        self._searches: dict[int, RoundSearch] = {}

    async def serve(self) -> None:
        """Let other peers call this one."""
        for service in self._meetings, self._reductions, self._states, self._auditing:
            await service.serve()

    def obey(self, order: Order) -> None:
        """Execute an order of the trainer, or begin to."""
        match order:
            case Requirements():
                self.rounds.want(order)
            case WeightCaps():
                self._guard.caps = order
            case Sought(number, rate):
                self._searches[number] = self.rounds.seek(rate, number)
            case Loaded(number, weight) if number in self._searches:
                self.rounds.begin(self._searches[number], weight)
            case GivenUp(number) if number in self._searches:
                self.rounds.give_up(self._searches[number])
            case StateOrdered():
                self._start(self._execute(order))
            case StateCopied(copy) if self._copied is not None and not self._copied.done():
                if copy is None:
                    self._copied.set_exception(RuntimeError("the trainer could not copy its state"))
                else:
                    self._copied.set_result(copy)

    def _tell_update(self, search: RoundSearch) -> None:
        group, fault = None, ""
        if search.stage is SearchStage.ENDED:
            self._searches.pop(search.number, None)
            if search.outcome.cancelled() or not search.outcome.done():
                fault = "given up"
            elif (error := search.outcome.exception()) is not None:
                fault = str(error) or repr(error)
            else:
                group = search.outcome.result()
        self._channel.send(SearchUpdate(search.number, search.stage, self.rounds.failed_rounds, group, fault))

    async def _execute(self, order: StateOrdered) -> None:
        found = None
        try:
            found = await self._states.obey(order.order)
        except Exception:  # a peer that cannot read the DHT finds nothing, and tries again
            logger.warning("an order on states failed: %s", type(order.order).__name__, exc_info=True)
        self._channel.send(OrderDone(order.number, found))

    async def _copy(self) -> StateCopy:
        self._copied = self._loop.create_future()
        self._channel.send(CopyWanted())
        return await asyncio.wait_for(self._copied, COPY_S)

    def _moved(self) -> None:
        self._moves += 1
        self._tell_transfers()

    def _turn_away(self) -> None:
        self._turned_away += 1
        self._tell_transfers()

    def _tell_transfers(self) -> None:
        if self._telling is None:
            self._telling = self._loop.call_later(TRANSFERS_S, self._tell_transfers_now)

    def _tell_transfers_now(self) -> None:
        self._telling = None
        self._channel.send(TransferUpdate(self._moves, self._turned_away))

    def _deliver(self, heard: Heard) -> bool:
        """Tell what other peers have said, unless earlier words still wait for the trainer."""
        if self._channel.has_backlog:
            return False
        self._channel.send(heard)
        return True

    def _note(self, finding: Finding) -> None:
        """Tell the trainer of a finding, and accuse the peer in later declarations."""
        self._channel.send(finding.bounded)
        self._accusations.accuse(finding.peer_id)

    def _opened(self, declared: bytes, token: AccessToken) -> Declaration:
        """Read a peer's declaration for any step. Raises `ValueError` if it is invalid."""
        return open_declaration(declared, token.public_key, self._run)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # asyncio itself keeps no strong reference to a waiting task
        task.add_done_callback(self._tasks.discard)
