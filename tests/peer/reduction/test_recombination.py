"""Which averages an honest reducer may have made of its inputs."""

from __future__ import annotations

import pytest
import torch
from hivemind.proto import runtime_pb2

from peer.reduction.audit import ReturnedAverage, falsified
from peer.reduction.combine import WeightedPart, weighted_mean
from peer.reduction.compression import BLOCKWISE, decode, encode

CODES = [0, int(runtime_pb2.CompressionType.FLOAT16), int(BLOCKWISE.compression_type)]
WEIGHTS = (4.0, 8.0, 12.0)
LENGTH = 4096


def inputs(scales: tuple[float, ...] = (1.0, 1.0, 1.0)) -> list[WeightedPart]:
    generator = torch.Generator().manual_seed(3)
    common = torch.randn(LENGTH, generator=generator)
    return [
        WeightedPart(index, scale * (common + torch.randn(LENGTH, generator=generator)), weight)
        for index, (scale, weight) in enumerate(zip(scales, WEIGHTS, strict=True))
    ]


def returned(average: torch.Tensor, weight: float, code: int = 0) -> ReturnedAverage:
    return ReturnedAverage(decode(encode(average, code)), weight, code)


def mean_of(given: list[WeightedPart], *factors: float) -> torch.Tensor:
    """The sum of the inputs with these factors, by the weight of all."""
    total = sum(contribution.weight for contribution in given)
    return torch.stack([c.part * c.weight / total * f for c, f in zip(given, factors, strict=True)]).sum(0)


@pytest.mark.parametrize("code", CODES)
def test_the_mean_is_honest(code: int) -> None:
    """Written in any code; who weighs nothing changes nothing."""
    given = inputs()
    right = returned(weighted_mean(0, given), 24.0, code)
    assert falsified(right, [*given, WeightedPart(3, torch.full((LENGTH,), 9.0), 0.0)]) is None


@pytest.mark.parametrize("code", CODES)
def test_a_sender_may_be_believed_less_than_it_names(code: int) -> None:
    """As far as the total that the reducer names, so that who is left short of samples sees it."""
    given = inputs()
    capped = [given[0], given[1], WeightedPart(2, given[2].part, 5.0)]
    assert falsified(returned(weighted_mean(0, capped), 17.0, code), given) is None
    assert falsified(returned(weighted_mean(0, capped), 24.0, code), given) is not None


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("length", [2, 3, 32, 1328])
@pytest.mark.parametrize("scale", [1e-7, 1e-5, 1.0])
def test_a_cap_is_honest_however_alike_and_small_the_inputs_are(code: int, length: int, scale: float) -> None:
    """Inputs that differ little, written so coarsely that nobody can tell how much of each is in the average."""
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
            for index, (size, weight) in enumerate(zip(sizes, (15840.0, 18816.0, 900.0), strict=False))
        ]
        counted = [WeightedPart(one.sender, one.part, min(8192.0, one.weight)) for one in given]
        total = sum(one.weight for one in counted)
        assert falsified(returned(weighted_mean(0, counted), total, code), given) is None


def test_what_is_far_too_large_may_be_made_smaller() -> None:
    """And nothing else may."""
    large, usual = inputs((100.0, 1.0, 1.0)), inputs()
    assert falsified(returned(mean_of(large, 0.1, 1.0, 1.0), 24.0), large) is None
    assert falsified(returned(mean_of(large, 0.0, 1.0, 1.0), 24.0), large) is None
    assert falsified(returned(mean_of(usual, 0.1, 1.0, 1.0), 24.0), usual) is not None
    assert falsified(returned(mean_of(large, -1.0, 1.0, 1.0), 24.0), large) is not None


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("factors", [(-1, -1, -1), (0, 0, 0), (0.99, 0.99, 0.99), (1, 1, 1.1), (0, 1, 1), (1, -1, 1)])
def test_other_combinations_are_not_honest(code: int, factors: tuple[float, ...]) -> None:
    """Another sign, less of all, more of one, one left out."""
    given = inputs()
    assert falsified(returned(mean_of(given, *factors), 24.0, code), given) is not None


def test_an_average_of_something_else_is_not_honest() -> None:
    """Nor one of more samples than there were, or of none."""
    given = inputs()
    noise = torch.randn(LENGTH, generator=torch.Generator().manual_seed(9))
    assert falsified(returned(weighted_mean(0, given) + 0.1 * noise, 20.0), given) is not None
    for weight in (25.0, 0.0, -1.0, float("nan")):
        assert "samples" in (falsified(returned(weighted_mean(0, given), weight), given) or "")


def test_inputs_that_are_alike_tell_nothing_of_weights() -> None:
    """The mean is honest still; what differs from it cannot be held against anybody."""
    alike = [WeightedPart(index, torch.ones(LENGTH), weight) for index, weight in enumerate(WEIGHTS)]
    assert falsified(returned(torch.ones(LENGTH), 24.0), alike) is None
    assert falsified(returned(torch.ones(LENGTH), 20.0), alike) is None
    assert falsified(returned(torch.ones(LENGTH), 24.0), []) is None
