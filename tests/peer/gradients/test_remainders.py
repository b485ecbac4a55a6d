"""Remainders in their file, from one session of a trainer to the next."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from peer.config.training import Averaging
from peer.gradients.remainders import DECAY, LONGEST_AWAY, RemainderFile, RemainderOrigin
from peer.limits.usage import clean_cache, disk_use
from tests.support.gradient_rounds import GradientRounds
from tests.support.small_disks import small_disk

ORIGIN = RemainderOrigin(run="test of an authority", era=2, step=40, code="powersgd 4")
KEPT = {0: torch.tensor([[1.0, -2.0]]), 2: torch.zeros(0, 4)}
SHAPES = {index: tensor.shape for index, tensor in KEPT.items()}


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
    found = file.take(ORIGIN, SHAPES)
    assert found.keys() == KEPT.keys()
    assert all(torch.equal(found[index], kept) for index, kept in KEPT.items())
    assert file.take(ORIGIN, SHAPES) == {}
    assert list(path.parent.iterdir()) == []


def test_they_decay_with_the_steps_that_were_missed(file: RemainderFile) -> None:
    """As from step to step: they are gradients of other parameters."""
    assert torch.allclose(file.take(replace(ORIGIN, step=47), SHAPES)[0], KEPT[0] * DECAY**7)


@pytest.mark.parametrize(
    "now",
    [
        replace(ORIGIN, era=3),  # the run has returned to a checkpoint
        replace(ORIGIN, step=39),
        replace(ORIGIN, step=41 + LONGEST_AWAY),
        replace(ORIGIN, code="powersgd 8"),
        replace(ORIGIN, run="test of another authority"),  # it was begun anew under its name
    ],
)
def test_those_of_another_course_or_code_are_dropped(file: RemainderFile, path: Path, now: RemainderOrigin) -> None:
    """They are of no use, then or later."""
    assert file.take(now, SHAPES) == {}
    assert not path.exists()


def test_they_count_for_ninety_steps(file: RemainderFile) -> None:
    """Hardly anything is left after that."""
    assert file.take(replace(ORIGIN, step=40 + LONGEST_AWAY), SHAPES).keys() == KEPT.keys()


def test_what_is_resumed_is_no_part_of_the_deleted_file(file: RemainderFile) -> None:
    """A mapped file would stay on the disk, unseen, for as long as the session lasts."""
    found = file.take(ORIGIN, SHAPES)
    assert found
    assert "remainders.safetensors" not in Path("/proc/self/maps").read_text()


def test_a_limit_of_the_disk_deletes_them_first(file: RemainderFile, path: Path) -> None:
    """At once, and before what was fetched: nobody's stay ends because a peer kept them."""
    fetched = path.with_name("fetched")
    fetched.write_bytes(bytes(8192))
    os.utime(fetched, (1, 1))
    assert clean_cache(path.parent, disk_use(fetched.parent) - 1, time.time()) > 0
    assert [left.name for left in path.parent.iterdir()] == ["fetched"]
    assert file.take(ORIGIN, SHAPES) == {}


@pytest.mark.parametrize("content", [b"", b"\x08" + bytes(7) + b"{}      ", b"\xff" * 100])
def test_what_cannot_be_read_is_dropped_with_a_warning(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine that lost its power may have left half a file; the log says so once."""
    path.parent.mkdir()
    path.write_bytes(content)
    with caplog.at_level("INFO"):
        assert RemainderFile(path).take(ORIGIN, SHAPES) == {}
    [said] = caplog.messages
    assert "cannot be read" in said
    assert not path.exists()


@pytest.mark.parametrize(
    "strange",
    [
        {0: torch.tensor([[1.0, float("nan")]])},
        {0: torch.tensor([[1.0, -2.0]]).double()},
        {0: torch.tensor([[1, -2]])},
        {0: torch.tensor([1.0, -2.0])},
        {1: torch.ones(1)},
    ],
)
def test_tensors_that_are_no_remainders_of_this_model_are_dropped(path: Path, strange: dict[int, torch.Tensor]) -> None:
    """They would spoil each later round of this peer, or end it."""
    made = RemainderFile(path)
    made.keep(ORIGIN, KEPT | strange)
    assert made.take(ORIGIN, SHAPES) == {}
    assert not path.exists()


def test_a_folder_in_their_place_costs_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The session begins without them, and ends without a trace of them."""
    path.mkdir(parents=True)
    made = RemainderFile(path)
    assert made.take(ORIGIN, SHAPES) == {}
    made.keep(ORIGIN, KEPT)
    assert "cannot be read" in caplog.text
    assert "cannot be written" in caplog.text


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


def new_session(averaging: Averaging) -> GradientRounds:
    """Begin a session with a model of twelve tensors, all of other shapes."""
    parameters = [torch.nn.Parameter(torch.zeros(24, 40 + index)) for index in range(11)]
    return GradientRounds([*parameters, torch.nn.Parameter(torch.zeros(5))], averaging)


def next_numbers(session: GradientRounds) -> list[torch.Tensor]:
    """Return what it would average next."""
    session.accumulate(seed=2, samples=3)
    return session.loaded()


CODES = [Averaging(powersgd_rank=2), Averaging(powersgd_rank=1)]


@pytest.mark.parametrize("averaging", CODES)
def test_the_next_session_begins_with_the_same_numbers(averaging: Averaging, path: Path) -> None:
    """As the session that ended would have gone on; in another code, or the second time, without remainders."""
    file = RemainderFile(path)
    first, others = new_session(averaging), [new_session(averaging) for _ in range(2)]
    first.take_round(averages_nothing)
    first.take_step()
    for code in CODES:
        first.buffer.keep_remainders(file, 0, 1)
        other = new_session(code)
        fresh = other.loaded()
        other.buffer.resume_remainders(file, 0, 1)
        assert torch.equal(other.loaded()[0], fresh[0]) == (code != averaging)
    first.buffer.keep_remainders(file, 0, 1)
    expected = next_numbers(first)
    for other in others:
        other.buffer.drop_all()
        other.buffer.resume_remainders(file, 0, 1)
    resumed, without = map(next_numbers, others)  # the file is read once
    assert all(torch.allclose(ours, theirs, atol=1e-5) for ours, theirs in zip(resumed, expected, strict=True))
    assert not torch.allclose(without[0], expected[0], atol=1e-3)
