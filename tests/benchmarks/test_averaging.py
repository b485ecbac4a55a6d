"""The benchmark of averaging says what it cannot do before it measures anything."""

from __future__ import annotations

import pytest

from benchmarks.swarm.averaging import main


def test_without_the_tools_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, and no traceback."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match=r"ip, tc, nft not installed"):
        main([])


def test_codes_that_there_are_not_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is measured."""
    with pytest.raises(SystemExit):
        main(["--codes", "float16,float8"])
    assert "float8: take float16, 8bit-blockwise" in capsys.readouterr().err
