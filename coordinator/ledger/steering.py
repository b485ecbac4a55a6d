"""Steering of a live run: operators' commands, one row each, and the resulting settings.

The keeper publishes the settings in its beacon (`peer.config.steering`), so all peers apply them at
the same step. Announcements are sent over the sessions (`coordinator.control.news`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from auth.errors import ConfigError, UnconfirmedError
from coordinator.ledger.sessions import is_online
from coordinator.store.engine import Database
from coordinator.store.ledger_models import SteeringAct
from coordinator.store.models import Device, DeviceSession, Step, SwarmStatus
from peer.config.run import RunConfig
from peer.config.steering import MAX_CHANGES, MOST_SCALE, RANKS, Change, Steering, in_force
from peer.config.training import Averaging, Compression
from peer.reduction.sizes import VALUE_BYTES

Act = Literal["pause", "resume", "stop", "change", "announce"]
LEAD_STEPS = 3  # minimum number of steps before a change takes effect, so that every peer receives it in time
FAR = 10.0  # a change by more than this factor, up or down, must be confirmed
MANY_BYTES = 3.0  # a change that multiplies a round's bytes by more than this must be confirmed
MAX_ANNOUNCEMENT_CHARS = 500
MOST_STEP = 2**40
AUTO = "auto"  # compression chosen by the keeper
OFFERED: tuple[str, ...] = (*get_args(Compression), AUTO)
BY_KEEPER = "run:keeper"  # actor name for the keeper's own choices


@dataclass(frozen=True)
class Announcement:
    """A message to all volunteers."""

    id: int
    at: float  # Unix time in seconds
    text: str


@dataclass(frozen=True)
class Orders:
    """The settings that steering has changed, in effect from a given step."""

    from_step: int
    learning_rate_scale: float = 1.0
    target_batch_size: int | None = None  # None for the run file's value
    checkpoint_every: int | None = None  # interval in steps; None for the run file's value
    compression: str | None = None  # None for the run file's value
    powersgd_rank: int | None = None  # None for the run file's value

    @property
    def change(self) -> Change:
        """The settings that peers apply."""
        return Change.model_validate({name: getattr(self, name) for name in Change.model_fields})


# Settings that a change can include.
CHANGED = tuple(field.name for field in fields(Orders) if field.name != "from_step")


@dataclass(frozen=True)
class Helm:
    """The combined result of all steering commands."""

    orders: tuple[Orders, ...] = ()  # sorted by step
    paused: bool = False
    last_step: int | None = None
    is_automatic: bool | None = None  # True if the keeper chooses the compression; None to use the run file's choice
    why: str = ""  # reason for the keeper's choice; "" after an operator's choice

    def chooses(self, config: RunConfig) -> bool:
        """Return whether commands, or else the run file, let the keeper choose the compression."""
        return config.averaging.compression == AUTO if self.is_automatic is None else self.is_automatic

    def at(self, step: int) -> Orders:
        """Return the settings in effect after `step` steps."""
        past = [order for order in self.orders if order.from_step <= step]
        return past[-1] if past else Orders(from_step=0)

    def batch_after(self, step: int, config: RunConfig) -> int:
        """Return the target batch size after `step` steps: the operator's, or else the phase's."""
        return self.at(step).target_batch_size or config.at_step(step).averaging.target_batch_size

    def averaging_after(self, step: int, config: RunConfig) -> Averaging:
        """Return the averaging settings after `step` steps, with the changes then in effect."""
        return self.at(step).change.averaging(config.averaging)

    def beacon(self, step: int) -> Steering:
        """Return the changes, pause and last step for the beacon at `step`."""
        changes = [order.change for order in self.orders]
        return Steering(changes=in_force(changes, step), paused=self.paused, last_step=self.last_step)


@dataclass(frozen=True)
class PresentValues:
    """The settings in effect at a step and the number of online trainers, for checking a change."""

    learning_rate_scale: float
    target_batch_size: int
    checkpoint_every: int
    microbatch_size: int
    trainers: int
    compression: str = "float16"
    powersgd_rank: int = 0

    def consequences(
        self, scale: float | None, target: int | None, every: int | None, compression: str | None, rank: int | None
    ) -> list[str]:
        """Return warnings about the effects of a change; the list is empty for a small change."""
        found = []
        if (times := _far(scale, self.learning_rate_scale)) is not None:
            if times > 1:
                found.append(f"The next steps would be {times:,g} times as long as now: the loss most likely diverges.")
            else:
                found.append(f"The next steps would be {1 / times:,g} times as short as now: training nearly stops.")
        if target is not None:
            found += self._consequences_of_batch(target)
        if (times := _far(every, self.checkpoint_every)) is not None:
            found.append(
                f"Steps between two checkpoints would be {every:,} instead of {self.checkpoint_every:,}: "
                + ("all since the last one can be lost." if times > 1 else "the keeper's disk may not keep up.")
            )
        return found + self._consequences_of_code(compression, rank)

    def _consequences_of_code(self, compression: str | None, rank: int | None) -> list[str]:
        rank = self.powersgd_rank if rank is None else rank
        if self.powersgd_rank and not rank:
            return ["Each round would send whole gradients in place of their factors, which are many times smaller."]
        bytes_of = {str(name): size for name, size in VALUE_BYTES.items()}
        times = bytes_of[compression or self.compression] / bytes_of[self.compression]
        if self.powersgd_rank:
            times *= rank / self.powersgd_rank
        if times < MANY_BYTES:
            return []
        return [f"Each round would send about {times:.0f} times the bytes: slow lines may not pass them in time."]

    def _consequences_of_batch(self, target: int) -> list[str]:
        times = _far(target, self.target_batch_size)
        if times is not None and times > 1:
            return [f"Each step would take {times:,g} times the samples and the time, with the same learning rate."]
        if target < min(self.trainers, self.target_batch_size):
            return [
                f"A target batch of {target:,} is below the {self.trainers:,} devices that train now: "
                "most of their samples would come too late and be lost."
            ]
        if times is not None or target < min(self.microbatch_size, self.target_batch_size):
            return [
                f"Each step would average {target:,} instead of {self.target_batch_size:,} samples: "
                "gradients become noise, and the loss most likely rises."
            ]
        return []


def _far(wanted: float | None, now: float) -> float | None:
    """Return the ratio of the new value to the current one, or None if within a factor of `FAR`."""
    if wanted is None or now / FAR <= wanted <= now * FAR:
        return None
    return float(f"{wanted / now:.3g}")


def helm_of(session: Session) -> Helm:
    """Return the combined result of all commands; a change keeps the settings it does not mention."""
    acts = session.scalars(select(SteeringAct).where(SteeringAct.act != "announce").order_by(SteeringAct.id)).all()
    holds = [act for act in acts if act.act in ("pause", "resume")]
    ends = [act for act in acts if act.act == "stop"]
    codes = [act for act in acts if act.compression is not None or act.powersgd_rank is not None]
    named = [act.compression for act in codes if act.actor != BY_KEEPER]
    return Helm(
        orders=_summed(act for act in acts if act.act == "change"),
        paused=bool(holds) and holds[-1].act == "pause",
        last_step=ends[-1].step if ends else None,
        is_automatic=named[-1] == AUTO if named else None,
        why=codes[-1].text if codes and codes[-1].actor == BY_KEEPER else "",
    )


def _summed(changes: Iterable[SteeringAct]) -> tuple[Orders, ...]:
    orders: dict[int, Orders] = {}
    now = Orders(from_step=0)
    for change in sorted(changes, key=lambda act: (act.step or 0, act.id)):
        values = {name: getattr(change, name) for name in CHANGED}
        named = {name: value for name, value in values.items() if value is not None and value != AUTO}
        now = replace(now, from_step=change.step or 0, **named)
        orders[now.from_step] = now
    return tuple(orders.values())


def undo_choices(session: Session, after_step: int) -> None:
    """Delete the keeper's choices for steps after `after_step`, on a rewind to a checkpoint."""
    is_choice = (SteeringAct.act == "change") & (SteeringAct.actor == BY_KEEPER)
    session.execute(delete(SteeringAct).where(is_choice, SteeringAct.step > after_step))


def read_helm(database: Database) -> Helm:
    """Return the current and scheduled settings."""
    with database() as session:
        return helm_of(session)


def announcements(database: Database, after: int = 0, since: float = 0.0) -> list[Announcement]:
    """Return announcements with ids above `after`, made at or after `since`, oldest first."""
    wanted = select(SteeringAct).where(SteeringAct.act == "announce", SteeringAct.id > after, SteeringAct.at >= since)
    with database() as session:
        return [Announcement(row.id, row.at, row.text) for row in session.scalars(wanted.order_by(SteeringAct.id))]


class Steersman:
    """A writer of steering commands; methods return a confirmation or raise `ConfigError`."""

    def __init__(self, database: Database, config: RunConfig, actor: str, clock: Callable[[], float]) -> None:
        self._database, self._config, self._actor, self._clock = database, config, actor, clock

    def pause(self) -> str:
        """Pause training for all peers."""
        self._act("pause", lambda session: _require_hold(session, not_yet=True))
        return "Paused: no peer trains until you resume."

    def resume(self) -> str:
        """Resume training for all peers."""
        self._act("resume", lambda session: _require_hold(session, not_yet=False))
        return "The run goes on."

    def stop_at(self, step: int | None) -> str:
        """End the run at `step`, or let the run continue indefinitely if `step` is None."""
        if step is None:
            self._act("stop")
            return "The run does not end by itself."

        def check(session: Session) -> int:
            reached = _reached(session)
            if not reached <= step <= MOST_STEP:
                raise ConfigError(f"The run has reached step {reached}: it can end with that one or a later one.")
            return step

        self._act("stop", check)
        return f"The run ends with step {step}: volunteers leave in order then, and a last checkpoint is written."

    def change(
        self,
        from_step: int | None,
        *,
        learning_rate_scale: float | None = None,
        target_batch_size: int | None = None,
        checkpoint_every: int | None = None,
        compression: str | None = None,
        powersgd_rank: int | None = None,
        confirmed: bool = False,
        why: str = "",
    ) -> str:
        """Change settings from a step on; the default step leaves peers time to receive the change.

        If all volunteers are on standby because their connections are slow, the default is the
        current step, because no further step would occur. The keeper knows the current step exactly
        and may specify any step. `compression="auto"` lets the keeper choose until an operator sets
        a compression or a rank; `why` is the reason for a choice by the keeper.

        Raises `UnconfirmedError` for a large change without confirmation.
        """
        values = {
            "learning_rate_scale": learning_rate_scale,
            "target_batch_size": target_batch_size,
            "checkpoint_every": checkpoint_every,
            "compression": compression,
            "powersgd_rank": powersgd_rank,
        }
        self._require_sound(learning_rate_scale, target_batch_size, checkpoint_every)
        self._require_code(compression, powersgd_rank, from_step)
        if all(value is None for value in values.values()):
            raise ConfigError(
                "Say what to change: the learning rate's scale, the target batch, how often to write, the compression, "
                "or PowerSGD's rank."
            )

        def check(session: Session) -> int:
            first = _reached(session) + (0 if self._all_stand_by(session) else LEAD_STEPS)
            begin = first if from_step is None else from_step
            if self._actor != BY_KEEPER and not first <= begin <= MOST_STEP:
                raise ConfigError(f"A change can begin at step {first}, not before: every peer must hear of it first.")
            helm = helm_of(session)
            # An operator may have chosen a compression since the keeper's last check.
            if self._actor == BY_KEEPER and not helm.chooses(self._config):
                raise ConfigError("An operator has ended the keeper's choice.")
            to_come = {order.from_step for order in helm.orders if order.from_step >= first}
            if len(to_come | {begin}) >= MAX_CHANGES:
                raise ConfigError(f"{MAX_CHANGES - 1} changes are to come already: wait for the next of them.")
            code = None if compression == AUTO else compression
            found = self._present_values(session, begin).consequences(
                learning_rate_scale, target_batch_size, checkpoint_every, code, powersgd_rank
            )
            if found and not confirmed:
                raise UnconfirmedError(" ".join(found))
            return begin

        begin = self._act("change", check, text=why, **values)
        named = [
            f"{name.replace('_', ' ')} {value if isinstance(value, str) else f'{value:g}'}"
            for name, value in values.items()
            if value is not None and value != AUTO
        ]
        said = [f"From step {begin} on: {', '.join(named)}."] if named else []
        return " ".join([*said, *(["The keeper chooses the way to average."] if compression == AUTO else [])])

    def all_stand_by(self) -> bool:
        """Return whether at least one volunteer is online and all of them are on standby."""
        with self._database() as session:
            return self._all_stand_by(session)

    def _all_stand_by(self, session: Session) -> bool:
        states = select(DeviceSession.state).join(DeviceSession.device)
        present = set(session.scalars(states.where(is_online(self._clock()), Device.role == "trainer")))
        return present == {"standby"}

    def announce(self, text: str) -> str:
        """Send a message to all volunteers."""
        text = " ".join(text.split())
        if not 0 < len(text) <= MAX_ANNOUNCEMENT_CHARS or not text.isprintable():
            raise ConfigError(f"An announcement is one line of 1 to {MAX_ANNOUNCEMENT_CHARS} characters.")
        self._act("announce", text=text)
        return "All who are connected are told now, others when they come within a day."

    def _present_values(self, session: Session, step: int) -> PresentValues:
        """Return the settings in effect after `step` steps and the number of online trainers."""
        helm = helm_of(session)
        averaging = helm.averaging_after(step, self._config)
        online = select(func.count()).select_from(DeviceSession).join(DeviceSession.device)
        return PresentValues(
            learning_rate_scale=helm.at(step).learning_rate_scale,
            target_batch_size=helm.batch_after(step, self._config),
            checkpoint_every=helm.at(step).checkpoint_every or self._config.checkpoints.every_steps,
            microbatch_size=self._config.data.microbatch_size,
            trainers=session.scalar(online.where(is_online(self._clock()), Device.role == "trainer")) or 0,
            compression=averaging.wire_format,
            powersgd_rank=averaging.powersgd_rank,
        )

    def _require_sound(self, scale: float | None, target: int | None, every: int | None) -> None:
        if scale is not None and not (math.isfinite(scale) and 0 < scale <= MOST_SCALE):
            raise ConfigError(f"The learning rate's scale must be above 0 and at most {MOST_SCALE:g}.")
        if target is not None and not 1 <= target < 2**31:
            raise ConfigError("The target batch must be a positive number of samples.")
        if target is not None and self._config.averaging.local_steps > 1:
            raise ConfigError("With local steps the target batch stays: it follows from how many each peer takes.")
        if every is not None and not 1 <= every < 2**31:
            raise ConfigError("Checkpoints are written every so many steps, at least one.")

    def _require_code(self, compression: str | None, rank: int | None, from_step: int | None) -> None:
        if compression is None and rank is None:
            return
        if compression is not None and compression not in OFFERED:
            raise ConfigError(f"The compression is one of {', '.join(OFFERED)}.")
        if compression == AUTO and rank is not None:
            raise ConfigError("The keeper chooses PowerSGD's rank, too (auto): name no rank.")
        if compression == AUTO and from_step is not None:
            raise ConfigError("The keeper chooses from now on (auto): name no step.")
        if rank is not None and rank not in RANKS:
            raise ConfigError(f"PowerSGD's rank is one of {', '.join(map(str, RANKS))}; 0 averages without factors.")
        if rank and self._config.averaging.aggregation == "centered_clipping":
            raise ConfigError(
                "`aggregation` (centered_clipping) is for gradients that are averaged as they are: no rank."
            )

    def _act(
        self, act: Act, check: Callable[[Session], int | None] = lambda _session: None, text: str = "", **values: Any
    ) -> int | None:
        """Store a command unless `check` raises; return the step that `check` returned for it."""

        def write(session: Session) -> int | None:
            step, now = check(session), self._clock()
            session.add(SteeringAct(at=now, actor=self._actor, act=act, step=step, text=text, **values))
            return step

        return self._database.transact(write)


def _require_hold(session: Session, *, not_yet: bool) -> None:
    if helm_of(session).paused == not_yet:
        raise ConfigError("The run is paused already." if not_yet else "The run is not paused.")


def _reached(session: Session) -> int:
    """Return the swarm's current step, the higher of the keeper's and the ledger's."""
    told = session.scalar(select(SwarmStatus.step)) or 0
    return max(told, session.scalar(select(func.max(Step.step))) or 0)
