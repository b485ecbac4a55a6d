"""The wires over which virtual workers average: the product's codes, factors and remainders, bytes and time counted.

All workers' numbers are encoded and decoded as real peers do it; a reducer's answer passes once for all.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from peer.averaging.error_feedback import ErrorFeedback
from peer.averaging.power_sgd import LowRank, orthonormal
from peer.config.run import RunConfig
from peer.reduction.combine import WeightedPart, weighted_mean
from peer.reduction.compression import HALF_BYTES, compression_of, decode, encode
from peer.reduction.top_k import TOP_K


class Cost:
    """The bytes and the processor time of a peer in all rounds: its own numbers on their way, and the averages back."""

    def __init__(self, workers: int) -> None:
        self.share = 1 / workers  # of the work for all workers' own numbers
        self.sent_bytes = self.returned_bytes = 0.0
        self.encode_s = self.decode_s = 0.0

    @contextmanager
    def encoding(self, share: float) -> Iterator[None]:
        """Count so much of the processor time that passes as time to encode."""
        begin = time.process_time()
        yield
        self.encode_s += share * (time.process_time() - begin)

    @contextmanager
    def decoding(self, share: float) -> Iterator[None]:
        """Count so much of the processor time that passes as time to decode."""
        begin = time.process_time()
        yield
        self.decode_s += share * (time.process_time() - begin)


class Wire(Protocol):
    """Averages what the workers have: lists of tensors, one for each parameter."""

    cost: Cost

    def average(self, sums: Sequence[Sequence[Tensor]], samples: Sequence[int]) -> list[Tensor]:
        """Return the average that all workers get of sums over so many samples."""
        ...


class Coded:
    """Each tensor in one code, averages in the same or another one."""

    def __init__(self, workers: int, sent: int, returned: int | None = None) -> None:
        self.cost = Cost(workers)
        self._sent, self._returned = sent, sent if returned is None else returned

    def average(self, sums: Sequence[Sequence[Tensor]], samples: Sequence[int]) -> list[Tensor]:
        """Return the average of decoded means, decoded."""
        return self.mean_of(means_of(sums, samples), samples)

    def mean_of(self, of_workers: Sequence[Sequence[Tensor]], samples: Sequence[int]) -> list[Tensor]:
        """Return the mean by samples of tensors that pass the wire, as it comes back."""
        averages = []
        for same in zip(*of_workers, strict=True):
            decoded = []
            for tensor in same:
                size, values = self._passed(tensor, self._sent, self.cost.share)
                self.cost.sent_bytes += self.cost.share * size
                decoded.append(values)
            size, average = self._passed(mean_by_samples(decoded, samples), self._returned, 1)
            self.cost.returned_bytes += size
            averages.append(average.view_as(same[0]))
        return averages

    def _passed(self, tensor: Tensor, code: int, share: float) -> tuple[int, Tensor]:
        """Return the bytes of a tensor on the wire, and what its receiver has."""
        with self.cost.encoding(share):
            message = encode(tensor, code)
        with self.cost.decoding(share):
            return len(message.buffer), decode(message, HALF_BYTES, TOP_K)


class Sparse:
    """Sparse gradients with a remainder for each worker, and averages in half bytes."""

    def __init__(self, workers: int) -> None:
        self._coded = Coded(workers, TOP_K.compression_type, HALF_BYTES.compression_type)
        self.cost = self._coded.cost
        self._feedbacks = [ErrorFeedback() for _ in range(workers)]

    def average(self, sums: Sequence[Sequence[Tensor]], samples: Sequence[int]) -> list[Tensor]:
        """Return the average of what is sent, and keep what is not."""
        means = means_of(sums, samples)
        with self.cost.encoding(self.cost.share):
            for feedback, own, number in zip(self._feedbacks, means, samples, strict=True):
                feedback.load(own, number)
        averages = self._coded.mean_of(means, samples)
        with self.cost.encoding(self.cost.share):
            for feedback, own, total in zip(self._feedbacks, means, sums, strict=True):
                feedback.settle(own, total, averaged=True)
        return averages


class LowRanks:
    """Matrices as factors with a remainder for each worker; all values in one code."""

    def __init__(self, workers: int, shapes: Sequence[torch.Size], rank: int, code: int) -> None:
        self._coded = Coded(workers, code)
        self.cost = self._coded.cost
        self._peers = [LowRank(shapes, rank) for _ in range(workers)]

    def average(self, sums: Sequence[Sequence[Tensor]], samples: Sequence[int]) -> list[Tensor]:
        """Average images, then coordinates; return the product of the factors."""
        means, cost = means_of(sums, samples), self.cost
        with cost.encoding(cost.share):
            for peer, own, number in zip(self._peers, means, samples, strict=True):
                peer.load(own, number)
            images = [peer.images(own) for peer, own in zip(self._peers, means, strict=True)]
        found = self._coded.mean_of(images, samples)
        with cost.encoding(1):  # once here, as each peer does it
            lefts = [orthonormal(image) for image in found]
        with cost.encoding(cost.share):
            coordinates = [peer.coordinates(own, lefts) for peer, own in zip(self._peers, means, strict=True)]
        averages = self._coded.mean_of(coordinates, samples)
        with cost.decoding(cost.share):
            for peer, own, total in zip(self._peers, means, sums, strict=True):
                peer.take(own, lefts, averages)
                peer.settle(own, total, averaged=True)
        return means[0]


def means_of(sums: Sequence[Sequence[Tensor]], samples: Sequence[int]) -> list[list[Tensor]]:
    """Return each worker's means of sums over so many samples."""
    return [[total / number for total in own] for own, number in zip(sums, samples, strict=True)]


def mean_by_samples(tensors: Sequence[Tensor], samples: Sequence[int]) -> Tensor:
    """Return the mean of the workers' tensors as a reducer computes it."""
    parts = [WeightedPart(*each) for each in zip(range(len(tensors)), tensors, map(float, samples), strict=True)]
    return weighted_mean(0, parts)


def wire_of(config: RunConfig, workers: int, shapes: Sequence[torch.Size]) -> Wire:
    """Return what averages in this run."""
    averaging = config.averaging
    if averaging.sends_sparse:
        return Sparse(workers)
    code = int(compression_of(averaging.wire_format).compression_type)
    return LowRanks(workers, shapes, averaging.powersgd_rank, code) if averaging.powersgd_rank else Coded(workers, code)
