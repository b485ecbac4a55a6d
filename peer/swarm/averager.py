"""The averager, as the trainer's process sees it: a forked process, which gets orders and answers in words.

The two processes share only the averaged tensors and counters of traffic.
`peer.swarm.averager_loop` is the averager itself.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing as mp
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass
from typing import Any

from auth.errors import SwarmError
from peer.averaging.requirements import Heard, Requirements
from peer.averaging.rounds import RoundError, RoundSearch, SearchStage
from peer.node.states import StateCopy, StateOrder
from peer.reduction.findings import Finding
from peer.reduction.guard import WeightCaps
from peer.runtime.channel import Channel
from peer.swarm.averager_loop import AveragerParts, serve
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
    Word,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Listeners:
    """Functions of the trainer's process that process words of the averager, in threads."""

    heard: Callable[[Heard], object]
    found: Callable[[Finding], object]
    copy: Callable[[], StateCopy]  # copies the state, also while the trainer computes


class Averager:
    """A forked process with one event loop, which meets other peers, averages with them, and exchanges states."""

    def __init__(self, parts: AveragerParts, listeners: Listeners) -> None:
        """Set up the process, without starting it."""
        self._pipe, self._inner = mp.Pipe()
        self._process = mp.Process(target=serve, args=(self._pipe, self._inner, parts), name="averager", daemon=True)
        self._listeners = listeners
        self._channel: Channel | None = None  # to the process, once it is forked
        self._copying = threading.Lock()
        self._numbers = itertools.count(1)
        self._searches: dict[int, RoundSearch] = {}
        self._orders: dict[int, futures.Future[Any]] = {}
        self.wanted, self._caps = Requirements(), WeightCaps()
        self.failed_rounds = 0  # of all searches
        self.moves = 0  # grows while a download progresses
        self.turned_away = 0  # requests for the state that were rejected as busy
        self.served: futures.Future[None] = futures.Future()  # done once the process serves other peers, or cannot

    def start(self) -> int | None:
        """Fork the process, and return its ID; `served` tells when it is ready."""
        self._process.start()
        self._inner.close()  # so that the pipe ends with the process
        self._channel = Channel(self._pipe, lambda order: StateCopied(None) if isinstance(order, StateCopied) else None)
        threading.Thread(target=self._listen, args=(self._channel,), name="averager's words", daemon=True).start()
        return self._process.pid

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

    def order(self, order: StateOrder) -> futures.Future[Any]:
        """Order something on states; return a future for what the trainer wants, if anything."""
        number, future = next(self._numbers), futures.Future[Any]()
        self._orders[number] = future
        self._send(StateOrdered(number, order))
        return future

    def shutdown(self, most_s: float) -> None:
        """End the process, which gives up its rounds; kill it if that takes longer than `most_s` seconds."""
        self._send(None)
        self._process.join(most_s)
        self._process.kill()

    def _send(self, order: Order) -> None:
        assert self._channel is not None  # it has been started
        self._channel.send(order)

    def _listen(self, channel: Channel) -> None:
        while True:
            try:
                word: Word = channel.receive()
            except (EOFError, OSError):
                return
            try:
                self._take(word)
            except Exception:
                logger.warning("a word of the averager was not processed", exc_info=True)

    def _take(self, word: Word) -> None:
        match word:
            case Heard():
                self._listeners.heard(word)
            case Finding():
                self._listeners.found(word)
            case SearchUpdate():
                self._take_update(word)
            case OrderDone(number, found):
                self._orders.pop(number).set_result(found)
            case CopyWanted():
                threading.Thread(target=self._copy, name="copier", daemon=True).start()
            case TransferUpdate():
                self.moves, self.turned_away = word.moves, word.turned_away
            case Served():
                if word.fault:
                    self.served.set_exception(SwarmError(word.fault))
                else:
                    self.served.set_result(None)

    def _take_update(self, update: SearchUpdate) -> None:
        self.failed_rounds, search = update.failed_rounds, self._searches[update.number]
        search.enter(update.stage)
        if update.stage is not SearchStage.ENDED:
            return
        del self._searches[update.number]
        if search.outcome.set_running_or_notify_cancel():  # it has not been given up meanwhile
            if update.group is None:
                search.outcome.set_exception(RoundError(update.fault))
            else:
                search.outcome.set_result(update.group)

    def _copy(self) -> None:
        copied = None
        try:
            with self._copying:
                copied = self._listeners.copy()
        finally:
            self._send(StateCopied(copied))
