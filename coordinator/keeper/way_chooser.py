"""The keeper's choice of the way to average in a live run, where the run file or an operator leaves it to the keeper.

The choice itself is `peer.averaging.choice`. It becomes a change for all peers at once, like an operator's
(`coordinator.ledger.steering`), and so it is in the beacon; the audit log, `coordinator status` and the log tell why.
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
MEASURED_STEPS = 5  # before the first choice
STEPS_BETWEEN = 10  # two looks: so often at most the way changes; and at first, before a return to a finer way
KEEPER_ALONE = GroupLines((None,), (True,), (True,), ())


class WayChooser:
    """The measured steps of a live run, and the choices made by them."""

    def __init__(
        self, database: Database, config: RunConfig, shapes: Sequence[Sequence[int]], clock: Callable[[], float]
    ) -> None:
        """`shapes`: of the tensors that a round averages."""
        self._config = config
        self._values = cache(lambda rank: values_sent(shapes, rank))
        self._steersman = Steersman(database, config, BY_KEEPER, clock)
        self._audit = AuditLog(database, BY_KEEPER, clock)
        self._lines: deque[GroupLines] = deque(maxlen=STEPS_BETWEEN)  # of the newest groups
        self._batches_s: deque[float] = deque(maxlen=MEASURED_STEPS)
        self._look_at = self._return_at = 0  # steps
        self._return_after = STEPS_BETWEEN  # steps since the last return; each one doubles it

    def step_taken(self, lines: GroupLines, batch_s: float) -> None:
        """Remember a group's lines, and in which time its peers compute a batch."""
        if math.isfinite(batch_s) and batch_s > 0:
            self._lines.append(lines)
            self._batches_s.append(batch_s)

    def look(self, helm: Helm, step: int, slow_lines: Sequence[float]) -> None:
        """Change the way to average, if it is time to look and another way is clearly better.

        `slow_lines`: bytes per second, of the volunteers that stand by. Where all do, no step would ever come: then the
        change holds at once. A return to a finer way waits twice as long as the one before it, so that nobody can make
        a run change all the time by claiming now a slow line and now a fast one.
        """
        if slow_lines and self._steersman.all_stand_by():
            self._look_at_once(helm, step, slow_lines)
            return
        self._look_at = min(self._look_at, step + STEPS_BETWEEN)  # the run has gone back to a checkpoint
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
        """Change the way for volunteers of whom none can train, if some of them could in another one."""
        if not helm.chooses(self._config):
            return
        averaging = helm.averaging_after(step, self._config)
        pace = self._pace(averaging, KEEPER_ALONE, slow_lines, math.inf)
        choice = reconsider([pace], ways_of(self._config.averaging), way_of(averaging), may_return=False)
        if choice is not None:
            self._change_to(choice, step)

    def _change_to(self, choice: AveragingChoice, from_step: int | None) -> bool:
        """Make the choice a change from this step on, or from where all will have heard; return whether it is made."""
        way = choice.way
        try:
            done = self._steersman.change(
                from_step,
                compression=way.compression,
                powersgd_rank=way.powersgd_rank,
                confirmed=True,
                why=choice.why,
            )
        except ConfigError as error:  # too many changes are to come: the next look tries again
            logger.warning("%s is not chosen yet: %s", way, error)
            return False
        self._audit.record("steer", "", f"{done} {choice.why}")
        logger.info("%s %s", done, choice.why)
        return True

    def _pace(self, averaging: Averaging, lines: GroupLines, slow_lines: Sequence[float], batch_s: float) -> RoundPace:
        """Return the pace of a group and of those who stand by, who are not counted on to reduce anything.

        All volunteers count as equally fast. A line that passes what it is said to be too slow for does not count.
        """
        now, longest_s = way_of(averaging), averaging.averaging_timeout_s
        rates = [min(rate, FASTEST) for rate in slow_lines]
        waiting = [rate for rate in rates if not passes(now, self._values, rate, longest_s)]
        none = (False,) * len(waiting)
        return RoundPace(
            averaging=averaging,
            values=self._values,
            lines=replace(
                lines,
                rates=(*lines.rates, *waiting),
                reduces=(*lines.reduces, *none),
                trusted=(*lines.trusted, *none),
            ),
            speeds=(*(float(not is_trusted) for is_trusted in lines.trusted), *(1.0 for _ in waiting)),
            batch_s=batch_s,
            present_speed=float(lines.trusted.count(False)),
        )
