"""A peer's node, as the trainer's process sees it: a forked process, which gets orders and answers in words.

The two processes share only the averaged tensors and counters of traffic. `peer.swarm.node_loop` is
the node itself. Before the fork, all existing objects are excluded from garbage collection
(`gc.freeze`): a collection in either process would touch them, and copy about 100 MB of pages that
both share.
"""

from __future__ import annotations

import gc
import itertools
import logging
import multiprocessing
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass
from typing import Any

from auth.errors import SwarmError
from auth.swarm.hivemind_patches import patch_hivemind
from peer.averaging.requirements import Heard, Requirements
from peer.averaging.rounds import RoundError, RoundSearch, SearchStage
from peer.node.states import StateCopy, StateOrder
from peer.reduction.findings import Finding
from peer.reduction.guard import WeightCaps
from peer.runtime.channel import Channel
from peer.swarm.messages import (
    BoardOrder,
    CopyWanted,
    DaemonHeard,
    GivenUp,
    Joined,
    Loaded,
    Order,
    OrderDone,
    Ordered,
    SearchUpdate,
    Sought,
    StateCopied,
    TransferUpdate,
    Word,
)
from peer.swarm.node_loop import START_S, NodeParts, serve

logger = logging.getLogger(__name__)
SHUTDOWN_S = 3.0
GONE = "this peer's swarm node has ended"


@dataclass(frozen=True)
class Listeners:
    """Functions of the trainer's process that process words of the node, in threads."""

    daemon_heard: Callable[[], object]  # called while the p2p daemon lives
    heard: Callable[[Heard], object]
    found: Callable[[Finding], object]
    copy: Callable[[], StateCopy]  # copies the state, also while the trainer computes


class NodeProcess:
    """A forked process with one event loop, which meets other peers, averages with them, and exchanges states."""

    def __init__(self, parts: NodeParts) -> None:
        """Set up the process, without starting it."""
        patch_hivemind()
        fork = multiprocessing.get_context("fork")
        self._pipe, self._inner = fork.Pipe()
        self._process = fork.Process(target=serve, args=(self._pipe, self._inner, parts), name="node", daemon=True)
        self._channel: Channel | None = None  # to the process, once it is forked
        self._copying = threading.Lock()
        self._numbers = itertools.count(1)
        self._searches: dict[int, RoundSearch] = {}
        self._orders: dict[int, futures.Future[Any]] = {}
        self._is_gone = False
        self.wanted, self._caps = Requirements(), WeightCaps()
        self.failed_rounds = 0  # of all searches
        self.moves = 0  # grows while a download progresses
        self.turned_away = 0  # requests for the state that were rejected as busy
        self.addresses: tuple[str, ...] = ()  # this peer's libp2p multiaddresses

    def start(self) -> Joined:
        """Fork the process, and wait until it has joined the swarm. Raises `SwarmError` if it cannot."""
        gc.collect()
        gc.freeze()
        self._process.start()
        self._inner.close()  # so that the pipe ends with the process
        self._channel, joined = Channel(self._pipe, self._not_sent), Joined(fault="This peer's swarm node hangs.")
        try:
            if self._pipe.poll(START_S + SHUTDOWN_S):
                joined = self._channel.receive()
        except (EOFError, OSError):
            joined = Joined(fault="The process of this peer's swarm node was killed as it started.")
        if joined.fault:
            self.shutdown()
            raise SwarmError(joined.fault)
        self.addresses = joined.addresses
        return joined

    def listen(self, listeners: Listeners) -> None:
        """Process the node's further words in a thread."""
        assert self._channel is not None  # it has been started
        arguments = self._channel, listeners
        threading.Thread(target=self._listen, args=arguments, name="node's words", daemon=True).start()

    def want(self, wanted: Requirements) -> None:
        """Set the requirements for this search or the next one."""
        if wanted != self.wanted:
            self.wanted = wanted
            self._send(wanted)

    def cap(self, by_peer: Mapping[str, float], newcomers: float) -> None:
        """Limit the weights of this peer's reductions (peer ID -> samples); `newcomers`: of every other device."""
        caps = WeightCaps(by_peer, newcomers)
        if caps != self._caps:
            self._caps = caps
            self._send(caps)

    def seek(self, rate: float | None) -> RoundSearch:
        """Begin to look for a group; `rate`: this peer's bytes per second, if known."""
        search = RoundSearch(next(self._numbers))
        self._searches[search.number] = search
        self._send(Sought(search.number, rate))
        return search

    def begin(self, search: RoundSearch, weight: float) -> None:
        """Let the search's group average the loaded gradients, which are of `weight` samples."""
        search.is_due = True
        self._send(Loaded(search.number, weight))

    def give_up(self, search: RoundSearch) -> None:
        """Cancel a search, or its round."""
        if search.outcome.cancel():
            self._send(GivenUp(search.number))

    def order(self, order: BoardOrder | StateOrder) -> futures.Future[Any]:
        """Order something; return a future for what it finds, which raises `SwarmError` if it fails."""
        number, future = next(self._numbers), futures.Future[Any]()
        self._orders[number] = future
        self._send(Ordered(number, order))
        return future

    def shutdown(self, most_s: float = SHUTDOWN_S) -> None:
        """End the process, which gives up its rounds; kill it if that takes longer than `most_s` seconds."""
        self._send(None)
        self._process.join(most_s)
        self._process.kill()
        self._process.join(SHUTDOWN_S)

    def _send(self, order: Order) -> None:
        assert self._channel is not None  # it has been started
        self._channel.send(order)
        if self._is_gone:
            self._let_nobody_wait()

    def _listen(self, channel: Channel, listeners: Listeners) -> None:
        while True:
            try:
                word: Word = channel.receive()
            except (EOFError, OSError):
                self._is_gone = True  # first, so that no later order is missed
                self._let_nobody_wait()
                return
            try:
                self._take(word, listeners)
            except Exception:
                logger.warning("a word of this peer's node was not processed", exc_info=True)

    def _take(self, word: Word, listeners: Listeners) -> None:
        match word:
            case Heard():
                listeners.heard(word)
            case Finding():
                listeners.found(word)
            case SearchUpdate():
                self._take_update(word)
            case OrderDone():
                self._take_outcome(word)
            case CopyWanted():
                threading.Thread(target=self._copy, args=(listeners.copy,), name="copier", daemon=True).start()
            case TransferUpdate():
                self.moves, self.turned_away = word.moves, word.turned_away
            case DaemonHeard():
                self.addresses = word.addresses or self.addresses
                listeners.daemon_heard()

    def _let_nobody_wait(self) -> None:
        """End all orders and searches of a process that has ended."""
        for number in list(self._orders):
            self._take_outcome(OrderDone(number, fault=GONE))
        for number in list(self._searches):
            self._take_update(SearchUpdate(number, SearchStage.ENDED, self.failed_rounds, fault=GONE))

    def _not_sent(self, order: Order) -> Order:
        """Return the order in place of one that cannot be sent, for example because no more files can be opened."""
        if isinstance(order, Ordered):
            self._take_outcome(OrderDone(order.number, fault="the order could not be sent"))
        return StateCopied(None) if isinstance(order, StateCopied) else None

    def _take_outcome(self, outcome: OrderDone) -> None:
        future = self._orders.pop(outcome.number, None)
        if future is None:  # it has just been told otherwise
            return
        if outcome.fault:
            future.set_exception(SwarmError(outcome.fault))
        else:
            future.set_result(outcome.found)

    def _take_update(self, update: SearchUpdate) -> None:
        self.failed_rounds, search = update.failed_rounds, self._searches.get(update.number)
        if search is None:
            return
        search.enter(update.stage)
        if update.stage is not SearchStage.ENDED:
            return
        self._searches.pop(update.number, None)
        if search.outcome.set_running_or_notify_cancel():  # it has not been given up meanwhile
            if update.group is None:
                search.outcome.set_exception(RoundError(update.fault))
            else:
                search.outcome.set_result(update.group)

    def _copy(self, copy: Callable[[], StateCopy]) -> None:
        copied = None
        try:
            with self._copying:
                copied = copy()
        finally:
            self._send(StateCopied(copied))
