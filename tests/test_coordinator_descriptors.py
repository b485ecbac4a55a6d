"""Open files for all connections."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from coordinator.descriptors import descriptors_needed, raise_limit
from coordinator.directory import Settings
from coordinator.doorkeeper import DoorLimits


@pytest.fixture(autouse=True)
def few_files() -> Iterator[int]:
    """This process may open fewer files than it could, for the time of a test."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    yield 512
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_is_raised_as_far_as_it_is_needed(few_files: int) -> None:
    """And no further, and never lowered."""
    raise_limit(few_files + 88)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == few_files + 88
    raise_limit(few_files)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == few_files + 88


def test_more_than_allowed_is_no_error() -> None:
    """Then it is all that the system allows."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    raise_limit(2**40)
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert soft in (most, 2**40)


def test_every_session_needs_one() -> None:
    """What an operator sets for sessions moves what the door lets in, and so what must be open."""
    few, many = (Settings(max_sessions=count) for count in (10, 1010))
    assert descriptors_needed(many) - descriptors_needed(few) == 1000
    assert DoorLimits.of(many).sessions == 1010
    assert DoorLimits.of(Settings()) == DoorLimits()
