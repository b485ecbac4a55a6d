"""One real peer of a real swarm, in a process of its own (peer_processes.py).

An order is the number of its new last step. The data is made up and fixed by (seed, step, part), so that a plain
process can repeat what the swarm did.
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from auth.credentials import Credentials
from peer.backends.devices import StartBackend, choose_backend
from peer.backends.local_steps import own_model, with_local_steps
from peer.backends.replicas import ReplicaBackend
from peer.config.run import RunConfig
from peer.config.steering import Change, Steering
from peer.data.batching.batches import Batch
from peer.data.tokenization.special_tokens import SpecialIds
from peer.models.build import build_model
from peer.network.placement import Placement
from peer.network.traffic import Traffic
from peer.swarm.swarm import Swarm
from tests.support.peer_processes import Orders

VOCABULARY = 120
SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
MASKED_PER_SAMPLE = 3
LENGTH = 16


@dataclass(frozen=True)
class Plan:
    """What one peer is to do."""

    role: str  # "keeper" or "trainer"
    config: dict[str, Any]
    credentials_dir: str
    initial_peers: list[str]
    seed: int = 0
    microbatches_per_step: int | None = None  # exactly so many, then wait; None: as many as there is time for
    last_step: int | None = None  # say so once this step is done, and wait to be stopped or told of a later one
    microbatch_s: float = 0.0  # pretend that each takes so long
    spoil_after_step: int | None = (
        None  # once this step is averaged, or a later one: change the parameters, as a fault would
    )
    device: str = "cpu"  # or "jax", or "replicas" on three CPU devices that stand for GPUs
    client_mode: bool = False
    port: int = 0  # to listen on; 0: any
    changes: list[dict[str, Any]] = field(default_factory=list)  # of the operator's, which the keeper tells all
    parameters_file: str = ""  # written on leaving


def fixed_batch(samples: int, seed: int, step: int, part: int, length: int = LENGTH) -> Batch:
    """A batch with the same number of masked positions in every sample, so that means over parts are means over all."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step * 1009 + part)
    ids = torch.randint(5, VOCABULARY, (samples, length), generator=generator)
    places = torch.stack([torch.randperm(length, generator=generator)[:MASKED_PER_SAMPLE] for _ in range(samples)])
    positions = (places.sort(dim=1).values + torch.arange(samples)[:, None] * length).flatten()
    return Batch(
        input_ids=ids,
        token_type_ids=torch.zeros_like(ids),
        attention_mask=None,
        label_positions=positions,
        labels=torch.randint(5, VOCABULARY, (len(positions),), generator=generator),
        sop_labels=torch.randint(0, 2, (samples,), generator=generator),
    )


def spoil(swarm: Swarm, model: torch.nn.Module) -> None:
    """Change this peer's parameters a little, as if it had averaged with others than the rest."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    swarm.state.restore(swarm.step)  # takes the sketch anew


def moments(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """How far the optimizer's statistics are from those of a new one: its own steps, the sums of its moments."""
    sums: dict[str, float] = {}
    for state in optimizer.state.values():
        for name, value in state.items():
            sums[name] = sums.get(name, 0.0) + float(value.double().abs().sum())
    return sums


def take_part(plan: Plan, orders: Orders) -> None:
    """Join, train or keep until stopped, leave."""
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    config = RunConfig.from_mapping(plan.config)
    model = build_model(config, VOCABULARY, SPECIAL)
    own = own_model(config, model)
    if plan.device == "replicas":
        start_backend: StartBackend = lambda _: ReplicaBackend(config, own, [torch.device("cpu")] * 3)  # noqa: E731
    else:
        start_backend = choose_backend(plan.device, "auto", config, own)
    swarm = Swarm.join(
        config=config,
        model=model,
        credentials=Credentials(Path(plan.credentials_dir)),
        initial_peers=plan.initial_peers,
        place=Placement("client" if plan.client_mode else "direct", (f"/ip4/127.0.0.1/tcp/{plan.port}",)),
        traffic=Traffic(),
    )
    if plan.changes:
        swarm.steer(Steering(changes=tuple(Change(**change) for change in plan.changes)))
    downloaded = plan.role != "keeper" and swarm.download()
    backend = with_local_steps(config, start_backend(1), own, model, swarm)
    target = swarm.progress().target_batch_size
    orders.say(
        "joined",
        addresses=swarm.addresses,
        step=swarm.step,
        downloaded=downloaded,
        target_batch_size=target,
    )
    done_this_step = part = 0
    spoil_after = plan.spoil_after_step
    while not orders.stop.is_set():
        last_step = int(orders.told) if orders.told else plan.last_step
        quota = plan.microbatches_per_step
        if plan.role == "trainer" and swarm.step != last_step and (quota is None or done_this_step < quota):
            data = config.at_step(swarm.step).data
            batch = fixed_batch(data.microbatch_size, plan.seed, swarm.step, part, data.sequence_length)
            result = backend.accumulate(batch)
            time.sleep(plan.microbatch_s)
            swarm.begin_training()
            swarm.add(result.samples)
            done_this_step, part = done_this_step + 1, part + 1
        else:
            time.sleep(0.05)
        if last_step is not None and swarm.step >= last_step:
            continue
        outcome = swarm.advance(backend.collect)
        if outcome is not None:
            backend.synchronize()
            now = swarm.progress()
            orders.say(
                "step",
                **asdict(outcome),
                target_batch_size=now.target_batch_size,
                begun_with=now.own_samples,
                sketch=swarm.state.sketch,
            )
            done_this_step = part = 0
            if outcome.averaged and spoil_after is not None and outcome.step >= spoil_after:
                spoil(swarm, model)
                spoil_after = None
    parameters = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    save_file(parameters, plan.parameters_file)
    orders.say("left", step=swarm.step, moments=moments(swarm.training.optimizer))
    swarm.leave()
