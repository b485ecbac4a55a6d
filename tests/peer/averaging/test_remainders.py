"""What a peer keeps of its remainders for its next session, and what it goes on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import hivemind
import pytest
import torch

from peer.averaging.averager import SwarmGradientAverager
from peer.averaging.error_feedback import DECAY
from peer.averaging.remainders import LONGEST_AWAY, RemainderFile, RemainderOrigin
from peer.config.training import Averaging
from tests.support.idle_averager import accumulate, averaged, idle_averager, take_round
from tests.support.small_disks import small_disk

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")  # by hivemind, for its daemon
ORIGIN = RemainderOrigin(era=2, step=40, code="topk-2bit of these shapes")
KEPT = {0: torch.tensor([[1.0, -2.0]]), 2: torch.zeros(0, 4)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where they are kept, in a folder that there may not be yet."""
    return tmp_path / "cache" / "remainders.safetensors"


@pytest.fixture
def file(path: Path) -> RemainderFile:
    """The file with what was kept after step 40."""
    made = RemainderFile(path)
    made.keep(ORIGIN, KEPT)
    return made


def test_they_come_back_once(file: RemainderFile, path: Path) -> None:
    """Whatever becomes of the session that goes on with them: others may have counted them by then."""
    found = file.take(ORIGIN)
    assert found.keys() == KEPT.keys()
    assert all(torch.equal(found[index], kept) for index, kept in KEPT.items())
    assert file.take(ORIGIN) == {}
    assert list(path.parent.iterdir()) == []


def test_they_decay_with_the_steps_that_were_missed(file: RemainderFile) -> None:
    """As from step to step: they are gradients of other parameters."""
    assert torch.allclose(file.take(replace(ORIGIN, step=47))[0], KEPT[0] * DECAY**7)


@pytest.mark.parametrize(
    "now",
    [
        replace(ORIGIN, era=3),  # the run has returned to a checkpoint
        replace(ORIGIN, step=39),
        replace(ORIGIN, step=41 + LONGEST_AWAY),
        replace(ORIGIN, code="powersgd 8 of these shapes"),
    ],
)
def test_those_of_another_course_or_code_are_dropped(file: RemainderFile, path: Path, now: RemainderOrigin) -> None:
    """They are of no use, then or later."""
    assert file.take(now) == {}
    assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"\x08" + bytes(7) + b"{}      ", b"\xff" * 100])
def test_what_cannot_be_read_is_dropped_with_a_warning(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine that lost its power may have left half a file."""
    path.parent.mkdir()
    path.write_bytes(content)
    assert RemainderFile(path).take(ORIGIN) == {}
    assert "cannot be read" in caplog.text
    assert not path.exists()


def test_numbers_that_are_none_are_dropped(path: Path) -> None:
    """They would spoil each later round of this peer."""
    made = RemainderFile(path)
    made.keep(ORIGIN, KEPT | {1: torch.tensor([float("nan")])})
    assert made.take(ORIGIN) == {}


def test_where_there_is_nothing_to_keep_nothing_is_written(path: Path) -> None:
    """Dense gradients have no remainders, nor has a peer without samples."""
    RemainderFile(path).keep(ORIGIN, {})
    assert not path.exists()


def test_a_full_disk_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The peer leaves all the same, and no half of a file stays."""
    with small_disk(tmp_path, 2**20):
        RemainderFile(tmp_path / "remainders.safetensors").keep(ORIGIN, {0: torch.ones(2**19)})
        assert "cannot be written" in caplog.text
        assert list(tmp_path.iterdir()) == []


def averages_nothing(values: object, half: bytes) -> None:
    """Average with a peer that has the same numbers."""


@pytest.mark.parametrize("averaging", [Averaging(powersgd_rank=2), Averaging(compression="topk-2bit")])
def test_the_next_session_begins_with_the_same_numbers(
    averaging: Averaging, dht: hivemind.DHT, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the session that ended would have gone on."""
    file = RemainderFile(path)

    def new() -> tuple[SwarmGradientAverager, list[torch.nn.Parameter]]:
        parameters = [torch.nn.Parameter(torch.zeros(24, 40)), torch.nn.Parameter(torch.zeros(5))]
        return idle_averager(dht, parameters, averaging), parameters

    def next_numbers(averager: SwarmGradientAverager, parameters: list[torch.nn.Parameter]) -> list[torch.Tensor]:
        accumulate(averager, parameters, seed=2, samples=3)
        averager.load_accumulators_into_averager_()
        return averaged(averager)

    first, others = new(), [new(), new()]
    take_round(first[0], averages_nothing, monkeypatch)
    with first[0].making_room():
        pass
    first[0].keep_remainders(file, 0, 1)
    expected = next_numbers(*first)
    for averager, _ in others:
        averager.drop_all()
        averager.resume_remainders(file, 0, 1)
    resumed, without = (next_numbers(*each) for each in others)  # the file is read once
    assert all(torch.allclose(ours, theirs, atol=1e-5) for ours, theirs in zip(resumed, expected, strict=True))
    assert not torch.allclose(without[0], expected[0], atol=1e-3)
