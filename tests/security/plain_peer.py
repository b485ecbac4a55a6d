"""A peer of plain hivemind, as its documentation shows it (`hivemind.Optimizer`, a small model), and who attacks it.

Used by `test_plain_hivemind.py`, which shows what each attack does where nobody is checked.
"""

from __future__ import annotations

import multiprocessing as mp
import time
from dataclasses import dataclass, field

import hivemind
import torch
from hivemind.optim.progress_tracker import ProgressTracker

from tests.security.processes import Orders
from tests.support.waiting import PATIENCE_S

RUN = "plain"
TARGET = 1000  # samples: more than the honest peers compute while a test watches
MICROBATCH = 4
MICROBATCH_S = 0.1
POISON = 777.0
BOMB = 10**9
CLAIMED = 10**6
FEATURES = 8


@dataclass(frozen=True)
class PlainPlan:
    """What one peer is to do."""

    initial_peers: list[str] = field(default_factory=list)
    seed: int = 0


def make_optimizer(dht: hivemind.DHT, model: torch.nn.Module) -> hivemind.Optimizer:
    """hivemind's optimizer in its default form; only its waiting times are shortened."""
    return hivemind.Optimizer(
        dht=dht,
        run_id=RUN,
        target_batch_size=TARGET,
        batch_size_per_step=MICROBATCH,
        params=model.parameters(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        matchmaking_time=1.0,
        averaging_timeout=5.0,
        tracker_opts={"max_refresh_period": 0.5, "default_refresh_period": 0.5},
        averager_opts={"request_timeout": 0.5},
    )


def start_dht(plan: PlainPlan) -> hivemind.DHT:
    """A node of the plain swarm."""
    mp.set_start_method("fork", force=True)
    return hivemind.DHT(
        initial_peers=plan.initial_peers, start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"], startup_timeout=PATIENCE_S
    )


def run_honest(plan: PlainPlan, orders: Orders) -> None:
    """Train until stopped; say after each microbatch where this peer and, as it believes, the swarm stand."""
    torch.manual_seed(0)
    model, dht = torch.nn.Linear(FEATURES, 1), start_dht(plan)
    optimizer = make_optimizer(dht, model)
    if plan.initial_peers:
        optimizer.load_state_from_peers()
    orders.say("joined", addresses=[str(address) for address in dht.get_visible_maddrs()])
    generator = torch.Generator().manual_seed(plan.seed)
    computed = 0
    while not orders.stop.is_set():
        features = torch.randn(MICROBATCH, FEATURES, generator=generator)
        loss = (model(features).squeeze() - features.sum(dim=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        computed += MICROBATCH
        orders.say(
            "microbatch",
            computed=computed,
            step=optimizer.local_epoch,
            swarm_step=optimizer.tracker.global_epoch,
            peers=optimizer.tracker.global_progress.num_peers,
            accumulated=optimizer.tracker.local_progress.samples_accumulated,
            bias=float(model.bias),
        )
        time.sleep(MICROBATCH_S)


def run_claimant(plan: PlainPlan, orders: Orders) -> None:
    """A node that trains nothing and reports what it was told to claim, with a key that nobody knows."""
    tracker = ProgressTracker(start_dht(plan), prefix=RUN, target_batch_size=TARGET, client_mode=False, start=True)
    orders.say("joined")
    while not orders.stop.wait(0.2):
        if orders.attack == "inflation":
            tracker.report_local_progress(tracker.global_epoch, CLAIMED)
        elif orders.attack == "step bomb":
            tracker.report_local_progress(BOMB, 1)


def run_donor(plan: PlainPlan, orders: Orders) -> None:
    """A peer that claims the highest priority as a donor and offers parameters of its own making."""
    model, dht = torch.nn.Linear(FEATURES, 1), start_dht(plan)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(POISON)
    optimizer = make_optimizer(dht, model)
    optimizer.state_averager.local_epoch = optimizer.tracker.global_epoch
    optimizer.state_averager.state_sharing_priority = float(BOMB)
    orders.say("joined")
    orders.stop.wait()
