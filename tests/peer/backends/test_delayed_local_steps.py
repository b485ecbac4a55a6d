"""Local steps beside rounds of averaging, against the method written in plain PyTorch; real rounds are in tests/system.

Each peer has the real backend, the real sums of gradients and the real outer optimizer; the test averages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from peer.backends.local_steps import LocalSteps, own_model
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.gradients.buffer import GradientBuffer
from peer.models.optimizer_setup import build_optimizer, parameter_groups
from peer.swarm.swarm import Swarm
from tests.support.swarm_peer import moments
from tests.support.tiny_albert import random_batch, tiny_config, tiny_model

SAMPLES = 3  # in a microbatch
LOCAL_BATCH = 2 * SAMPLES
RATE = 0.1


def delayed_run(name: str = "sgd", outer: tuple[float, float] = (0.7, 0.9), *, delay: bool = True) -> RunConfig:
    """A tiny run of plain local steps at a constant rate; `outer`: learning rate and momentum."""
    run = tiny_config().model_dump(mode="json")
    run["data"] |= {"microbatch_size": SAMPLES}
    run["optimizer"] |= {"name": name, "learning_rate": RATE, "weight_decay": 0.0, "max_grad_norm": 1e6}
    run["schedule"] |= {"warmup_steps": 0, "total_steps": 1_000_000_000}
    run["averaging"] |= {"target_batch_size": 2 * LOCAL_BATCH, "local_steps": 2, "delay": delay}
    run["averaging"] |= {"outer_learning_rate": outer[0], "outer_momentum": outer[1]}
    return RunConfig.from_mapping(run)


def flat(model: torch.nn.Module) -> torch.Tensor:
    """Return all trained parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


class Peer:
    """One peer without a network; its methods are what `Swarm.advance` does in each case."""

    def __init__(self, config: RunConfig) -> None:
        self.common = tiny_model(config)
        self.own = own_model(config, self.common)
        groups = parameter_groups(self.common, config)
        self.outer = build_optimizer(config, groups)
        self.parameters: list[torch.nn.Parameter] = [parameter for group in groups for parameter in group["params"]]
        self.gradients = GradientBuffer(self.parameters, config.averaging)
        self.swarm: Any = Swarm.__new__(Swarm)
        self.state = SimpleNamespace(step=0)
        training = SimpleNamespace(optimizer=self.outer)
        vars(self.swarm).update(_gradients=self.gradients, state=self.state, training=training)
        self.backend = LocalSteps(config, TorchBackend(config, self.own), self.own, self.common, self.swarm)

    def train(self, *seeds: int) -> None:
        """Compute microbatches."""
        for seed in seeds:
            result = self.backend.accumulate(random_batch(seed, SAMPLES))
            self.gradients.add(result.samples)

    def begin_beside(self) -> None:
        """Let a round average what there is, and train on."""
        self.backend.collect()
        self.gradients.hold()

    def fail_beside(self) -> None:
        """Hear that this round failed."""
        self.gradients.take_back()

    def mean(self) -> tuple[int, list[torch.Tensor]]:
        """Return the samples and the mean that this peer brings to a round."""
        self.gradients.load()
        with self.gradients.shared.used() as tensors:
            return self.gradients.due_samples, [tensor.clone() for tensor in tensors]

    def take_step(self, average: Sequence[torch.Tensor]) -> None:
        """Take the step of a round beside which this peer trained, or for which it waited."""
        self.backend.collect()
        with self.gradients.making_room():
            self._step_on(average)
        self.backend.synchronize()

    def step_alone(self) -> None:
        """Take the step of a lone peer that trains on nothing meanwhile."""
        self.backend.collect()
        self.take_step(average_of([self]))

    def follow(self, average: Sequence[torch.Tensor]) -> None:
        """Take a step that this peer missed; its samples count one step late."""
        self.backend.collect()
        self.gradients.hold()
        self._step_on(average)
        self.gradients.drop()
        self.gradients.take_back()
        self.backend.synchronize()

    def download(self, donor: Peer) -> None:
        """Take another's state, and lose all samples."""
        with torch.no_grad():
            for mine, theirs in zip(self.common.parameters(), donor.common.parameters(), strict=True):
                mine.copy_(theirs)
        for mine, theirs in zip(self.parameters, donor.parameters, strict=True):
            self.outer.state[mine]["momentum"].copy_(donor.outer.state[theirs]["momentum"])
        self.gradients.drop_all()
        self.state.step = donor.state.step
        self.backend.synchronize()

    def _step_on(self, average: Sequence[torch.Tensor]) -> None:
        for parameter, values in zip(self.parameters, average, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(values)
        self.outer.step()
        self.state.step += 1

    def pseudo_gradient(self) -> torch.Tensor:
        """Return the mean that a round would average now, as one vector in the model's order."""
        self.backend.collect()
        grads = [cast(torch.Tensor, p.grad).flatten() for p in self.common.parameters() if p.requires_grad]
        return torch.cat(grads) / self.gradients.due_samples


class Reference:
    """The same peer in plain PyTorch, on vectors: it lists the stretches of local steps that are in no average yet."""

    def __init__(self, config: RunConfig, outer: torch.optim.SGD, common: torch.Tensor) -> None:
        self._model = tiny_model(config)
        self._trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._backend = TorchBackend(config, self._model)
        self.outer, self.common, self.own = outer, common, common.clone()
        self.stretches: list[list[torch.Tensor]] = [[self.own.clone()]]  # of each: where it began, and ended
        self._pending: list[int] = []

    def train(self, *seeds: int) -> None:
        for seed in seeds:
            self._pending.append(seed)
            if len(self._pending) * SAMPLES == LOCAL_BATCH:
                self._step()

    def _step(self) -> None:
        if self._pending:
            torch.nn.utils.vector_to_parameters(self.own, self._trained)
            self._model.zero_grad()
            for seed in self._pending:
                self._backend.accumulate(random_batch(seed, SAMPLES))
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._trained]
            gradient = torch.cat([grad.flatten() for grad in grads]) / (len(self._pending) * SAMPLES)
            self.own = self.own - RATE * len(self._pending) * SAMPLES / LOCAL_BATCH * gradient
            self._pending = []

    def pseudo_gradient(self) -> torch.Tensor:
        self._step()
        ends = [*(end for _, end in self.stretches[:-1]), self.own]
        moved = [stretch[0] - end for stretch, end in zip(self.stretches, ends, strict=True)]
        return torch.stack(moved).sum(dim=0)

    def set_aside(self) -> torch.Tensor:
        return torch.stack([began - ended for began, ended in self.stretches[:-1]]).sum(dim=0)

    def begin_beside(self) -> None:
        guess = stepped(self.outer, self.common, self.pseudo_gradient())
        self.stretches[-1].append(self.own)
        self.stretches.append([guess])
        self.own = guess.clone()

    def take_step(self, common: torch.Tensor) -> None:
        self._step()
        beside = self.own - self.stretches[-1][0] if len(self.stretches) > 1 else torch.zeros_like(common)
        self.common, self.own = common, common + beside
        self.stretches = [[common]]


def stepped(
    outer: torch.optim.SGD, common: torch.Tensor, gradient: torch.Tensor, *, keep: bool = False
) -> torch.Tensor:
    """Return the parameters after a step of torch's SGD with Nesterov momentum; keep its momentum only if `keep`."""
    parameter = outer.param_groups[0]["params"][0]
    before = outer.state_dict()["state"].get(0, {}).get("momentum_buffer")
    before = None if before is None else before.clone()
    parameter.data, parameter.grad = common.clone(), gradient
    outer.step()
    if not keep:
        outer.state.clear()
        if before is not None:
            outer.state[parameter]["momentum_buffer"] = before
    return parameter.detach().clone()


def average_of(peers: Sequence[Peer]) -> list[torch.Tensor]:
    """Return the mean of the peers' means by samples."""
    brought = [peer.mean() for peer in peers]
    total = sum(samples for samples, _ in brought)
    parts = [[mean * (samples / total) for mean in means] for samples, means in brought]
    return [torch.stack(tensors).sum(dim=0) for tensors in zip(*parts, strict=True)]


def require_one_state(peers: Sequence[Peer]) -> None:
    """Require the same common parameters and outer momenta of all, bit by bit."""
    for peer in peers[1:]:
        assert torch.equal(flat(peer.common), flat(peers[0].common))
        for mine, theirs in zip(peer.parameters, peers[0].parameters, strict=True):
            assert torch.equal(peer.outer.state[mine]["momentum"], peers[0].outer.state[theirs]["momentum"])


class Trial:
    """Peers and their references, which must agree whenever something is compared."""

    def __init__(self, config: RunConfig, peers: Sequence[Peer]) -> None:
        self._config, self.peers = config, list(peers)
        common = flat(self.peers[0].common)
        self._outer = torch.optim.SGD([torch.nn.Parameter(common.clone())], lr=0.7, momentum=0.9, nesterov=True)
        self._references = [Reference(config, self._outer, common) for _ in peers]

    def train(self, *work: list[int]) -> None:
        for (peer, reference), seeds in zip(self._pairs(), work, strict=True):
            peer.train(*seeds)
            reference.train(*seeds)

    def begin(self) -> None:
        self._compare_pseudo_gradients()
        for peer, reference in self._pairs():
            peer.begin_beside()
            reference.begin_beside()

    def fail(self) -> None:
        for peer in self.peers:
            peer.fail_beside()
        self._compare_pseudo_gradients()

    def end(self) -> None:
        """End a round that ran beside training."""
        self._step([reference.set_aside() for reference in self._references])

    def wait(self) -> None:
        """Take a step for which all wait."""
        self._compare_pseudo_gradients()
        self._step([reference.pseudo_gradient() for reference in self._references])

    def join(self, joiner: Peer) -> None:
        joiner.download(self.peers[0])
        self._references.append(Reference(self._config, self._outer, self._references[0].common))
        self.peers.append(joiner)

    def _step(self, means: list[torch.Tensor]) -> None:
        weights = torch.tensor([peer.gradients.due_samples for peer in self.peers], dtype=torch.float32)
        gradient = (torch.stack(means) * (weights / weights.sum())[:, None]).sum(dim=0)
        common = stepped(self._outer, self._references[0].common, gradient, keep=True)
        average = average_of(self.peers)
        for peer, reference in self._pairs():
            peer.take_step(average)
            reference.take_step(common)
            assert torch.allclose(flat(peer.common), common, rtol=0, atol=1e-5)
            assert torch.allclose(flat(peer.own), reference.own, rtol=0, atol=1e-5)
        require_one_state(self.peers)

    def _compare_pseudo_gradients(self) -> None:
        for peer, reference in self._pairs():
            assert peer.gradients.due_samples == peer.swarm.own_samples
            assert torch.allclose(peer.pseudo_gradient(), reference.pseudo_gradient(), rtol=0, atol=1e-5)

    def _pairs(self) -> list[tuple[Peer, Reference]]:
        return list(zip(self.peers, self._references, strict=True))


def test_rounds_beside_training_follow_the_method() -> None:
    """Two peers of unequal speed, in rounds of which one fails and one is waited for, and a third that joins.

    Each copy and each pseudo-gradient is that of plain PyTorch, and after each step all peers hold the same state.
    """
    config = delayed_run()
    trial = Trial(config, [Peer(config), Peer(config)])
    trial.train([1, 2, 3, 4], [5, 6])
    trial.begin()
    trial.train([7, 8, 9], [10])  # a half of a local batch beside the round, too
    trial.end()
    assert [peer.swarm.own_samples for peer in trial.peers] == [3 * SAMPLES, SAMPLES]
    trial.train([11], [12, 13])
    trial.begin()
    trial.train([14, 15], [34])
    trial.fail()
    trial.train([16, 17], [18, 19])
    trial.begin()  # of all that the failed round had, and what came beside it and since
    trial.train([20, 21], [22, 23])
    trial.end()
    trial.join(Peer(config))
    trial.train([24, 25], [26], [27, 28])
    trial.wait()  # as for the last step of a phase
    assert all(torch.equal(flat(peer.own), flat(peer.common)) for peer in trial.peers)
    trial.train([29, 30], [31, 32], [33])
    trial.begin()
    trial.end()  # so fast that no microbatch was computed beside it
    assert [peer.swarm.own_samples for peer in trial.peers] == [0, 0, 0]
    assert [peer.state.step for peer in trial.peers] == [4, 4, 4]


EVENTS = ("train", "train", "begin", "wait", "follow", "fail", "end")


def can_happen(event: str, peer: Peer) -> bool:
    """Return whether the event can be the peer's next."""
    if event in ("fail", "end"):
        return peer.gradients.holds
    return event == "train" or (not peer.gradients.holds and peer.gradients.due_samples > 0)


@pytest.mark.parametrize("seed", range(3))
def test_every_local_step_is_in_exactly_one_average(seed: int) -> None:
    """Whatever happens to rounds: an outer step of rate 1 moves a lone peer's model by its local steps, each once."""
    peer, draw = Peer(delayed_run(outer=(1.0, 0.0))), torch.Generator().manual_seed(seed)
    start, moved, of_others = (flat(peer.common).mul_(factor) for factor in (1, 0, 0))

    def leave(*_: object) -> None:
        moved.sub_(flat(peer.own))

    def arrive(*_: object) -> None:
        moved.add_(flat(peer.own))

    def follow() -> None:
        of_others.sub_(flat(peer.common))
        peer.follow([0.01 * torch.randn(p.shape, generator=draw) for p in peer.parameters])
        of_others.add_(flat(peer.common))

    peer.backend.inner.register_step_pre_hook(leave)
    peer.backend.inner.register_step_post_hook(arrive)
    seeds = iter(range(1000))
    acts: dict[str, Callable[[], None]] = {
        "train": lambda: peer.train(next(seeds)),
        "begin": peer.begin_beside,
        "wait": peer.step_alone,
        "follow": follow,
        "fail": peer.fail_beside,
        "end": lambda: peer.take_step(average_of([peer])),
    }
    drawn = [EVENTS[int(torch.randint(len(EVENTS), (), generator=draw))] for _ in range(200)]
    happened = set()
    for event in [*drawn, "end", "train", "wait"]:
        if can_happen(event, peer):
            acts[event]()
            happened.add(event)
    assert happened == set(EVENTS)
    assert moved.norm() > 0.1
    assert torch.allclose(flat(peer.common), start + moved + of_others, rtol=0, atol=2e-5)


def test_gradients_collected_beside_a_round_are_of_the_samples_since() -> None:
    """Collected before the step, they are the local steps from the guess, times their samples."""
    peer = Peer(delayed_run())
    peer.train(1, 2)
    peer.begin_beside()
    peer.train(3)
    guess = flat(peer.own)
    peer.train(4)
    progress = guess - flat(peer.own)
    peer.backend.collect()
    grads = [cast(torch.Tensor, p.grad).flatten() for p in peer.common.parameters() if p.requires_grad]
    assert torch.allclose(torch.cat(grads), LOCAL_BATCH * progress, rtol=0, atol=1e-5)
    assert progress.norm() > 0.01


def test_who_takes_anothers_state_begins_at_the_common_parameters() -> None:
    """Progress beside a round goes with the samples that are lost, and is in no later average."""
    config = delayed_run()
    peer, donor = Peer(config), Peer(config)
    donor.train(9, 8)
    donor.step_alone()
    peer.train(1, 2)
    peer.begin_beside()
    peer.train(3, 4)
    peer.fail_beside()
    peer.download(donor)
    assert torch.equal(flat(peer.own), flat(donor.common))
    peer.train(5, 6)
    donor.train(5, 6)
    assert torch.equal(peer.pseudo_gradient(), donor.pseudo_gradient())


def test_inner_moments_are_kept_beside_rounds() -> None:
    """Neither the guess nor the average begins them anew."""
    peer = Peer(delayed_run("adamw"))
    peer.train(1, 2)
    peer.begin_beside()
    after_one = moments(peer.backend.inner)
    peer.train(3)
    assert moments(peer.backend.inner) == after_one
    peer.train(4)
    after_two = moments(peer.backend.inner)
    assert after_two["step"] == 2 * after_one["step"] > 0
    peer.take_step(average_of([peer]))
    assert moments(peer.backend.inner) == after_two


def test_a_run_whose_rounds_are_waited_for_has_no_guesses() -> None:
    """With and without delay, all parameters are the same bit by bit; without it, no second base is held."""
    peers = [Peer(delayed_run("adamw", delay=delay)) for delay in (False, True)]
    for seeds in ([1, 2, 3], [4], [5, 6, 7, 8]):
        for peer in peers:
            peer.train(*seeds)
            peer.step_alone()
            peer.train(9, 10)
        assert torch.equal(flat(peers[0].own), flat(peers[1].own))
        require_one_state(peers)
    trained = [parameter for parameter in peers[0].common.parameters() if parameter.requires_grad]
    assert list(map(id, peers[0].backend._bases)) == list(map(id, trained))
