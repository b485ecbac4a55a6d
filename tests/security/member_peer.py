"""A member's peer of a manyhands swarm: an honest one, the keeper, or an insider who runs changed code.

An insider has a valid token and does everything that an honest trainer does, except for the attack that it was told to
play. What it changes is in `insider.py`; nothing of it is in the program.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from auth.clock import follow_coordinator, steady_time
from auth.credentials import Credentials
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.models.build import build_model
from peer.models.held_out import evaluate
from peer.network.placement import Placement
from peer.node import states
from peer.progress.fingerprint import sketch_of
from peer.reporting import suspicions
from peer.swarm import shared_state
from peer.swarm.swarm import Swarm
from tests.security.bad_parts import send_bad_parts
from tests.security.false_reducer import return_false_averages, show_false_inputs
from tests.security.insider import Insider, believe_less, give_false_states, lead_falsely, speak_for_many
from tests.support.peer_processes import Orders
from tests.support.swarm_peer import SPECIAL, VOCABULARY, fixed_batch

MICROBATCHES = 4  # that each trainer computes again and again, so that the loss falls
MASKED_TOKENS, FIRST_TOKEN = 8, 5
SEEDS = range(1, 3)  # of the honest
STATE_RETRY_S = 0.3
GROWS_AFTER = "grows after "  # an order, with the step after which all gradients are larger
GROWTH = 1e6  # times
DISAGREEMENT_S = 2.0  # that a keeper waits while most members confirm no state
SAME_PAUSE_S = 0.5  # each attack in its turn is to be named, by whatever name the one before was


class _ByName:
    """Chance that leaves the donors as they are named, so that a keeper asks the insider first."""

    @staticmethod
    def shuffle(_names: list[str]) -> None:
        """Draw just that order."""


@dataclass(frozen=True)
class MemberPlan:
    """What one peer is to do."""

    role: str
    config: dict[str, Any]
    credentials_dir: str
    initial_peers: list[str]
    seed: int = 1
    port: int = 0
    microbatch_s: float = 0.1
    bandwidth: float | None = None  # bytes per second, as it claims
    more_devices: tuple[str, ...] = ()  # credentials of further devices of an insider's member
    clock_ahead_s: float = 0.0  # of the coordinator's; it is set right, for this peer, when the peer joins


def microbatch(config: RunConfig, seed: int, part: int) -> Batch:
    """One of the few that the peer with this seed has; few tokens are ever masked, which is soon learnt."""
    batch = fixed_batch(config.data.microbatch_size, seed, 0, part % MICROBATCHES)
    return replace(batch, labels=batch.labels % MASKED_TOKENS + FIRST_TOKEN)


def loss_of(model: Any, config: RunConfig, seeds: range) -> float:
    """The model's mean loss on all that the peers with these seeds train on."""
    losses = [evaluate(model, microbatch(config, seed, part)) for seed in seeds for part in range(MICROBATCHES)]
    return sum(found.mlm_loss for found in losses if found is not None) / len(losses)


def run_member(plan: MemberPlan, orders: Orders) -> None:
    """Join, train or keep until stopped, leave."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    torch.set_num_threads(1)
    if plan.clock_ahead_s:
        follow_coordinator(time.time() - steady_time())
        time.time = partial(_shifted, time.time, plan.clock_ahead_s)
    config = RunConfig.from_mapping(plan.config)
    model = build_model(config, VOCABULARY, SPECIAL)
    give_false_states(orders)
    return_false_averages(orders)
    show_false_inputs(orders)
    send_bad_parts(orders)
    believe_less(orders)
    lead_falsely(orders)
    speak_for_many(orders, [Path(directory) for directory in plan.more_devices])
    suspicions.SAME_PAUSE_S, shared_state.DISAGREEMENT_S = SAME_PAUSE_S, DISAGREEMENT_S
    states.random = _ByName  # type: ignore[assignment]
    swarm = Swarm.join(
        config=config,
        model=model,
        credentials=Credentials(Path(plan.credentials_dir)),
        initial_peers=plan.initial_peers,
        place=Placement(host_maddrs=(f"/ip4/127.0.0.1/tcp/{plan.port}",), bandwidth=plan.bandwidth),
        on_suspicion=lambda suspicion: orders.say("suspicion", **asdict(suspicion)),
    )
    while plan.role != "keeper" and not swarm.download():
        orders.stop.wait(STATE_RETRY_S)
    Insider(swarm, orders)
    backend, part = TorchBackend(config, model), 0
    orders.say("joined", addresses=swarm.addresses, step=swarm.step)
    while not orders.stop.wait(plan.microbatch_s):
        if plan.role == "trainer":
            result = backend.accumulate(microbatch(config, plan.seed, part))
            part += 1
            swarm.begin_training()
            swarm.add(result.samples)
        outcome = swarm.advance(backend.collect)
        if outcome is not None:
            backend.synchronize()
            with swarm.training.lock:
                orders.say(
                    "step", **asdict(outcome), sketch=sketch_of(model.parameters()), loss=loss_of(model, config, SEEDS)
                )
        if orders.told == "another state":
            _hold_another_state(swarm, plan.seed)
            orders.told = ""
        elif orders.told.startswith(GROWS_AFTER):
            grows_after = int(orders.told.removeprefix(GROWS_AFTER))
            _let_gradients_grow(model, swarm, grows_after)
            orders.told = ""
            orders.say("grows", after=grows_after)
    swarm.leave()


def _shifted(clock: Callable[[], float], ahead_s: float) -> float:
    return clock() + ahead_s


def _let_gradients_grow(model: torch.nn.Module, swarm: Swarm, step: int) -> None:
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * (GROWTH if swarm.step >= step else 1.0))


def _hold_another_state(swarm: Swarm, seed: int) -> None:
    """Go on from other parameters than all others, as after a round that did not bring everybody the same."""
    with swarm.training.lock, torch.no_grad():
        for parameter in swarm.training.parameters:
            parameter.mul_(1 + seed / 100)
