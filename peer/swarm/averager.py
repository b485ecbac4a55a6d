"""The averager, as the trainer's process sees it: a forked process, which gets orders and answers in words.

The two processes share only the averaged tensors and counters of traffic. What the averager does is
in `peer.swarm.averager_loop`.
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
from peer.averaging.meetings import Heard, Requirements
from peer.averaging.rounds import RoundError, RoundSearch, SearchStage
from peer.node.states import StateCopy, StateOrder
from peer.reduction.findings import Finding
from peer.reduction.guard import WeightCaps
from peer.swarm.averager_loop import AveragerParts, serve
from peer.swarm.messages import (
    CopyWanted,
    GivenUp,
    Loaded,
    Order,
    OrderDone,
    SearchNews,
    Served,
    Sought,
    StateCopied,
    StateOrdered,
    TransferNews,
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
        self._sending, self._copying = threading.Lock(), threading.Lock()
        self._numbers = itertools.count(1)
        self._searches: dict[int, RoundSearch] = {}
        self._orders: dict[int, futures.Future[Any]] = {}
        self.wanted = Requirements()
        self.failed_rounds = 0  # of all searches
        self.moves = 0  # grows while a download progresses
        self.turned_away = 0  # requests for the state that were rejected as busy
        self.served: futures.Future[None] = futures.Future()  # done once other peers can reach this one

    def start(self) -> int | None:
        """Fork the process, and return its ID; `served` tells when it is ready."""
        self._process.start()
        self._inner.close()  # so that the pipe ends with the process
        threading.Thread(target=self._listen, name="averager's words", daemon=True).start()
        return self._process.pid

    def want(self, wanted: Requirements) -> None:
        """Set the requirements for this search or the next one."""
        if wanted != self.wanted:
            self.wanted = wanted
            self._send(wanted)

    def cap(self, by_peer: Mapping[str, float], newcomers: float) -> None:
        """Limit the weights of this peer's reductions (peer ID -> samples); `newcomers`: of every other device."""
        self._send(WeightCaps(by_peer, newcomers))

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
        if search.cancel():
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
        with self._sending:
            try:
                self._pipe.send(order)
            except OSError as error:  # `NodeWatch` reports the loss of the process
                logger.info("an order did not reach the averager: %s", error)

    def _listen(self) -> None:
        while True:
            try:
                word: Word = self._pipe.recv()
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
            case SearchNews():
                self._take_news(word)
            case OrderDone(number, found):
                self._orders.pop(number).set_result(found)
            case CopyWanted():
                threading.Thread(target=self._copy, name="copier", daemon=True).start()
            case TransferNews():
                self.moves, self.turned_away = self.moves + 1, word.turned_away
            case Served():
                if word.fault:
                    self.served.set_exception(SwarmError(word.fault))
                else:
                    self.served.set_result(None)

    def _take_news(self, news: SearchNews) -> None:
        self.failed_rounds, search = news.failed_rounds, self._searches[news.number]
        search.enter(news.stage)
        if news.stage is not SearchStage.ENDED:
            return
        del self._searches[news.number]
        if search.set_running_or_notify_cancel():  # it has not been given up meanwhile
            if news.group is None:
                search.set_exception(RoundError(news.fault))
            else:
                search.set_result(news.group)

    def _copy(self) -> None:
        copied = None
        try:
            with self._copying:
                copied = self._listeners.copy()
        finally:
            self._send(StateCopied(copied))
