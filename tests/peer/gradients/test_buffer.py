"""Gradients towards the next step, those held for a round, and the tensors that two processes share."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from peer.config.training import Averaging, Compression
from peer.gradients.buffer import GradientBuffer, SharedTensors
from peer.reduction.sizes import VALUE_BYTES
from tests.support.gradient_rounds import GradientRounds


@pytest.fixture
def parameter() -> torch.nn.Parameter:
    """A model's only parameter."""
    return torch.nn.Parameter(torch.zeros(3))


@pytest.fixture
def buffer(parameter: torch.nn.Parameter) -> GradientBuffer:
    """The parameter's gradients."""
    return GradientBuffer([parameter], Averaging())


@pytest.fixture
def shared() -> SharedTensors:
    """One tensor of three values."""
    return SharedTensors([torch.Size((3,))])


def accumulate(buffer: GradientBuffer, parameter: torch.nn.Parameter, value: float, samples: int) -> None:
    """Add a microbatch whose gradient is `value` in each sample."""
    assert parameter.grad is not None
    parameter.grad.add_(value * samples)
    buffer.add(samples)


def loaded(buffer: GradientBuffer) -> list[float]:
    """Return the values that would be sent to other peers."""
    buffer.load()
    with buffer.shared.used() as tensors:
        return tensors[0].tolist()


def take_step(buffer: GradientBuffer, parameter: torch.nn.Parameter) -> None:
    """Take a step, which overwrites `.grad`."""
    with buffer.making_room():
        assert parameter.grad is not None
        parameter.grad.fill_(-1.0)


def test_only_held_gradients_are_averaged(buffer: GradientBuffer, parameter: torch.nn.Parameter) -> None:
    """The mean is over the samples accumulated when the round began, however many come beside it."""
    accumulate(buffer, parameter, 2.0, samples=4)
    buffer.hold()
    accumulate(buffer, parameter, 100.0, samples=8)
    assert (buffer.due_samples, buffer.all_samples) == (4, 12)
    assert loaded(buffer) == [2.0] * 3


def test_a_failed_round_gives_its_gradients_back(buffer: GradientBuffer, parameter: torch.nn.Parameter) -> None:
    """Then all samples count towards the same step: none is lost, none is counted twice."""
    accumulate(buffer, parameter, 2.0, samples=4)
    buffer.hold()
    accumulate(buffer, parameter, 5.0, samples=8)
    buffer.take_back()
    assert not buffer.holds
    assert (buffer.due_samples, buffer.all_samples) == (12, 12)
    assert loaded(buffer) == [4.0] * 3


def test_a_step_borrows_the_gradients_place(buffer: GradientBuffer, parameter: torch.nn.Parameter) -> None:
    """The optimizer finds the average in `.grad`; afterwards the gradients beside the round are there, for the next."""
    accumulate(buffer, parameter, 2.0, samples=4)
    buffer.hold()
    accumulate(buffer, parameter, 5.0, samples=8)
    take_step(buffer, parameter)
    assert buffer.due_samples == 8
    assert loaded(buffer) == [5.0] * 3


def test_a_step_that_was_waited_for_uses_all_gradients(buffer: GradientBuffer, parameter: torch.nn.Parameter) -> None:
    """Without a round in the background, the next step begins from nothing."""
    accumulate(buffer, parameter, 2.0, samples=4)
    take_step(buffer, parameter)
    assert buffer.due_samples == 0
    assert parameter.grad is not None
    assert torch.equal(parameter.grad, torch.zeros(3))


def test_all_dropped_samples_are_counted(buffer: GradientBuffer, parameter: torch.nn.Parameter) -> None:
    """A peer that was out of sync loses held and newer gradients, and reports the number of their samples."""
    accumulate(buffer, parameter, 2.0, samples=4)
    buffer.hold()
    accumulate(buffer, parameter, 5.0, samples=8)
    assert buffer.drop_all() == 12
    assert (buffer.holds, buffer.due_samples) == (False, 0)
    assert loaded(buffer) == [0.0] * 3


def test_held_gradients_outlive_a_drop(buffer: GradientBuffer, parameter: torch.nn.Parameter) -> None:
    """A step that this peer follows uses `.grad`, while its own gradients wait for the next round."""
    accumulate(buffer, parameter, 2.0, samples=4)
    buffer.hold()
    accumulate(buffer, parameter, 5.0, samples=8)
    buffer.drop()
    buffer.take_back()
    assert (buffer.samples, loaded(buffer)) == (4, [2.0] * 3)


def test_another_peers_average_takes_the_place_of_the_loaded_gradients(buffer: GradientBuffer) -> None:
    """As for a step that this peer missed."""
    buffer.load_average([torch.tensor([1.0, 2.0, 3.0])])
    with buffer.shared.used() as tensors:
        assert tensors[0].tolist() == [1.0, 2.0, 3.0]


def test_gradients_loaded_again_have_not_been_averaged() -> None:
    """A step alone, after a round whose average is void, takes all of the peer's gradient, and leaves no remainder."""
    parameter = torch.nn.Parameter(torch.zeros(3, 3000))
    rounds = GradientRounds([parameter], Averaging(powersgd_rank=1))
    assert parameter.grad is not None
    own = parameter.grad / 6
    rounds.take_round(lambda values, _half: values[0].fill_(1.0))
    rounds.buffer.load()
    assert torch.allclose(rounds.take_step()[0], own)
    rounds.accumulate(seed=2, samples=2)
    own = parameter.grad / 2
    rounds.buffer.load()
    assert torch.allclose(rounds.take_step()[0], own)


def test_settings_with_the_same_code_change_nothing(buffer: GradientBuffer) -> None:
    """The size of a round is that of the settings it is asked for."""
    usual, smaller = buffer.averaging, buffer.averaging.with_code(("8bit-blockwise", 0))
    assert not buffer.change(usual.with_code(usual.code))
    assert buffer.averaging is usual
    assert buffer.size_in(smaller) == round(3 * VALUE_BYTES["8bit-blockwise"])
    assert buffer.change(smaller)
    assert not buffer.change(smaller)
    assert buffer.averaging is smaller


@pytest.mark.parametrize(
    ("code", "keeps"), [(("8bit-blockwise", 2), True), (("8bit-blockwise", 0), False), (("float16", 4), False)]
)
def test_a_change_of_the_rank_drops_the_remainders(code: tuple[Compression, int], keeps: bool) -> None:
    """So that no gradient comes in one large step; what is loaded then are the new samples, each once."""
    parameter = torch.nn.Parameter(torch.zeros(24, 40))
    rounds = GradientRounds([parameter], Averaging(powersgd_rank=2))
    rounds.take_round(lambda _values, _half: None)
    rounds.take_step()
    assert rounds.buffer.factors.keys() == {0}
    rounds.accumulate(seed=6, samples=2)
    assert parameter.grad is not None
    mean = parameter.grad / 2
    assert not torch.equal(rounds.loaded()[0], mean)
    assert rounds.buffer.change(rounds.buffer.averaging.with_code(code))
    assert torch.equal(rounds.loaded()[0], mean) != keeps
    assert bool(rounds.buffer.factors) == keeps


async def use(shared: SharedTensors) -> list[float]:
    """Use the tensors in the averager's event loop."""
    async with shared.used_in_loop() as tensors:
        values: list[float] = tensors[0].tolist()
        return values


async def test_the_event_loop_runs_while_it_waits_for_the_tensors(shared: SharedTensors) -> None:
    """Its other tasks go on until the trainer's process has finished; then the waiter finds that process's values."""
    with shared.used() as tensors:
        waiting = asyncio.create_task(use(shared))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        tensors[0].fill_(1.0)
    assert await waiting == [1.0] * 3


async def test_a_cancelled_waiter_releases_the_tensors_once_it_gets_them(shared: SharedTensors) -> None:
    """A round that is given up does not block the trainer's process, or the next round."""
    with shared.used():
        waiting = asyncio.create_task(use(shared))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    for _ in range(2):
        assert await use(shared) == [0.0] * 3


async def test_a_failed_use_releases_the_tensors(shared: SharedTensors) -> None:
    """The next round finds them free."""
    with pytest.raises(ZeroDivisionError):
        async with shared.used_in_loop():
            _ = 1 / 0
    assert await use(shared) == [0.0] * 3


async def test_an_ending_loop_releases_only_tensors_that_it_has_got(shared: SharedTensors) -> None:
    """All its tasks are cancelled in the end, also while the trainer's process uses the tensors."""
    is_over = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as threads:
        asyncio.get_running_loop().set_default_executor(threads)
        busy = asyncio.get_running_loop().run_in_executor(None, is_over.wait)
        try:
            with shared.used():
                waiting = asyncio.create_task(use(shared))
                await asyncio.sleep(0)
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                await asyncio.wait({waiting})
                await asyncio.sleep(0)
        finally:
            is_over.set()
        await busy
        assert await use(shared) == [0.0] * 3
