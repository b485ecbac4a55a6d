"""Sparse gradients and their remainders; the code's own tests are in tests/peer/reduction, rounds in tests/system."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hivemind.averaging.partition import TensorPartContainer

from peer.config.training import Averaging
from peer.gradients.error_feedback import DECAY, ErrorFeedback
from peer.reduction.compression import decode, encode
from peer.reduction.sizes import CHUNK
from peer.reduction.top_k import TOP_K, sent_of
from tests.support.gradient_rounds import GradientRounds

SHAPES = [torch.Size((30, 300)), torch.Size((7,)), torch.Size((0, 4))]
Tensors = list[torch.Tensor]


def sums_of(seed: int, samples: int) -> Tensors:
    """A peer's accumulated gradients."""
    generator = torch.Generator().manual_seed(seed)
    return [samples * torch.randn(shape, generator=generator) for shape in SHAPES]


def means_of(sums: Tensors, samples: int) -> Tensors:
    return [gradient / samples if samples else torch.zeros_like(gradient) for gradient in sums]


def send(memory: ErrorFeedback, seed: int, samples: int, sums: Tensors | None = None) -> Tensors:
    """One round that succeeds, and the step after it; return what was sent, as sums over samples."""
    sums = sums_of(seed, samples) if sums is None else sums
    tensors = means_of(sums, samples)
    memory.load(tensors, samples)
    sent = [tensor * samples for tensor in tensors]
    memory.settle(tensors, sums, averaged=True)
    return sent


def added_up(all_sent: Sequence[Tensors]) -> Tensors:
    return [torch.stack(same).sum(0) for same in zip(*all_sent, strict=True)]


def left_of(memory: ErrorFeedback) -> Tensors:
    """The remainders, which are zero before the first round."""
    return memory._lost or [torch.zeros(shape) for shape in SHAPES]


def close(some: Tensors, others: Tensors) -> bool:
    return all(torch.allclose(ours, theirs, rtol=0, atol=1e-3) for ours, theirs in zip(some, others, strict=True))


def test_all_is_sent_or_left_over() -> None:
    """Without a decay, whatever the samples of each step were: the sums that were sent and the rest are all."""
    memory, samples = ErrorFeedback(decay=1.0), [4, 0, 9, 1, 12]
    sent = [send(memory, seed, number) for seed, number in enumerate(samples)]
    there_was = added_up([sums_of(seed, number) for seed, number in enumerate(samples)])
    assert left_of(memory)[0].norm() > 1
    assert close(added_up([*sent, left_of(memory)]), there_was)


def test_a_remainder_decays_at_each_step_and_nothing_else_is_lost() -> None:
    """At the end a twentieth of each remainder with which a step began is missing."""
    memory, decayed, sent = ErrorFeedback(), list[Tensors](), list[Tensors]()
    for seed in range(5):
        decayed.append([(1 - DECAY) * lost for lost in left_of(memory)])
        sent.append(send(memory, seed, 8))
    assert close(added_up([*sent, *decayed, left_of(memory)]), added_up([sums_of(seed, 8) for seed in range(5)]))


def test_what_is_loaded_is_what_is_sent() -> None:
    """One value in 64 of each tensor; in any parts of whole chunks, it passes the wire without a change."""
    memory, tensors = ErrorFeedback(), means_of(sums_of(1, 8), 8)
    memory.load(tensors, 8)
    assert [int((tensor != 0).sum()) for tensor in tensors] == [sent_of(tensor.numel()) for tensor in tensors]
    for shares in ([1.0], [0.3, 0.7], [0.0, 1.0, 2.0]):
        container = TensorPartContainer(tensors, shares, compression=TOP_K, part_size_bytes=120)
        parts = [part for of_peer in container._input_parts_by_peer for part, _ in of_peer]
        assert max(len(part) for part in parts) == CHUNK
        assert all(torch.equal(decode(encode(part, TOP_K.compression_type), TOP_K), part) for part in parts)


def test_a_round_without_its_step_changes_nothing() -> None:
    """A round that failed, or whose step was not taken, is tried again from the same numbers, with more samples too."""
    memory, other = ErrorFeedback(), ErrorFeedback()
    for each in (memory, other):
        send(each, 1, 8)
    failed = means_of(sums_of(2, 8), 8)
    memory.load(failed, 8)
    later = [means_of(sums_of(3, 12), 12) for _ in range(2)]
    memory.load(later[0], 12)
    other.load(later[1], 12)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*later, strict=True))


def test_a_peer_without_samples_keeps_its_remainders() -> None:
    """The remainders wait for the next step to which it brings samples, and none decays meanwhile."""
    memory = ErrorFeedback()
    send(memory, 1, 8)
    before = [lost.clone() for lost in memory._lost]
    tensors = [torch.zeros(shape) for shape in SHAPES]
    memory.load(tensors, 0)
    assert not any(tensor.any() for tensor in tensors)
    memory.settle(tensors, tensors, averaged=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(memory._lost, before, strict=True))


def test_a_step_alone_pays_all_back() -> None:
    """A peer that no other sees takes its step from all that it has, and then has nothing left over."""
    for first in (False, True):
        memory = ErrorFeedback()
        if not first:
            send(memory, 1, 8)
        left = left_of(memory)
        sums = sums_of(2, 4)
        tensors = means_of(sums, 4)
        memory.load(tensors, 4)
        memory.settle(tensors, sums, averaged=False)
        assert close(tensors, [(own + DECAY * lost) / 4 for own, lost in zip(sums, left, strict=True)])
        assert memory._lost == []


def test_what_cannot_be_kept_is_dropped() -> None:
    """A sum that runs over is forgotten: kept, it would make every later round fail."""
    memory = ErrorFeedback()
    send(memory, 1, 8, [torch.full(shape, 3e38) for shape in SHAPES])
    send(memory, 2, 8, [torch.full(shape, 3e38) for shape in SHAPES])
    tensors = means_of(sums_of(3, 8), 8)
    memory.load(tensors, 8)
    assert all(tensor.isfinite().all() for tensor in tensors)


def average_ones(values: Sequence[torch.Tensor], half: bytes) -> None:
    """Average with peers so that all is one."""
    del half
    for tensor in values:
        tensor.fill_(1.0)


@pytest.mark.parametrize("delayed", [False, True])
def test_what_a_step_does_not_send_comes_with_the_next(delayed: bool) -> None:
    """Also with delayed steps: what is accumulated beside the round is neither in it nor in what it leaves over."""
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES[:2]]
    rounds = GradientRounds(parameters, Averaging(compression="topk-2bit"))
    if delayed:
        rounds.buffer.hold()
        rounds.accumulate(seed=2, samples=4)
    memory = ErrorFeedback()
    send(memory, 1, 6)
    rounds.take_round(average_ones)
    assert all(bool((tensor == 1).all()) for tensor in rounds.take_step())
    if not delayed:
        rounds.accumulate(seed=2, samples=4)
    expected = means_of(sums_of(2, 4), 4)
    memory.load(expected, 4)
    assert close(rounds.loaded(), expected[:2])
