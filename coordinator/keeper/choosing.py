"""The keeper's choice of the way to average in a live run, where the run file or an operator leaves it to the keeper.

The choice itself is `peer.averaging.choice`. It becomes a change for all peers at once, like an operator's
(`coordinator.ledger.steering`), and so it is in the beacon; the audit log, `coordinator status` and the log tell why.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

from auth.errors import ConfigError
from coordinator.ledger.steering import BY_KEEPER, MOST_STEP, Helm, Steersman
from coordinator.members.audit import AuditLog
from coordinator.store.engine import Database
from peer.averaging.choice import AveragingChoice, RoundPace, reconsider, way_of, ways_of
from peer.averaging.shares import NOBODY, GroupLines
from peer.config.run import RunConfig
from peer.reduction.sizes import values_sent

logger = logging.getLogger(__name__)
MEASURED_STEPS = 5  # before the first choice
STEPS_BETWEEN = 10  # two looks: so often at most the way changes


class WayChooser:
    """The measured steps of a live run, and the choices made by them."""

    def __init__(
        self, database: Database, config: RunConfig, shapes: Sequence[Sequence[int]], clock: Callable[[], float]
    ) -> None:
        """`shapes`: of the tensors that a round averages."""
        self._config, self._shapes = config, shapes
        self._steersman = Steersman(database, config, BY_KEEPER, clock)
        self._audit = AuditLog(database, BY_KEEPER, clock)
        self._lines = NOBODY  # of the newest group
        self._batches_s: deque[float] = deque(maxlen=MEASURED_STEPS)
        self._look_at = 0  # the step

    def step_taken(self, lines: GroupLines, batch_s: float) -> None:
        """Remember a group's lines, and in which time its peers compute a batch."""
        if math.isfinite(batch_s) and batch_s > 0:
            self._lines = lines
            self._batches_s.append(batch_s)

    def look(self, helm: Helm, step: int) -> None:
        """Change the way to average, if it is time to look and another way is clearly better."""
        self._look_at = min(self._look_at, step + STEPS_BETWEEN)  # the run has gone back to a checkpoint
        if step < self._look_at or len(self._batches_s) < MEASURED_STEPS or not helm.chooses(self._config):
            return
        self._look_at = step + STEPS_BETWEEN
        choice = self._choice(helm)
        if choice is None:
            return
        way = choice.way
        try:
            done = self._steersman.change(
                None,
                compression=way.compression,
                powersgd_rank=way.powersgd_rank,
                confirmed=True,
                why=choice.why,
            )
        except ConfigError as error:  # too many changes are to come: the next look tries again
            logger.warning("%s is not chosen yet: %s", way, error)
            return
        self._audit.record("steer", "", f"{done} {choice.why}")
        logger.info("%s %s", done, choice.why)

    def _choice(self, helm: Helm) -> AveragingChoice | None:
        """Return the way to which to change; None to keep the one that will be in force after all changes to come."""
        now, ways = way_of(helm.averaging_after(MOST_STEP, self._config)), ways_of(self._config.averaging)
        pace = RoundPace(
            self._config.averaging, lambda rank: values_sent(self._shapes, rank), self._lines, median(self._batches_s)
        )
        return reconsider(pace, ways, now)
