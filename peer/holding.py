"""A trainer that waits while the run is paused: its microbatches come when the operator lets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from peer.trainer import Batches

if TYPE_CHECKING:
    from peer.data.batches import Batch

POLL_S = 0.5


class HeldBatches:
    """The same microbatches, none of them while `is_held`; whoever is told to stop gets the next at once."""

    def __init__(
        self,
        batches: Batches,
        is_held: Callable[[], bool],
        wait: Callable[[float], bool],
        tell: Callable[[str], None],
    ) -> None:
        """`wait` sleeps so many seconds and says whether to stop; `tell` tells the person at the terminal."""
        self._batches, self._is_held, self._wait, self._tell = batches, is_held, wait, tell

    @property
    def wait_s(self) -> float:
        """How long the text kept its reader waiting; a pause is not the text's doing."""
        return self._batches.wait_s

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            if self._is_held():
                self._hold()
            yield batch

    def _hold(self) -> None:
        self._tell("The operator has paused the run: waiting.")
        while self._is_held():
            if self._wait(POLL_S):
                return
        self._tell("The run goes on.")
