"""The benchmark of many who join at once: real joiners, a real service, figures of just the time that they are for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks._joiners import Visit, most_at_once
from benchmarks.stampede import calls_within, main


def test_every_joiner_gets_the_whole_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    """From the product's own service, in the quick form: whoever does not ends the benchmark."""
    main(["--quick", "--json", "--joiners", "3"])
    shown = json.loads(capsys.readouterr().out)
    figures = {figure["name"]: figure for figure in shown["figures"]}
    assert shown["benchmark"] == "3 volunteers join within 2 s"
    assert figures["the checkpoint's state"]["value"] > 1
    assert figures["attempts that broke off"]["value"] == 0
    download = figures["a joiner's download, p95"]
    assert 0 < figures["a joiner's download, p50"]["value"] <= download["value"]
    assert (download["baseline_name"], download["ratio"] > 0) == ("one alone", True)
    assert figures["a small call, p95"]["value"] > 0


@pytest.mark.parametrize("options", [("--joiners", "0"), ("--spread", "-1"), ("--spread", "nan")])
def test_a_crowd_that_cannot_be_is_refused(options: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """With the option's name."""
    with pytest.raises(SystemExit):
        main(options)
    assert f"{options[0]} (" in capsys.readouterr().err


def test_downloads_that_overlap_are_counted() -> None:
    """One that begins when another ends is not beside it."""
    moments = [(0.0, 4.0), (1.0, 2.0), (2.0, 3.0), (3.5, 5.0)]
    assert most_at_once([Visit(began, began, ended, 1, 0) for began, ended in moments]) == 2


def test_calls_of_another_time_do_not_count(tmp_path: Path) -> None:
    """Nor does a line that is still being written."""
    greetings = tmp_path / "greetings"
    greetings.write_text("1.0 0.5\n2.0 0.25\n2.5 0.125\n3.0 0.75\n3.5")
    assert calls_within(greetings, 2.0, 3.0) == [0.25, 0.125]
