"""The batches of the swarm's current phase, so that the training loop need not know of phases.

Used by `peer.training.worker`; a phase's own stream is `peer.data.batching.batches.BatchStream`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType

from peer.config.run import RunConfig
from peer.data.batching.batches import Batch, BatchStream, parts_of


class PhasedBatches:
    """An endless iterator that opens a new stream when the swarm enters a phase; close it, or use a `with` block.

    It looks at the step before each batch, so no batch of one phase is computed in another. A stream saves its place in
    the data when it is closed, and the next one goes on there.
    """

    def __init__(
        self,
        config: RunConfig,
        step: Callable[[], int],
        enter: Callable[[int], BatchStream],
        at_once: Callable[[int], int] = lambda samples: samples,
    ) -> None:
        """`at_once` tells how many of a microbatch's samples to hand out as one; the others follow."""
        self._at_once = at_once
        self._parts: Iterator[Batch] = iter(())
        self._config = config
        self._step = step
        self._enter = enter
        self._waited_s = 0.0  # for the streams that are closed
        self._open_at(step())

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        step = self._step()
        if len(self._config.at_step(step).phases) != self._phases_begun:
            self._waited_s = self.wait_s
            self._stream.close()
            self._open_at(step)
        part = next(self._parts, None)
        if part is None:
            batch = next(self._stream)
            self._parts = parts_of(batch, self._at_once(batch.samples))
            part = next(self._parts)
        return part

    @property
    def wait_s(self) -> float:
        """The seconds that the consumer has waited for batches so far."""
        return self._waited_s + self._stream.wait_s

    def _open_at(self, step: int) -> None:
        self._phases_begun = len(self._config.at_step(step).phases)
        self._stream, self._parts = self._enter(step), iter(())

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> PhasedBatches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
