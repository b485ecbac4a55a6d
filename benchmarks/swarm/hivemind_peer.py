"""One peer of home_lines.py or scale.py that uses only hivemind: `python -m benchmarks.swarm.hivemind_peer PLAN`.

An auxiliary peer, which contributes only bandwidth, replaces the keeper. The events are the same as in home_peer.py.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import hivemind
from hivemind.averaging.control import StepControl
from hivemind.optim.grad_averager import GradientAverager

from benchmarks.swarm.home_peer import PORT, DownloadWatch, Journal, RepeatedBatches, begin, end_of_input, run_to_end
from benchmarks.swarm.homes import HIVEMIND, Plan
from peer.config.run import RunConfig
from peer.models.objectives import compute_losses
from peer.models.optimizer_setup import build_optimizer, build_scheduler, parameter_groups
from peer.reporting.messages import LostCause
from peer.runtime.processes import exit_now

ASSIST_EVERY_S = 0.2
PART_BYTES = 2**19 // 16  # hivemind's size, scaled like links and model: a part must arrive within the matchmaking time


@dataclass(frozen=True)
class Due:
    """This peer's samples in a pending averaging round."""

    step: int
    samples: int
    began_at: float


class WatchedOptimizer(hivemind.Optimizer):  # type: ignore[misc]
    """hivemind's optimizer, with a record of averaged and lost samples."""

    def __init__(self, journal: Journal, downloads: DownloadWatch, **options: Any) -> None:
        self._journal, self._downloads = journal, downloads
        self._due: dict[StepControl, Due] = {}  # a delayed round runs while further samples are computed
        self._unused = 0  # samples computed but not accumulated yet
        super().__init__(**options)

    def train_on(self, samples: int) -> None:
        """Accumulate the gradient of a microbatch of this many samples."""
        self._unused = samples
        self.step(batch_size=samples)
        self._unused = 0

    def _begin_averaging_gradients(self, grad_scaler: Any) -> bool:
        due = Due(self.local_epoch + 1, self.grad_averager.local_samples_accumulated, time.monotonic())
        began = bool(super()._begin_averaging_gradients(grad_scaler))
        if began:
            self._due[self.scheduled_grads] = due
        else:  # a peer alone in the swarm takes its own gradient as the average
            self._tell(due, int(self.tracker.global_progress.num_peers <= 1))
        return began

    def _average_gradients_and_load_into_optimizer(self, control: StepControl) -> None:
        super()._average_gradients_and_load_into_optimizer(control)
        group, is_finite = 0, True
        if control.done() and not control.cancelled() and control.exception() is None:
            group = len(control.result())
            with self.grad_averager.get_tensors() as averages:
                is_finite = all(bool(average.isfinite().all()) for average in averages)
        self._tell(self._due.pop(control), group, is_finite)

    def _tell(self, due: Due, group: int, is_finite: bool = True) -> None:
        """Record whether samples were averaged; a `group` of 0 means a step on this peer's gradient alone.

        hivemind also divides by the weight of parts that no peer sent, so an average may not be finite.
        """
        counted = due.samples if group and is_finite else 0
        took_s = time.monotonic() - due.began_at
        self._journal.say("step", step=due.step, samples=counted, group=group, seconds=took_s)
        if due.samples > counted:
            cause = LostCause.AVERAGING if is_finite else LostCause.NON_FINITE
            self._journal.say("lost", by_cause={cause.value: due.samples})

    def load_state_from_peers(self, **kwargs: Any) -> None:
        """Download another peer's state; all accumulated samples are lost."""
        lost = self.grad_averager.local_samples_accumulated + self._unused
        if lost:
            self._journal.say("lost", by_cause={LostCause.LATE.value: lost})
        self._downloads.look(True)
        super().load_state_from_peers(**kwargs)
        self._downloads.look(False)


def main() -> None:
    """Train, or assist in place of the keeper, according to the plan in the first argument."""
    plan, config, model, journal = begin()
    dht = hivemind.DHT(
        initial_peers=list(plan.initial_peers),
        host_maddrs=[f"/ip4/0.0.0.0/tcp/{PORT}"],
        announce_maddrs=None if plan.behind_nat else [f"/ip4/{plan.address}/tcp/{PORT}"],
        client_mode=plan.behind_nat,
        use_ipfs=False,
        start=True,
    )
    optimizer = open_optimizer(plan, config, model, dht, journal)
    ended = end_of_input(partial(leave, journal))
    if plan.role == "keeper":
        journal.say("addresses", addresses=[str(address) for address in dht.get_visible_maddrs()])
        while not ended.is_set():
            optimizer.step()
            time.sleep(ASSIST_EVERY_S)
    else:
        journal.say("ready", step=optimizer.local_epoch)
        train(plan, config, model, optimizer, journal)


def leave(journal: Journal) -> None:
    """Exit at once, because hivemind's step cannot be interrupted."""
    journal.say("left")
    exit_now(0)


def open_optimizer(plan: Plan, config: RunConfig, model: Any, dht: hivemind.DHT, journal: Journal) -> WatchedOptimizer:
    """Build the optimizer of the plan's system for the run's model and batches."""
    is_keeper, options = plan.role == "keeper", HIVEMIND[plan.system]
    return WatchedOptimizer(
        journal,
        DownloadWatch(journal, model),
        dht=dht,
        run_id=config.run.name,
        target_batch_size=config.averaging.target_batch_size,
        batch_size_per_step=None if is_keeper else config.data.microbatch_size,
        params=parameter_groups(model, config),
        optimizer=partial(build_optimizer, config),
        scheduler=partial(build_scheduler, config),
        client_mode=plan.behind_nat,
        auxiliary=is_keeper,
        grad_averager_factory=partial(GradientAverager, part_size_bytes=PART_BYTES),
        verbose=True,
        **{**options, "averager_opts": {**options["averager_opts"], "part_size_bytes": PART_BYTES}},
    )


def train(plan: Plan, config: RunConfig, model: Any, optimizer: WatchedOptimizer, journal: Journal) -> None:
    """Run the training loop of hivemind's quick start at the simulated device's speed."""
    for number, batch in zip(count(), RepeatedBatches(config), strict=False):
        began = time.monotonic()
        compute_losses(model, batch, config).total.backward()  # type: ignore[no-untyped-call]
        time.sleep(max(0.0, plan.seconds_per_sample * batch.samples - (time.monotonic() - began)))
        journal.count(batch.samples)
        optimizer.train_on(batch.samples)
        optimizer.zero_grad()
        journal.say("progress", step=optimizer.local_epoch, microbatch=number)


if __name__ == "__main__":
    run_to_end(main)
