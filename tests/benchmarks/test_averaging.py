"""What the averaging's benchmark compares with does what it says, on loopback."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import TypeVar

import numpy as np
import pytest

from benchmarks import averaging, home_rounds
from benchmarks.plain_tcp import exchange
from benchmarks.ring import average_in_ring
from tests.support.ports import free_ports

ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
Result = TypeVar("Result")


def on_all_hosts(action: Callable[[int], Result]) -> list[Result]:
    """Do it on three hosts at once."""
    with ThreadPoolExecutor(len(ADDRESSES)) as pool:
        return list(pool.map(action, range(len(ADDRESSES))))


def test_the_ring_averages() -> None:
    """Every host ends with the mean of all vectors, also where they cannot be cut into equal chunks."""
    [port] = free_ports("127.0.0.1", 1)
    for seconds, average in on_all_hosts(lambda place: average_in_ring(place, ADDRESSES, 1000, port)):
        assert seconds > 0
        assert np.all(average == 1.0)


def test_the_exchange_ends_when_all_is_through() -> None:
    """Each host sends each other its bytes and hears that they came."""
    [port] = free_ports("127.0.0.1", 1)
    assert all(seconds > 0 for seconds in on_all_hosts(lambda place: exchange(place, ADDRESSES, (70_000,) * 3, port)))


@pytest.mark.parametrize("benchmark", [averaging, home_rounds])
def test_without_the_tools_it_says_what_is_missing(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, and no traceback."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match=r"ip, tc, nft not installed"):
        benchmark.main([])


def test_codes_that_there_are_not_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is measured."""
    with pytest.raises(SystemExit):
        home_rounds.main(["--codes", "float16,float8"])
    assert "float8: take float16, 8bit-blockwise" in capsys.readouterr().err
