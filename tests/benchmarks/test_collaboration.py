"""The benchmark of ways to train: its figures for judged checkpoints, its picture, and its choice of test sentences."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from benchmarks.collaboration import Point, draw, figures_of, reached, write_unseen


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


def test_the_curves_are_a_picture(tmp_path: Path) -> None:
    """Also where a way was not trained."""
    draw(POINTS, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_sentences_to_train_on_are_not_judged_by(tmp_path: Path) -> None:
    """Whatever their tags are there."""
    train, test, kept = (tmp_path / name for name in ("train.conll.gz", "test.conll", "kept.conll"))
    with gzip.open(train, "wt", encoding="utf-8") as file:
        file.write("Ada\tB-PER\nwrote\tO\n\nParis\tB-LOC\n")
    test.write_text("Ada\tO\nwrote\tO\n\nAda\tB-PER\n\n\nParis\tO\n\n", encoding="utf-8")
    assert write_unseen(train, test, kept) == 2
    assert kept.read_text(encoding="utf-8") == "Ada\tB-PER\n"
