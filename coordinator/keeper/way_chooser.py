"""The keeper's automatic choice of the averaging mode, if enabled by the run file or an operator.

`peer.averaging.choice` makes the choice. It is applied like an operator's change, for all peers
(`coordinator.ledger.steering`). The audit log, `coordinator status` and the log give the reason.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from statistics import median

from auth.errors import ConfigError
from coordinator.ledger.steering import BY_KEEPER, LEAD_STEPS, Helm, Steersman
from coordinator.members.audit import AuditLog
from coordinator.store.engine import Database
from peer.averaging.choice import AveragingChoice, RoundPace, passes, reconsider
from peer.averaging.shares import FASTEST, GroupLines
from peer.averaging.ways import way_of, ways_of
from peer.config.run import RunConfig
from peer.config.training import Averaging
from peer.reduction.sizes import values_sent

logger = logging.getLogger(__name__)
MEASURED_STEPS = 5  # number of steps measured before the first choice
STEPS_BETWEEN = 10  # minimum number of steps between changes, and at first before a return to a more accurate mode
KEEPER_ALONE = GroupLines((None,), (True,), (True,), ())


class WayChooser:
    """A chooser of the averaging mode, based on measurements of a live run's steps."""

    def __init__(
        self, database: Database, config: RunConfig, shapes: Sequence[Sequence[int]], clock: Callable[[], float]
    ) -> None:
        """Create a chooser; `shapes` are the shapes of the tensors averaged in a round."""
        self._config = config
        self._values = cache(lambda rank: values_sent(shapes, rank))
        self._steersman = Steersman(database, config, BY_KEEPER, clock)
        self._audit = AuditLog(database, BY_KEEPER, clock)
        self._lines: deque[GroupLines] = deque(maxlen=STEPS_BETWEEN)  # connections of the newest groups
        self._batches_s: deque[float] = deque(maxlen=MEASURED_STEPS)
        self._look_at = self._return_at = 0  # steps of the next check and of the next possible return
        self._return_after = STEPS_BETWEEN  # minimum number of steps between returns; each return doubles it

    def step_taken(self, lines: GroupLines, batch_s: float) -> None:
        """Record a group's connections, and the seconds that its peers need for a batch."""
        if math.isfinite(batch_s) and batch_s > 0:
            self._lines.append(lines)
            self._batches_s.append(batch_s)

    def look(self, helm: Helm, step: int, slow_lines: Sequence[float]) -> None:
        """Change the averaging mode if a check is due and another mode is clearly better.

        `slow_lines` are the bandwidths, in bytes per second, of the volunteers on standby. If all
        are on standby, the change takes effect at once, because no further step would occur. The
        wait before a return to a more accurate mode doubles with each return, so nobody can force
        changes by alternately claiming a slow and a fast connection.
        """
        if slow_lines and self._steersman.all_stand_by():
            self._look_at_once(helm, step, slow_lines)
            return
        self._look_at = min(self._look_at, step + STEPS_BETWEEN)  # the run may have been rewound
        self._return_at = min(self._return_at, step + self._return_after)
        if step < self._look_at or len(self._batches_s) < MEASURED_STEPS or not helm.chooses(self._config):
            return
        self._look_at = step + STEPS_BETWEEN
        averaging, ways = helm.averaging_after(step + LEAD_STEPS, self._config), ways_of(self._config.averaging)
        now = way_of(averaging)
        paces = [self._pace(averaging, lines, slow_lines, median(self._batches_s)) for lines in self._lines]
        choice = reconsider(paces, ways, now, may_return=step >= self._return_at)
        if choice is None or not self._change_to(choice, None):
            return
        if now in ways and ways.index(choice.way) < ways.index(now):
            self._return_at, self._return_after = step + self._return_after, 2 * self._return_after

    def _look_at_once(self, helm: Helm, step: int, slow_lines: Sequence[float]) -> None:
        """Change the mode at once if no volunteer can use it but some can use another."""
        if not helm.chooses(self._config):
            return
        averaging = helm.averaging_after(step, self._config)
        pace = self._pace(averaging, KEEPER_ALONE, slow_lines, math.inf)
        choice = reconsider([pace], ways_of(self._config.averaging), way_of(averaging), may_return=False)
        if choice is not None:
            self._change_to(choice, step)

    def _change_to(self, choice: AveragingChoice, from_step: int | None) -> bool:
        """Change the mode at a step (None: a few steps from now); return whether it was accepted."""
        way = choice.way
        try:
            done = self._steersman.change(
                from_step, compression=way.compression, powersgd_rank=way.powersgd_rank, confirmed=True, why=choice.why
            )
        except ConfigError as error:  # too many changes are pending: the next check tries again
            logger.warning("%s is not chosen yet: %s", way, error)
            return False
        self._audit.record("steer", "", f"{done} {choice.why}")
        logger.info("%s %s", done, choice.why)
        return True

    def _pace(self, averaging: Averaging, lines: GroupLines, slow_lines: Sequence[float], batch_s: float) -> RoundPace:
        """Return the pace of a group joined by the volunteers on standby, who do not reduce.

        All trainers are assumed equally fast. Standby volunteers fit for this mode are ignored.
        """
        now, longest_s = way_of(averaging), averaging.averaging_timeout_s
        rates = [min(rate, FASTEST) for rate in slow_lines]
        waiting = [rate for rate in rates if not passes(now, self._values, rate, longest_s)]
        none = (False,) * len(waiting)
        return RoundPace(
            averaging=averaging,
            values=self._values,
            lines=replace(
                lines, rates=(*lines.rates, *waiting), reduces=(*lines.reduces, *none), trusted=(*lines.trusted, *none)
            ),
            speeds=(*(float(not is_trusted) for is_trusted in lines.trusted), *(1.0 for _ in waiting)),
            batch_s=batch_s,
            present_speed=float(lines.trusted.count(False)),
        )
