"""Which averages an honest reducer may have made of its inputs."""

from __future__ import annotations

import pytest
import torch
from hivemind.proto import runtime_pb2

from peer.reduction.audit import ReturnedAverage, falsified
from peer.reduction.combine import WeightedPart, weighted_mean
from peer.reduction.compression import BLOCKWISE, decode, encode

CODES = [0, int(runtime_pb2.CompressionType.FLOAT16), BLOCKWISE.compression_type]
WEIGHTS = (4.0, 8.0, 12.0)
LENGTH = 4096


def inputs(scales: tuple[float, ...] = (1.0, 1.0, 1.0)) -> list[WeightedPart]:
    generator = torch.Generator().manual_seed(3)
    common = torch.randn(LENGTH, generator=generator)
    return [
        WeightedPart(index, scale * (common + torch.randn(LENGTH, generator=generator)), weight)
        for index, (scale, weight) in enumerate(zip(scales, WEIGHTS, strict=True))
    ]


def fault(returned: ReturnedAverage, given: list[WeightedPart], reducer: int = 0) -> str | None:
    """The fault of this peer's average, of which it is a sender."""
    return falsified(returned, given, reducer)


def returned(average: torch.Tensor, code: int = 0) -> ReturnedAverage:
    return ReturnedAverage(decode(encode(average, code)), code)


def mean_of(given: list[WeightedPart], *factors: float) -> torch.Tensor:
    """The sum of the inputs with these factors, by the weight of all."""
    total = sum(contribution.weight for contribution in given)
    return torch.stack([c.part * c.weight / total * f for c, f in zip(given, factors, strict=True)]).sum(0)


@pytest.mark.parametrize("code", CODES)
def test_the_mean_is_honest(code: int) -> None:
    """Written in any code."""
    given = inputs()
    assert fault(returned(weighted_mean(0, given), code), given) is None


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("length", [2, 3, 32, 1328])
@pytest.mark.parametrize("scale", [1e-8, 1e-7, 1e-5, 1.0])
def test_the_mean_is_honest_however_alike_and_small_the_inputs_are(code: int, length: int, scale: float) -> None:
    """Also where sums are rounded in another order: inputs that differ little, written coarsely."""
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        common = torch.randn(length, generator=generator)
        sizes = (1.0, 10.0, 3.0)[: 2 + seed % 2]
        given = [
            WeightedPart(
                index,
                decode(encode(scale * size * (common + 0.03 * torch.randn(length, generator=generator)), code)),
                weight,
            )
            for index, (size, weight) in enumerate(zip(sizes, (8192.0, 8192.0, 900.0), strict=False))
        ]
        for order in (given, given[::-1]):
            assert fault(returned(weighted_mean(0, order), code), given) is None


@pytest.mark.parametrize("code", CODES)
def test_what_is_far_too_large_may_be_made_smaller(code: int) -> None:
    """Or be left out with its weight, as the reducer attests; and nothing else may."""
    large, usual = inputs((100.0, 1.0, 1.0)), inputs((1.0, 1.0, 1.0))
    assert fault(returned(weighted_mean(0, usual), code), usual) is None
    for factor in (0.1, 0.0):
        assert fault(returned(mean_of(large, factor, 1.0, 1.0), code), large) is None
    assert fault(returned(weighted_mean(0, large[1:]), code), large) is not None
    assert fault(returned(mean_of(usual, 0.1, 1.0, 1.0), code), usual) is not None
    assert fault(returned(mean_of(large, -1.0, 1.0, 1.0), code), large) is not None
    assert fault(returned(mean_of(large, 0.0, 1.0, 0.5), code), large) is not None


def test_a_value_between_two_codes_may_be_rounded_to_either() -> None:
    """Another processor's sum may differ in its last bit; a value that is not on the edge has one code."""
    part = torch.full((4,), 127.0)
    part[1:3] = torch.tensor([2.5, 2.5 * (1 + 1e-6)])
    given = [WeightedPart(0, part, 4.0)]
    for second, third, is_honest in ((2.0, 3.0, True), (3.0, 2.0, True), (2.0, 4.0, False), (1.0, 3.0, False)):
        average = torch.tensor([127.0, second, third, 127.0])
        assert (fault(ReturnedAverage(average, BLOCKWISE.compression_type), given) is None) == is_honest


def test_of_two_the_larger_may_be_made_smaller() -> None:
    """Who is right nobody can tell, but not that of two that are alike."""
    unlike, alike = inputs((1.0, 50.0, 1.0))[:2], inputs()[:2]
    assert fault(returned(mean_of(unlike, 1.0, 0.1)), unlike) is None
    assert fault(returned(mean_of(unlike, 0.1, 1.0)), unlike) is not None
    assert fault(returned(mean_of(alike, 1.0, 0.5)), alike) is not None
    assert fault(returned(mean_of(alike, 1.0, 0.5)), alike, reducer=2) is None  # whose own gradient may be small
    assert fault(returned(mean_of(alike, 1.0, -0.5)), alike, reducer=2) is not None


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("factors", [(-1, -1, -1), (0, 0, 0), (0.99, 0.99, 0.99), (1, 1, 1.1), (0, 1, 1), (1, -1, 1)])
def test_other_combinations_are_not_honest(code: int, factors: tuple[float, ...]) -> None:
    """Another sign, less of all, more of one, one left out."""
    given = inputs()
    assert fault(returned(mean_of(given, *factors), code), given) is not None


def test_an_average_of_something_else_is_not_honest() -> None:
    """Nor is noise that was added, or an average where all brought zeros."""
    given = inputs()
    noise = torch.randn(LENGTH, generator=torch.Generator().manual_seed(9))
    assert fault(returned(weighted_mean(0, given) + 0.1 * noise), given) is not None
    zeros = [WeightedPart(index, torch.zeros(LENGTH), weight) for index, weight in enumerate(WEIGHTS)]
    assert "inf of its norm" in (fault(returned(noise), zeros) or "")
    assert fault(returned(torch.zeros(LENGTH)), zeros) is None
    assert fault(returned(noise), []) is None  # of no weight there is no average
