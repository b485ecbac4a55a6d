"""What a trainer makes of its downloads of states and averages, and that averages come back bit by bit."""

from __future__ import annotations

import math
from concurrent import futures
from typing import Any

import pytest
import torch
from hivemind.averaging.partition import TensorPartContainer
from hivemind.compression import CompressionInfo
from hivemind.proto import runtime_pb2

from auth.errors import SwarmError
from peer.averaging.shares import part_size
from peer.config.training import Compression
from peer.gradients.gradient_codes import Factors
from peer.gradients.power_sgd import product
from peer.node.average_history import Average, Lack
from peer.node.states import (
    AverageKept,
    AverageWanted,
    DonatedState,
    HistoryBegun,
    JoinedTensors,
    StateOrder,
    StateWanted,
)
from peer.reduction.compression import compression_of, decode
from peer.reduction.sizes import BLOCK, SCALE_BYTES
from peer.reporting.event_log import TAKEN, Downloaded
from peer.runtime.waits import run_blocking
from peer.swarm.transfers import HUNG_S, MissedAverage, Transfers, encode_average, whole_average
from tests.support.turned_waits import TurnedWaits

SHAPES = [torch.Size((40, 32)), torch.Size((256,)), torch.Size((64, 8, 8))]
TENSORS = [torch.ones(shape) for shape in SHAPES]
VOTERS = ("Qm1", "Qm2")
STATE = DonatedState("keeper", 7, 1, VOTERS, JoinedTensors.join(list(TENSORS)))
MOST_LOOKS = 500


class Scene:
    """A trainer's transfers, and the node as far as the trainer sees it.

    The outcome is there at look number `after`, and the trainer is told to leave at `leaves_after`; 0 is never.
    """

    def __init__(self, found: Any = None, after: int = 1, moves: bool = False, leaves_after: int = 0) -> None:
        self.waits, self.orders = TurnedWaits(after_wait=self._look), list[StateOrder]()
        self._found, self._after, self._is_moving, self._leaves_after = found, after, moves, leaves_after
        self.looks = self.moves = 0
        self.told: list[Downloaded] = []
        self.was_downloading = True
        averager: Any = self
        events: Any = self
        self.transfers = Transfers(averager, self.waits, events)

    def add(self, event: Downloaded) -> None:
        """Note an event."""
        self.told.append(event)

    def order(self, order: StateOrder) -> futures.Future[Any]:
        """Take an order."""
        self.orders.append(order)
        self._download = futures.Future[Any]()
        return self._download

    def _look(self) -> None:
        self.looks += 1
        assert self.looks <= MOST_LOOKS, "nothing ends the wait"
        self.waits.clock.now += HUNG_S / 8
        self.moves += self._is_moving
        self.was_downloading &= self.transfers.is_downloading
        if self.looks == self._leaves_after:
            self.waits.interrupt()
        if self.looks == self._after:
            self._download.set_result(self._found)


def test_a_download_that_makes_progress_is_waited_for() -> None:
    """However long it takes; and meanwhile others can see that this peer waits for a state."""
    scene = Scene(STATE, after=MOST_LOOKS, moves=True)
    assert run_blocking(scene.transfers.state(SHAPES, ["liar"])) is STATE
    assert scene.orders == [StateWanted(SHAPES, ("liar",))]
    assert (scene.looks, scene.was_downloading, scene.transfers.is_downloading) == (MOST_LOOKS, True, False)


def test_a_process_that_hangs_is_not_waited_for() -> None:
    """An averager whose process neither asks a donor nor receives anything is an error, with a sentence."""
    scene = Scene(after=0)
    began_at = scene.waits.now()
    with pytest.raises(SwarmError, match="hangs"):
        run_blocking(scene.transfers.state(SHAPES, []))
    assert HUNG_S < scene.waits.now() - began_at < 2 * HUNG_S
    assert not scene.transfers.is_downloading


def test_a_peer_that_is_told_to_leave_waits_for_nothing() -> None:
    """Its process still downloads, and has the state long after; no donor has said anything of an average."""
    scene = Scene(STATE, after=MOST_LOOKS, moves=True, leaves_after=5)
    assert run_blocking(scene.transfers.state(SHAPES, [])) is None
    assert scene.looks == 5
    scene = Scene((STATE.tensors, VOTERS), after=MOST_LOOKS, moves=True, leaves_after=5)
    assert run_blocking(scene.transfers.average(0, 7, SHAPES)) is Lack.SILENT
    assert scene.looks == 5
    assert not scene.transfers.is_downloading


@pytest.mark.parametrize(
    ("found", "taken", "outcome"),
    [
        (TENSORS, TENSORS, TAKEN),
        (Lack.NOT_YET, Lack.NOT_YET, "not to be had: not yet"),
        (Lack.BUSY, Lack.BUSY, "not to be had: busy"),
        (TENSORS[:2], Lack.GONE, None),  # the keeper of another run, or one that errs
        ([torch.zeros(3), *TENSORS[1:]], Lack.GONE, None),
        (None, Lack.SILENT, None),  # the process could not read the DHT
    ],
)
def test_an_average_that_fits_this_peers_model_is_taken(found: Any, taken: Any, outcome: str | None) -> None:
    """Else the state is asked for, which is checked as a whole; the event log has what came of it."""
    scene = Scene((JoinedTensors.join(list(found)), VOTERS) if isinstance(found, list) else found)
    average = run_blocking(scene.transfers.average(1, 7, SHAPES))
    if isinstance(average, MissedAverage):
        assert all(map(torch.equal, average.tensors, taken))
        assert average.voters == VOTERS
    else:
        assert average is taken
    assert scene.orders == [AverageWanted(1, 7, SHAPES)]
    assert [(event.what, event.step, event.outcome) for event in scene.told] == [("average", 8, outcome)] * bool(
        outcome
    )


@pytest.mark.parametrize("fault", [None, "is not the swarm's"])
def test_what_became_of_a_state_is_told(fault: str | None) -> None:
    """Only with a state that is taken does the history of averages begin again."""
    scene = Scene()
    scene.transfers.state_judged(STATE, fault)
    assert scene.told == [Downloaded(what="state", donor="keeper", step=7, outcome=fault or TAKEN)]
    assert scene.orders == ([HistoryBegun(1, 7)] if fault is None else [])
    assert run_blocking(scene.transfers.state(SHAPES, [])) is None
    assert scene.told[1:] == [Downloaded(what="state", donor="", step=0, outcome="no donor gave one")]


def test_an_average_is_kept_for_others() -> None:
    """In shared memory, as it goes to another process; nobody waits for that."""
    scene, voters = Scene(), dict.fromkeys(VOTERS)
    scene.transfers.keep(1, 8, TENSORS, {}, "float16", voters)
    [order] = scene.orders
    assert isinstance(order, AverageKept)
    assert (order.era, order.step, order.average.voters) == (1, 8, VOTERS)
    assert all(map(torch.equal, received(order.average), TENSORS))
    assert scene.looks == 0
    assert order.average.encoded.is_shared()


@pytest.mark.parametrize(
    ("compression", "value_bytes"),
    [("float16", 2), ("8bit-blockwise", 1 + 4 / 128), ("none", 4)],
)
@pytest.mark.parametrize("fits", [True, False])
def test_an_average_comes_back_bit_by_bit(compression: Compression, value_bytes: float, fits: bool) -> None:
    """In as few bits as it was averaged in; a peer that was alone has averages that fit into no code."""
    tensors = [torch.randn(40, 32), torch.randn(256)]
    code, info = compression_of(compression), CompressionInfo.from_tensor(tensors[0])
    if fits:
        tensors = [decode(code.compress(each, info)) for each in tensors]
    average = encode_average(tensors, {}, compression)
    back = [decode(wire) for wire in average.tensors()]
    assert all(torch.equal(mine, tensor) for mine, tensor in zip(back, tensors, strict=True))
    sizes = [len(wire.buffer) for wire in average.tensors()]
    assert sizes == [tensor.numel() * (value_bytes if fits else 4) for tensor in tensors]
    assert isinstance(next(average.tensors()), runtime_pb2.Tensor)


@pytest.mark.parametrize("wire_format", ["float16", "8bit-blockwise"])
def test_an_average_that_came_in_parts_travels_whole_in_the_same_code(wire_format: Compression) -> None:
    """The parts of a round are of whole blocks, or a home line would take four bytes for each of its values."""
    tensors = [torch.randn(400, 301), torch.randn(1001)]
    size_bytes = part_size(sum(map(torch.Tensor.numel, tensors)), wire_format, 3)
    parts = TensorPartContainer(tensors, [1, 2, 1], compression_of(wire_format), size_bytes)
    for part, info in (each for own in parts._input_parts_by_peer for each in own):
        part.copy_(decode(compression_of(wire_format).compress(part, info)))
    assert parts.num_parts_by_tensor[0] > 3
    average = encode_average(tensors, {}, wire_format)
    assert all(torch.equal(*pair) for pair in zip(received(average), tensors, strict=True))
    blocks = [-(-tensor.numel() // BLOCK) for tensor in tensors]
    values = [tensor.numel() * {"float16": 2, "8bit-blockwise": 1}[wire_format] for tensor in tensors]
    scales = [0 if wire_format == "float16" else SCALE_BYTES * number for number in blocks]
    expected = [math.ceil(own) + scale for own, scale in zip(values, scales, strict=True)]
    assert [len(wire.buffer) for wire in average.tensors()] == expected


def factored(rank: int = 2) -> tuple[list[torch.Tensor], dict[int, Factors]]:
    """An average of these shapes, and the factors of its matrices, of which the right ones came in 16 bits."""
    factors = {
        index: (torch.randn(rank, shape[0]), torch.randn(rank, shape[1:].numel()).half().float())
        for index, shape in enumerate(SHAPES)
        if len(shape) > 1
    }
    tensors = [torch.randn(shape).half().float() for shape in SHAPES]
    for index, made_of in factors.items():
        tensors[index] = product(*made_of).view(SHAPES[index])
    return tensors, factors


def received(average: Average) -> list[torch.Tensor]:
    """Return the tensors that a peer that fell behind takes."""
    return [decode(wire) for wire in average.tensors()]


def test_of_averaged_factors_only_these_travel_and_make_the_same_bits() -> None:
    """A model of millions of values would take a home line a minute for each step that it missed."""
    tensors, factors = factored()
    average = encode_average(tensors, factors, "float16")
    values = [4 * 2 * 40, 2 * 2 * 32, 2 * 256, 4 * 2 * 64, 2 * 2 * 64]
    assert [len(wire.buffer) for wire in average.tensors()] == values
    back = whole_average(received(average), SHAPES)
    assert back is not None
    assert all(torch.equal(mine, tensor) for mine, tensor in zip(back, tensors, strict=True))


def test_factors_of_another_average_do_not_travel() -> None:
    """A keeper that followed others has those of its own last round."""
    tensors, _ = factored()
    average = encode_average(tensors, factored()[1], "float16")
    assert [decode(wire).shape for wire in average.tensors()] == SHAPES


@pytest.mark.parametrize("fault", ["fewer", "more", "rank", "columns", "no matrix", "infinite", "whole of other shape"])
def test_parts_that_make_no_average_are_not_taken(fault: str) -> None:
    """Nor what would cost a peer more work or memory than its own model."""
    tensors, factors = factored()
    parts = [*factors[0], tensors[1], *factors[2]]
    match fault:
        case "fewer":
            parts.pop()
        case "more":
            parts.append(torch.ones(1))
        case "rank":
            parts[:2] = torch.randn(30, 40), torch.randn(30, 32)
        case "columns":
            parts[1] = torch.randn(2, 33)
        case "no matrix":
            parts[0] = torch.randn(80)
        case "infinite":
            parts[0], parts[1] = torch.full((2, 40), 1e30), torch.full((2, 32), 1e30)
        case _:
            parts[:2] = [torch.randn(32, 40)]
    assert whole_average([*factors[0], tensors[1], *factors[2]], SHAPES) is not None
    assert whole_average(parts, SHAPES) is None
