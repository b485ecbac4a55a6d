"""One source as a stream that is read ahead in a thread, so that nobody waits for a source that is in trouble.

`peer.data.sources.documents` mixes several of them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from peer.data.sources.faults import Pauses
from peer.data.sources.reader import Block, Position, SourcePlan, SourceReader, Trouble

CHECK_S = 0.1  # how often who waits looks whether that is still worth it
CLOSING_S = 1.0  # a thread that waits for the network longer ends by itself, later
START: Position = {"epoch": 0, "block": 0, "turn": 0, "state": None, "units": None, "size": None, "index": 0}


class SourceStream:
    """Documents without end, and what keeps them from coming.

    Three blocks are in memory at most: the one in use, the next, and one that waits for room.
    """

    def __init__(
        self, plan: SourcePlan, position: Position | None, report: Callable[[str], None], pauses: Pauses
    ) -> None:
        self._position = START if position is None else position
        self._block: Block | None = None
        self._index = 0  # in the block
        self._blocks: queue.Queue[Block] = queue.Queue(1)
        self._pauses = pauses
        self._crash: BaseException | None = None
        self.trouble: Trouble | None = None
        self.has_given = position is not None  # in this session or an earlier one
        reader = SourceReader(plan, position, self._deliver, self._note, report, pauses)
        self._thread = threading.Thread(target=self._read, args=(reader,), name="source", daemon=True)
        self._thread.start()

    def take(self) -> str | None:
        """The next document; None as long as the source is in trouble."""
        while True:
            documents = () if self._block is None else self._block.documents
            for index in range(self._index, len(documents)):
                document = documents[index]
                if document is not None:
                    self._index = index + 1
                    return document
            if not self._next_block():
                return None

    @property
    def epoch(self) -> int:
        """The number of times that everything was read."""
        return int(self._position["epoch"])

    def position(self) -> Position:
        """Return the position of the next document."""
        return self._position if self._block is None else {**self._position, "index": self._index}

    def is_ready(self) -> bool:
        """Whether `take` has a document, or will wait for one."""
        in_hand = self._block is not None and self._index < len(self._block.documents)
        return in_hand or self.trouble is None or not self._blocks.empty() or self._crash is not None

    def close(self) -> None:
        """Wait for the thread, but not for the network; the pauses are closed before."""
        self._thread.join(CLOSING_S)

    def _next_block(self) -> bool:
        while True:
            try:
                block = self._blocks.get(block=self.trouble is None, timeout=CHECK_S)
            except queue.Empty:
                if self._crash is not None:
                    raise self._crash from None
                if self.trouble is not None:
                    return False
                self._pauses(0)
                continue
            place = block.place
            self._position = {
                "epoch": place.epoch,
                "block": place.block,
                "turn": place.turn,
                "state": place.state,
                "units": block.units,
                "size": len(block.documents),
                "index": 0,
            }
            self._block, self._index = block, block.begin
            return True

    def _read(self, reader: SourceReader) -> None:
        try:
            reader.run()
        except BaseException as error:  # noqa: BLE001 - raised again where the consumer stands
            self._crash = error

    def _deliver(self, block: Block) -> None:
        self.has_given, self.trouble = True, None
        while True:
            try:
                return self._blocks.put(block, timeout=CHECK_S)
            except queue.Full:
                self._pauses(0)

    def _note(self, trouble: Trouble) -> None:
        self.trouble = trouble
