"""A peer's node: a process with one event loop, in which the trainer's orders are executed.

The loop owns the p2p daemon, the node of the DHT, the meetings and rounds, and the exchange of
states. `peer.swarm.node_process` is the trainer's side.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import psutil
from hivemind.utils.asyncio import switch_to_uvloop

from auth.errors import SwarmError
from auth.swarm.authorizer import record_subkey
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
from peer.network.placement import Placement
from peer.network.traffic import Traffic
from peer.node.states import COPY_S, StateCopy, StateOrder, StateService
from peer.reduction.auditing import Auditing
from peer.reduction.findings import Accusations, Finding
from peer.reduction.guard import ReductionGuard, WeightCaps
from peer.reporting.event_log import NOWHERE, EventLog
from peer.runtime.channel import Channel
from peer.runtime.processes import name_fork
from peer.swarm.board import Board, join_dht
from peer.swarm.messages import (
    BoardOrder,
    CopyWanted,
    DaemonHeard,
    GivenUp,
    Greeting,
    Joined,
    Loaded,
    Order,
    OrderDone,
    Ordered,
    RecordPut,
    RecordsWanted,
    SearchUpdate,
    Sought,
    StateCopied,
    TransferUpdate,
    Word,
)
from peer.transport.p2p import P2PTransport
from peer.transport.transport import Transport

logger = logging.getLogger(__name__)
START_S = 180.0  # longest time to join the swarm, which may start two p2p daemons, one after the other
LEAVE_S = 2.0  # longest time for the p2p daemon to end by itself
DAEMON_LOOK_S = 1.0  # interval of calls to the p2p daemon
TRANSFERS_S = 0.5  # shortest interval between words on transfers


@dataclass(frozen=True)
class NodeParts:
    """The settings and shared objects of a node, from the trainer's process that forks it."""

    access: SwarmAccess
    initial_peers: Sequence[str]  # libp2p multiaddresses
    place: Placement
    averaging: Averaging  # initial settings
    tensors: SharedTensors
    relays: Sequence[str] = ()  # addresses of volunteers that relay, in addition to the keeper
    traffic: Traffic = field(default_factory=Traffic)
    events: EventLog = NOWHERE  # the log of its process


def serve(outer: Connection, inner: Connection, parts: NodeParts) -> None:
    """Run the forked process, until the trainer leaves or its process ends."""
    outer.close()  # so that the pipe ends with the trainer's process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    name_fork("swarm node")
    # PyTorch's pool of threads, as the fork has left it, works only in another thread than the main one.
    serving = threading.Thread(target=lambda: switch_to_uvloop().run_until_complete(_serve(inner, parts)), daemon=True)
    serving.start()
    serving.join()


async def _serve(inner: Connection, parts: NodeParts) -> None:
    channel, orders = Channel(inner, _instead_of), asyncio.Queue[Order]()
    arguments = channel, orders, asyncio.get_running_loop()
    threading.Thread(target=_read, args=arguments, name="trainer's orders", daemon=True).start()
    joining = asyncio.create_task(join_dht(parts.access, parts.initial_peers, parts.place, parts.relays))
    first = asyncio.create_task(orders.get())  # if it comes before this peer has joined, the trainer has ended
    try:
        await asyncio.wait({joining, first}, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        if not joining.done():
            raise SwarmError(f"The p2p daemon, or the initial peers, have not answered for {START_S:.0f} s.")
        board = joining.result()
        loop = NodeLoop(parts, board, P2PTransport(board.p2p), channel)
        await loop.serve()
    except Exception as error:  # noqa: BLE001 - fault boundary: the trainer's process gets the reason
        fault = str(error) if isinstance(error, SwarmError) else f"This peer's swarm node could not start: {error!r}."
        channel.send(Joined(fault=fault))
    else:
        order = await first
        while order is not None:
            loop.obey(order)
            order = await orders.get()
        loop.stop()
        leaving = asyncio.create_task(board.leave())
        await asyncio.wait({leaving}, timeout=LEAVE_S)  # the daemon may hang
    for daemon in psutil.Process().children():
        daemon.kill()
    channel.flush()


def _instead_of(word: Word) -> Word | None:
    return OrderDone(word.number, fault="its outcome could not be sent") if isinstance(word, OrderDone) else None


def _read(channel: Channel, orders: asyncio.Queue[Order], loop: asyncio.AbstractEventLoop) -> None:
    """Pass the trainer's orders to the event loop."""
    with suppress(EOFError, OSError):  # the trainer's process has ended
        while (order := channel.receive()) is not None:
            loop.call_soon_threadsafe(orders.put_nowait, order)
    loop.call_soon_threadsafe(orders.put_nowait, None)


class NodeLoop:
    """The node in its event loop."""

    def __init__(self, parts: NodeParts, board: Board, transport: Transport, channel: Channel) -> None:
        """Build the parts that belong to the event loop."""
        access, place, traffic = parts.access, parts.place, parts.traffic
        run, key, prefix = access.run, access.credentials.device_key, f"{access.run}_averager"
        own = OwnSide(key.peer_id, run, not board.is_client, place.may_reduce)
        self._board, self._subkey, self._is_relayed = board, record_subkey(own.peer_id), place.reach == "relayed"
        self._channel, self._loop = channel, asyncio.get_running_loop()
        self._run, self._tasks = run, set[asyncio.Task[None]]()
        self._moves = self._turned_away = 0  # in downloads; requests for the state that were rejected as busy
        self._telling: asyncio.TimerHandle | None = None  # of these two numbers
        self._copied: asyncio.Future[StateCopy] | None = None
        self._accusations = Accusations(self._loop.time)
        self._directory = PeerDirectory(board.entries, access.credentials, access.clock)
        self._guard = ReductionGuard(self._note, parts.averaging)
        attendance = Attendance(own.peer_id, self._directory.name_of)
        self._reductions = ReductionService(transport, f"{prefix}.reduce", self._directory, traffic)
        self._auditing = Auditing(transport, f"{prefix}.audit", self._directory, traffic, self._note, random.Random())
        self._meetings = Meetings(transport, f"{prefix}.meet", self._directory, self._opened, key.sign, self._deliver)
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
            run,
            key,
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
            signed=lambda said: said.signed(key.sign),
            changed=self._tell_update,
        )
        self._searches: dict[int, RoundSearch] = {}

    async def serve(self) -> None:
        """Tell the trainer that this peer has joined, and let other peers call it, unless they cannot."""
        daemon: Any = self._board.p2p._child
        addresses = await self._board.addresses()
        self._channel.send(Joined(self._board.is_client, addresses, os.getpid(), daemon.pid))
        self._start(self._attend_daemon())
        if not self._board.is_client:
            for service in self._meetings, self._reductions, self._states, self._auditing:
                await service.serve()
            self._start(self._board.announce(relayed=self._is_relayed))

    def stop(self) -> None:
        """Cancel everything, before the p2p daemon ends."""
        self.rounds.stop()
        for task in self._tasks:
            task.cancel()

    async def _attend_daemon(self) -> None:
        """Tell the trainer of each answer of the p2p daemon, which may hang or die."""
        while True:
            await asyncio.sleep(DAEMON_LOOK_S)
            with suppress(Exception):  # any error counts as no answer
                self._channel.send(DaemonHeard(await self._board.addresses()))

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
            case Ordered():
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

    async def _execute(self, ordered: Ordered) -> None:
        found, fault = None, ""
        try:
            found = await self._carry_out(ordered.order)
        except (Exception, asyncio.CancelledError) as error:  # hivemind may cancel what it waits for itself
            level = logging.INFO if isinstance(ordered.order, BoardOrder) else logging.WARNING
            logger.log(level, "an order of the trainer failed: %s", type(ordered.order).__name__, exc_info=True)
            fault = repr(error)
        self._channel.send(OrderDone(ordered.number, found, fault))

    async def _carry_out(self, order: BoardOrder | StateOrder) -> Any:
        match order:
            case RecordsWanted():
                return await self._board.entries()
            case RecordPut(record, expiration_time):
                return await self._board.put(self._subkey, record, expiration_time)
            case Greeting(addresses, peer_ids):
                return await self._board.greet(addresses, peer_ids)
            case _:
                return await self._states.obey(order)

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
