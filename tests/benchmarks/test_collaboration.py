"""The benchmark of ways to train: its figures for judged checkpoints, its picture, and its choice of test sentences."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from plotly.graph_objects import Figure

from benchmarks.training.collaboration import Point, draw, figures_of, reached, write_unseen


def point(way: str, seed: int, step: int, loss: float) -> Point:
    return Point(way, seed, step, 100 * step, loss, 0.1, 0.6, 0.7, f"{way}-{seed}/{step}")


POINTS = [
    point("alone", 0, 1, 8.0),
    point("alone", 0, 2, 6.0),
    point("alone", 1, 2, 5.0),
    point("homes", 0, 2, 5.0),
    point("homes", 0, 3, 4.4),
    point("homes", 1, 3, 4.4),
]


def test_the_checkpoint_nearest_to_the_samples_counts_of_each_run() -> None:
    """The mean over seeds stands beside that of one process, with the seeds' spread."""
    assert [(each.seed, each.step) for each in reached(POINTS, "homes", 240)] == [(0, 2), (1, 3)]
    rows = {row.name: row for row in figures_of(POINTS, 300)}
    assert rows["alone: loss of masked tokens"].value == 5.5
    homes = rows["homes: loss of masked tokens"]
    assert (homes.value, homes.ratio) == (pytest.approx(4.4), pytest.approx(0.8))
    assert rows["alone: loss of masked tokens, standard deviation of 2 seeds"].value == pytest.approx(0.5**0.5)
    assert not any(name.startswith("together") for name in rows)


def test_volunteers_stand_beside_a_process_with_their_batches_where_there_is_one() -> None:
    """Otherwise beside the process with batches of the target size."""
    rows = {row.name: row for row in figures_of([*POINTS, point("as-homes", 0, 3, 2.2)], 300)}
    assert rows["homes: loss of masked tokens"].ratio == pytest.approx(2.0)
    assert rows["homes: loss of masked tokens"].baseline_name == "as-homes"
    assert rows["as-homes: loss of masked tokens"].baseline_name == "alone"


def test_the_curves_are_a_picture_and_a_figure_for_plotly(tmp_path: Path) -> None:
    """Also where a way was not trained; Plotly itself takes the figure, with one entry of the legend a way."""
    draw(POINTS, tmp_path)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    curves = json.loads((tmp_path / "curves.json").read_text())
    drawn = Figure(curves)
    assert [trace.name for trace in drawn.data if trace.showlegend] == ["alone", "homes"]
    assert len(drawn.data) == 3 * 4
    assert list(drawn.data[0].y) == [8.0, 6.0]


def test_sentences_to_train_on_are_not_judged_by(tmp_path: Path) -> None:
    """Whatever their tags are there."""
    train, test, kept = (tmp_path / name for name in ("train.conll.gz", "test.conll", "kept.conll"))
    with gzip.open(train, "wt", encoding="utf-8") as file:
        file.write("Ada\tB-PER\nwrote\tO\n\nParis\tB-LOC\n")
    test.write_text("Ada\tO\nwrote\tO\n\nAda\tB-PER\n\n\nParis\tO\n\n", encoding="utf-8")
    assert write_unseen(train, test, kept) == 2
    assert kept.read_text(encoding="utf-8") == "Ada\tB-PER\n"
