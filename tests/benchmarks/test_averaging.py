"""The benchmarks of averaging say what they cannot do before they measure anything."""

from __future__ import annotations

from types import ModuleType

import pytest

from benchmarks.swarm import averaging, home_rounds


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
