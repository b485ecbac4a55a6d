"""The exchange of records: publishes one peer's record in the DHT, and reads those of all peers.

`peer.progress.tracker` decides when, and evaluates what was read.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from auth.swarm.authorizer import checked_token
from auth.swarm.directory import SwarmAccess
from auth.tokens import AccessToken
from peer.progress.records import read_records
from peer.progress.tracker import StepTracker
from peer.progress.view import GREETING_PERIOD_S
from peer.swarm.messages import Greeting, RecordPut, RecordsWanted
from peer.swarm.node_process import NodeProcess

logger = logging.getLogger(__name__)
ANSWER_S = 10.0  # longest wait for the storage of a record
RETRY_S, MOST_PAUSE_S = 1.0, 15.0  # shortest and longest pause after a failure


class RecordExchange:
    """Two threads, one that reads and one that publishes."""

    def __init__(
        self,
        node: NodeProcess,
        access: SwarmAccess,
        tracker: StepTracker,
        keeper_ids: Sequence[str],
        expiration_s: float,
    ) -> None:
        """Set up the exchange; `expiration_s`: lifetime of a record."""
        self._node, self._access, self._tracker, self._expiration_s = node, access, tracker, expiration_s
        self._keeper_ids, self._keeper_addresses = tuple(keeper_ids), tuple[str, ...]()
        self._greeted_at = -math.inf
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._due = [threading.Event(), threading.Event()]
        tracker.on_due = self._wake

    def start(self) -> None:
        """Publish this peer's record and read all records once, then go on in the background."""
        _succeeds(self.publish)
        _succeeds(self._read)
        for name, due, due_in_s, act in (
            ("reader", self._due[0], lambda: self._tracker.look_in_s, self._read),
            ("publisher", self._due[1], lambda: self._tracker.publish_in_s, self.publish),
        ):
            thread = threading.Thread(target=self._repeat, args=(due, due_in_s, act), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, timeout_s: float) -> None:
        """Stop, and announce that others need not wait for this peer."""
        self._ended.set()
        self._wake()
        for thread in self._threads:
            thread.join(timeout_s)
        self._tracker.leave()
        _succeeds(self.publish)

    def publish(self) -> None:
        """Store this peer's record now. Raises `SwarmError` or `TimeoutError`, or `OSError` if no node accepts it."""
        record = self._tracker.publication()
        try:
            order = RecordPut(record.pack(), record.time + self._expiration_s)
            if not self._node.order(order).result(ANSWER_S):
                raise OSError("no node accepts this peer's record")
        except BaseException:
            self._tracker.not_published()
            raise

    def keeper_at(self, addresses: Iterable[str]) -> None:
        """Set the current addresses of the keeper."""
        self._keeper_addresses = tuple(addresses)
        self._keeper_ids = peer_ids_of(self._keeper_addresses)
        self._tracker.keepers_are(self._keeper_ids)
        self._greeted_at = -math.inf

    def _wake(self) -> None:
        for due in self._due:
            due.set()

    def _repeat(self, due: threading.Event, due_in_s: Callable[[], float], act: Callable[[], object]) -> None:
        pause_s = RETRY_S
        while not self._ended.is_set():
            due.clear()
            if (left_s := due_in_s()) > 0:
                due.wait(left_s)
            elif _succeeds(act):
                pause_s = RETRY_S
            else:
                self._ended.wait(pause_s)
                pause_s = min(2 * pause_s, MOST_PAUSE_S)

    def _read(self) -> None:
        self._tracker.look_begins()
        try:
            found = self._node.order(RecordsWanted()).result()
            self._tracker.look(read_records(found, self._check))
        except BaseException:
            self._tracker.look_now()
            raise
        if not self._tracker.view.keepers:
            self._greet_lost_keeper()

    def _greet_lost_keeper(self) -> None:
        """Ping a keeper that is not visible, because a restarted keeper knows no peers."""
        if self._keeper_ids and time.monotonic() > self._greeted_at + GREETING_PERIOD_S:
            self._greeted_at = time.monotonic()
            self._node.order(Greeting(self._keeper_addresses, self._keeper_ids))

    def _check(self, jwt: str) -> AccessToken | None:
        return checked_token(self._access.credentials, jwt, self._access.clock())


def _succeeds(act: Callable[[], object]) -> bool:
    """Read or publish; return whether that succeeded."""
    try:
        act()
    except Exception as error:  # noqa: BLE001 - fault boundary: the node reports any error of hivemind
        logger.info("records are not exchanged: %r", error)
        return False
    return True


def peer_ids_of(addresses: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct peer IDs in these libp2p multiaddresses."""
    return tuple(dict.fromkeys(address.rpartition("/p2p/")[2] for address in addresses))
