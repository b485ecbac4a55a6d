"""Sketches tell equal parameters from different ones."""

from __future__ import annotations

import pytest
import torch
from hivemind.compression import CompressionInfo

from peer.progress.fingerprint import DRIFT_TOLERANCE, MAX_SKETCH_SIZE, SKETCH_SIZE, drifted, sketch_of
from peer.reduction.compression import ROOTS, decode


def parameters(tensors: int = 3) -> list[torch.Tensor]:
    """Some parameters, always the same."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(20, 30, generator=generator) for _ in range(tensors)]


def test_equal_parameters_have_equal_sketches() -> None:
    """The same bits give the same sketch, on every machine and in every process."""
    assert sketch_of(parameters()) == sketch_of(parameters())
    assert not drifted(sketch_of(parameters()), sketch_of(parameters()))


def test_every_value_counts_once_with_its_sign() -> None:
    """A tensor of one value is that value or its opposite; without tensors there are only zeros."""
    assert {abs(value) for value in sketch_of([torch.full((1,), 3.0)] * SKETCH_SIZE)} == {3.0}
    assert sketch_of([]) == (0.0,) * SKETCH_SIZE


@pytest.mark.parametrize("seed", range(10))
def test_one_learning_step_apart_is_drift(seed: int) -> None:
    """Parameters that differ by a typical step (a hundredth of their size) are told apart."""
    generator = torch.Generator().manual_seed(seed)
    moved = [tensor + 0.01 * torch.randn(tensor.shape, generator=generator) for tensor in parameters()]
    assert drifted(sketch_of(moved), sketch_of(parameters()))


def test_rounding_is_no_drift() -> None:
    """What other hardware's rounding changes stays below the tolerance."""
    rounded = [tensor * (1 + 0.01 * DRIFT_TOLERANCE) for tensor in parameters()]
    assert not drifted(sketch_of(rounded), sketch_of(parameters()))


def test_swapped_values_are_drift() -> None:
    """Sums that happen to agree do not hide a permutation: each value has its own sign."""
    flipped = [tensor.flip(0) for tensor in parameters()]
    assert drifted(sketch_of(flipped), sketch_of(parameters()))


def test_missing_sketch_says_nothing() -> None:
    """Without the keeper's sketch nobody discards its state."""
    assert not drifted(sketch_of(parameters()), ())
    assert not drifted((), sketch_of(parameters()))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_no_state_without_finite_numbers_is_anybodys(value: float) -> None:
    """Not even one of the same sketch is in the same state: such a state is none to go on from."""
    broken = (value, *sketch_of(parameters())[1:])
    assert drifted(broken, broken)


def test_many_tensors_fit_into_a_record() -> None:
    """A model with more tensors than projections still has a sketch of bounded size, in which every tensor counts."""
    many = parameters(tensors=100)
    moments = [[tensor * 1e-9] for tensor in many]
    assert len(sketch_of(many)) == SKETCH_SIZE
    for first in (0, 50, 99):
        other = [tensor * (2.0 if index == first else 1.0) for index, tensor in enumerate(many)]
        assert drifted(sketch_of(other), sketch_of(many))
        moved = [[moment * (2.0 if index == first else 1.0)] for index, (moment,) in enumerate(moments)]
        assert drifted(sketch_of(many, moved), sketch_of(many, moments))


def test_other_moments_are_drift() -> None:
    """The optimizer's state is part of a state, however small its numbers are beside the parameters."""
    moments = [[tensor * 1e-9] * 3 for tensor in parameters()]
    other = [[moments[0][0], 2 * moments[0][1], moments[0][2]], *moments[1:]]
    assert not drifted(sketch_of(parameters(), moments), sketch_of(parameters(), moments))
    assert drifted(sketch_of(parameters(), other), sketch_of(parameters(), moments))
    assert len(sketch_of(parameters(), [each * 4 for each in moments])) <= MAX_SKETCH_SIZE


@pytest.mark.parametrize("changed", [(0, 0), (1, 1), (2, 0)])
def test_moments_count_where_some_parameters_have_fewer(changed: tuple[int, int]) -> None:
    """Every moment is part of the sketch, though one parameter has a single one and another has three."""
    first, second, third = parameters()
    moments = [[first * 1e-3], [second * 1e-3, second.square(), torch.tensor(5.0)], [third * 1e-3]]
    other = [list(each) for each in moments]
    other[changed[0]][changed[1]] = 2 * other[changed[0]][changed[1]]
    assert not drifted(sketch_of(parameters(), moments), sketch_of(parameters(), moments))
    assert drifted(sketch_of(parameters(), other), sketch_of(parameters(), moments))


def test_a_sketch_of_enormous_numbers_equals_no_other() -> None:
    """Whatever overflows is different, and not within a tolerance of anything."""
    own = sketch_of(parameters())
    assert drifted(own, (1e308,) * SKETCH_SIZE)
    assert drifted((1e308,) * SKETCH_SIZE, own)


@pytest.mark.parametrize("seed", range(40))
def test_moments_in_16_bits_are_no_drift_and_a_missed_step_is(seed: int) -> None:
    """Also where one tensor outweighs all others, so that its few projections may happen to be small."""
    generator = torch.Generator().manual_seed(seed)
    first = [size * torch.randn(20, 30, generator=generator) for size in (100.0, 1.0, 0.1)]
    second = [moment * moment * torch.rand(20, 30, generator=generator) for moment in first]
    moments = [list(both) for both in zip(first, second, strict=True)]
    rounded = [
        [decode(ROOTS.compress(each, CompressionInfo.from_tensor(each)), ROOTS) for each in both] for both in moments
    ]
    assert not drifted(sketch_of(parameters(3), rounded), sketch_of(parameters(3), moments))
    later = [
        0.9 * moment + 0.1 * 4 * moment.norm() / 600**0.5 * torch.randn(20, 30, generator=generator) for moment in first
    ]
    moved = [list(both) for both in zip(later, second, strict=True)]
    assert drifted(sketch_of(parameters(3), moved), sketch_of(parameters(3), rounded))
