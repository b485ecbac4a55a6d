"""PowerSGD's arithmetic, beside a plain reading of the paper; peers are objects here, real ones are in tests/system."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from peer.gradients.power_sgd import LowRank, orthonormal, product, total
from peer.reduction.sizes import shrinks, values_sent

SHAPES = [torch.Size(shape) for shape in ((24, 40), (7,), (30, 4, 6), (5, 5))]  # of these the first and third shrink
RANK = 3
Tensors = list[torch.Tensor]


def random_tensors(seed: int, shapes: Sequence[torch.Size] = tuple(SHAPES)) -> Tensors:
    """Gradients."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def weighted(of_peers: Sequence[Tensors], weights: Sequence[int]) -> Tensors:
    """What all peers have after an exact round."""
    return [
        torch.stack([tensor * weight for tensor, weight in zip(same, weights, strict=True)]).sum(0) / sum(weights)
        for same in zip(*of_peers, strict=True)
    ]


def average(peers: Sequence[LowRank], own: Sequence[Tensors], weights: Sequence[int], step: bool = True) -> None:
    """A round of these peers, and the step after it; their tensors are changed in place."""
    sums = [[tensor * weight for tensor in tensors] for tensors, weight in zip(own, weights, strict=True)]
    for peer, tensors, weight in zip(peers, own, weights, strict=True):
        peer.load(tensors, weight)
    images = weighted([peer.images(tensors) for peer, tensors in zip(peers, own, strict=True)], weights)
    lefts = [orthonormal(image) for image in images]
    averages = weighted([peer.coordinates(tensors, lefts) for peer, tensors in zip(peers, own, strict=True)], weights)
    for peer, tensors, of_peer in zip(peers, own, sums, strict=True):
        peer.take(tensors, lefts, averages)
        if step:
            peer.settle(tensors, of_peer, averaged=True)


class PaperPeers:
    """Algorithms 1 and 2 of the paper for one matrix and peers of equal weight, in float64, by NumPy's own QR."""

    def __init__(self, peers: int, first_q: NDArray[np.float64]) -> None:
        self.q = first_q  # (columns, rank)
        self.errors = [np.zeros(1) for _ in range(peers)]

    def average(self, gradients: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """What every peer has after the round."""
        own = [gradient + error for gradient, error in zip(gradients, self.errors, strict=True)]
        p, _ = np.linalg.qr(np.mean([matrix @ self.q for matrix in own], axis=0))
        qs = [matrix.T @ p for matrix in own]
        self.errors = [matrix - p @ q.T for matrix, q in zip(own, qs, strict=True)]
        self.q = np.mean(qs, axis=0)
        return p @ self.q.T


def test_rounds_are_the_papers() -> None:
    """Over several steps, with what was lost fed back, all peers have what the paper's algorithms give."""
    peers = [LowRank(SHAPES, RANK) for _ in range(3)]
    paper = PaperPeers(3, peers[0]._rights[0].T.double().numpy().copy())
    for step in range(6):
        own = [random_tensors(10 * step + number) for number in range(3)]
        expected = paper.average([tensors[0].double().numpy() for tensors in own])
        average(peers, own, [8, 8, 8])
        for tensors in own:
            assert np.allclose(tensors[0].double().numpy(), expected, rtol=0, atol=1e-4)


def test_peers_have_the_same_bits() -> None:
    """Whatever their own numbers and weights were, without samples too: the average is one."""
    peers = [LowRank(SHAPES, RANK) for _ in range(3)]
    for step in range(3):
        own = [*(random_tensors(10 * step + number) for number in range(2)), [torch.zeros(shape) for shape in SHAPES]]
        average(peers, own, [5, 11, 0])
        for tensors in own[1:]:
            assert all(torch.equal(ours, theirs) for ours, theirs in zip(tensors, own[0], strict=True))


def test_small_tensors_are_averaged_as_they_are() -> None:
    """Vectors, and matrices that two factors would hardly shrink, are the exact averages, weighted by samples."""
    own = [random_tensors(1), random_tensors(2)]
    expected = weighted(own, [1, 3])
    average([LowRank(SHAPES, RANK) for _ in own], own, [1, 3])
    for index in (1, 3):
        assert torch.allclose(own[0][index], expected[index], rtol=0, atol=1e-6)


def test_enough_directions_lose_nothing() -> None:
    """Where the rank is that of the average, or above it, the average is exact and nothing is left over."""
    shape = torch.Size((40, 60))
    generator = torch.Generator().manual_seed(3)
    thin = [torch.randn(rows, 2, generator=generator) for rows in (*shape, *shape)]
    own = [[thin[0] @ thin[1].T], [thin[2] @ thin[3].T]]  # each of rank 2, so that their average is of rank 4
    expected = weighted(own, [2, 6])
    peers = [LowRank([shape], rank=6) for _ in own]
    average(peers, own, [2, 6])
    assert torch.allclose(own[0][0], expected[0], rtol=0, atol=1e-4)
    nothing = [torch.zeros(shape)]
    peers[0].load(nothing, samples=1)
    assert nothing[0].abs().max() < 1e-3


def test_what_is_lost_is_not_lost_for_good() -> None:
    """What all peers got, and what they have left over, are together what they had: as sums over samples."""
    peers = [LowRank(SHAPES, RANK) for _ in range(2)]
    had, got = torch.zeros(24, 40), torch.zeros(24, 40)
    for step, weights in enumerate([[4, 12], [9, 1], [0, 8], [6, 6]]):
        own = [random_tensors(10 * step + number) for number in range(2)]
        had += sum(tensors[0] * weight for tensors, weight in zip(own, weights, strict=True))
        average(peers, own, weights)
        got += own[0][0] * sum(weights)
    left = [[torch.zeros(shape) for shape in SHAPES] for _ in peers]
    for peer, tensors in zip(peers, left, strict=True):
        peer.load(tensors, samples=1)
    assert left[0][0].norm() > 1
    assert torch.allclose(got + left[0][0] + left[1][0], had, rtol=0, atol=1e-3)


def test_a_round_without_its_step_changes_nothing() -> None:
    """Too few samples were averaged, say: the next round begins from the peer's own numbers and what it had left."""
    peer = LowRank(SHAPES, RANK)
    average([peer], [random_tensors(6)], [8])
    once, twice = random_tensors(7), random_tensors(7)
    peer.load(once, samples=8)
    average([peer], [random_tensors(8)], [8], step=False)
    peer.load(twice, samples=8)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(once, twice, strict=True))


def test_a_step_alone_pays_all_back() -> None:
    """A peer that no other sees takes its step from all that it has, and then has nothing left over."""
    peer = LowRank(SHAPES, RANK)
    average([peer], [random_tensors(9)], [8])
    tensors, nothing = random_tensors(10), [torch.zeros(shape) for shape in SHAPES]
    plain = tensors[0].clone()
    peer.load(tensors, samples=8)
    assert not torch.allclose(tensors[0], plain)
    loaded = tensors[0].clone()
    peer.settle(tensors, [plain * 8], averaged=False)
    assert torch.equal(tensors[0], loaded)
    peer.load(nothing, samples=1)
    assert nothing[0].abs().max() == 0


def test_gradients_of_zero_spoil_no_later_round() -> None:
    """Factors that came out as zero are no directions: the round after them finds what there is."""
    peers = [LowRank([torch.Size((20, 30))], rank=2) for _ in range(2)]
    average(peers, [[torch.zeros(20, 30)] for _ in peers], [4, 4])
    ones = [[torch.ones(20, 30)] for _ in peers]
    average(peers, ones, [4, 4])
    assert torch.allclose(ones[0][0], torch.ones(20, 30), rtol=0, atol=1e-5)


def test_an_infinite_product_is_refused() -> None:
    """Averages may be finite and their product not; then nothing is taken."""
    peer, tensors = LowRank([torch.Size((20, 30))], rank=2), [torch.ones(20, 30)]
    before = peer._rights[0].clone()
    with pytest.raises(OverflowError, match="not finite"):
        peer.take(tensors, [torch.ones(2, 20)], [torch.full((2, 30), 3e38)])
    assert torch.equal(peer._rights[0], before)


def test_what_cannot_be_kept_is_dropped() -> None:
    """A sum that runs over is forgotten: kept, it would make every later round fail."""
    peer, tensors = LowRank([torch.Size((20, 30))], rank=2), random_tensors(12, [torch.Size((20, 30))])
    tensors[0].mul_(1e37)
    sums = [tensors[0] * 10**6]
    peer.load(tensors, samples=10**6)
    peer.take(tensors, [torch.zeros(2, 20)], [torch.zeros(2, 30)])
    peer.settle(tensors, sums, averaged=True)
    peer.load(tensors, samples=1)
    assert tensors[0].abs().max() == 0


def test_orthonormal_rows_span_what_they_did() -> None:
    """Rows of length one, at right angles; one that depends on the others is zero, not noise."""
    rows = torch.randn(4, 501, generator=torch.Generator().manual_seed(13))
    rows[2] = 3 * rows[0] - rows[1]
    basis = orthonormal(rows)
    assert torch.allclose(basis @ basis.T, torch.diag(torch.tensor([1.0, 1, 0, 1])), rtol=0, atol=1e-6)
    assert torch.allclose(rows @ basis.T @ basis, rows, rtol=0, atol=1e-4)


@pytest.mark.parametrize("length", [1, 2, 7, 1024, 1025])
def test_sums_by_halves_are_sums(length: int) -> None:
    """Every value is counted once, whatever the length."""
    values = torch.randint(0, 1000, (3, length), generator=torch.Generator().manual_seed(14)).double()
    assert torch.equal(total(values), values.sum(-1))


def test_a_product_in_pieces_is_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows are added up at once, all are, to the same bits."""
    generator = torch.Generator().manual_seed(15)
    left, right = torch.randn(3, 50, generator=generator), torch.randn(3, 20, generator=generator)
    whole = product(left, right)
    monkeypatch.setattr("peer.gradients.power_sgd.CACHED_VALUES", 45)
    assert torch.equal(product(left, right), whole)
    assert torch.allclose(whole, left.T @ right, rtol=0, atol=1e-5)


def test_values_on_the_wire() -> None:
    """Rank times rows and columns for what shrinks by half at least, else all; rank 0 shrinks nothing."""
    assert [shrinks(shape, RANK) for shape in SHAPES] == [True, False, True, False]
    assert values_sent(SHAPES, RANK) == 3 * 64 + 7 + 3 * 54 + 25
    assert values_sent(SHAPES, 0) == 960 + 7 + 720 + 25
