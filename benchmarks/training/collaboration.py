"""One model trained by one process, by volunteers of whom one comes and goes, and by volunteers on home lines.

    python -m benchmarks.training.collaboration DIR [--text TEXT] [--ways alone,together,...] [--seeds 0,1,2]
                                                [--samples N] [--ner-train FILE --ner-test FILE] [--json]
    python -m benchmarks.training.collaboration --quick

All ways learn from the same number of samples of the same text (JSON Lines), with the same tokenizer and the run file
collaboration.yaml, and are judged on the same held-out samples. A seed is that of the first weights and of the order of
the text. Runs that have ended in DIR are not trained anew, so a stopped benchmark goes on, and ways may be trained
apart; a folder with other text, samples or `--quick` is refused.

- `alone` is a plain process without a swarm (collaborating.py).
- `together` is `manyhands coordinator serve` and three `manyhands join`, one of whom leaves at a fifth of the samples,
  returns at two fifths, is killed at three, and returns at four.
- `homes` is the same with three volunteers who stay, on lines of 10 to 20 Mbit/s up and 40 to 100 down, one behind a
  router that takes no connections, with the default compression. It needs root, iproute2 and nftables.
- `as-together` and `as-homes` are a plain process that takes in each step as many samples as those volunteers had.
  Where computing is fast, volunteers have more than the target: samples come in while they agree on a step.

DIR gets curves.parquet with all that was judged, steps.parquet with the volunteers' steps, curves.png, curves.json (the
same picture for Plotly), and for each run its run file, checkpoints and history.
A way is judged by each run's checkpoint that is nearest to the number of samples: a swarm's batches are seldom exact.
With NER files (CoNLL), these and the first checkpoint, which has seen too few samples, are fine-tuned beside random
starts. Test sentences that are training sentences, too, are left out.

A way's band is the mean over its seeds, give or take their standard deviation. Times mean nothing here: all volunteers
share the processors.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pyarrow
from matplotlib import figure
from pyarrow import parquet

from benchmarks.support.reporting import Figure, argument_parser, exit_at_sigterm, report
from benchmarks.training.collaborating import Trained, train_alone, train_as, train_at_homes, train_together
from peer.config.run import BUILTIN_RUNS, RunConfig
from peer.data.prepare import prepare_tokenizer
from peer.data.tokenization.tokenizers import load_special_ids, load_tokenizer
from peer.models.build import build_model
from peer.models.held_out import evaluate, open_validation_set

RUN_FILE = Path(__file__).with_suffix(".yaml")
WAYS: Mapping[str, Callable[[RunConfig, Path, int, Path], Trained]] = {
    "alone": train_alone,
    "together": train_together,
    "as-together": partial(train_as, "together"),
    "homes": train_at_homes,
    "as-homes": partial(train_as, "homes"),
}
BESIDE = {"together": "as-together", "homes": "as-homes"}  # what a way is compared with, as far as it is there
LINES = {  # colour, style of matplotlib, dash of Plotly
    "alone": ("#8a93a0", "-", "solid"),
    "together": ("#2563a8", "-", "solid"),
    "as-together": ("#2563a8", ":", "dot"),
    "homes": ("#d9822b", "-", "solid"),
    "as-homes": ("#d9822b", ":", "dot"),
}
SAMPLES, QUICK_SAMPLES = 614_400, 512  # the run file's 600 steps, and 4 of QUICK
QUICK = {"averaging": {"target_batch_size": 128}, "checkpoints": {"every_steps": 2}}
NER_OPTIONS = ("--task", "ner", "--epochs", "6", "--patience", "2", "--learning-rate", "5e-4", "--max-length", "64")
NER_SENTENCES = ("--max-train", "2000", "--max-test", "1000")
POINTS_FILE, STUDY_FILE = "points.json", "study.json"


@dataclass(frozen=True)
class Point:
    """One checkpoint, judged on the held-out samples."""

    way: str
    seed: int
    step: int
    samples: int  # in all steps up to it
    mlm_loss: float
    accuracy: float
    sop_loss: float
    sop_accuracy: float
    checkpoint: str


@dataclass(frozen=True)
class Panel:
    """One panel of the picture; `across` and `up` are fields of `Point`."""

    title: str
    across: str
    across_title: str
    up: str


PANELS = (
    Panel("Held-out loss, masked tokens", "samples", "samples in steps", "mlm_loss"),
    Panel("Held-out loss, masked tokens", "step", "steps", "mlm_loss"),
    Panel("Sentence orders right", "step", "steps", "sop_accuracy"),
)


@dataclass(frozen=True)
class Study:
    """The folder of all runs, and their common settings."""

    folder: Path
    text: Path | None  # None: the demo's corpus
    samples: int
    is_quick: bool

    @property
    def tokenizer(self) -> Path:
        """The folder of the tokenizer of all runs."""
        return self.folder / "tokenizer"

    def config(self, seed: int) -> RunConfig:
        """Return the run of this seed."""
        raw = RunConfig.from_yaml(RUN_FILE).model_dump(mode="json")
        raw["run"]["seed"] = seed
        demo = RunConfig.from_yaml(BUILTIN_RUNS / "demo.yaml").model_dump(mode="json")
        own = None if self.text is None else [{"kind": "jsonl", "path": str(self.text.absolute())}]
        raw["data"]["sources"] = own or demo["data"]["sources"]
        for section, changes in QUICK.items() if self.is_quick else ():
            raw[section] |= changes
        return RunConfig.from_mapping(raw)

    def prepare(self) -> None:
        """Train the tokenizer, unless it is there. Exits where the folder is of another study."""
        self.folder.mkdir(parents=True, exist_ok=True)
        kept, own = self.folder / STUDY_FILE, {"run": self.config(0).to_yaml(), "samples": self.samples}
        if not kept.exists():
            kept.write_text(json.dumps(own))
        if json.loads(kept.read_text()) != own:
            sys.exit(f"{self.folder} holds runs with another run file, text or number of samples: name another folder.")
        if not self.tokenizer.exists():
            made = self.folder / "tokenizer-in-the-making"
            made.mkdir(exist_ok=True)
            prepare_tokenizer(self.config(0), made)
            made.rename(self.tokenizer)

    def points(self, way: str, seed: int) -> list[Point]:
        """Return a run's judged checkpoints; train the run first if it has not ended in the folder."""
        folder = self.folder / f"{way}-{seed}"
        kept = folder / POINTS_FILE
        if not kept.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a run that was stopped
            folder.mkdir()
            trained = WAYS[way](self.config(seed), self.tokenizer, self.samples, folder)
            found = list(self._judged(way, seed, trained))
            kept.write_text(json.dumps([asdict(point) for point in found], indent=1))
        return [Point(**each) for each in json.loads(kept.read_text())]

    def _judged(self, way: str, seed: int, trained: Trained) -> Iterator[Point]:
        """Judge each checkpoint on the samples that are held out from the runs of all seeds."""
        config = self.config(0)
        held_out = open_validation_set(config, self.tokenizer, self.folder / "held-out")
        assert held_out is not None, "the run file holds text out"
        kind = type(build_model(config, load_tokenizer(self.tokenizer).get_vocab_size(), self._special))
        for step, checkpoint in trained.checkpoints.items():
            found = evaluate(kind.from_pretrained(checkpoint), held_out.samples)
            assert found is not None
            assert found.sop_loss is not None
            assert found.sop_accuracy is not None
            yield Point(
                way=way,
                seed=seed,
                step=step,
                samples=trained.samples[step],
                mlm_loss=found.mlm_loss,
                accuracy=found.accuracy,
                sop_loss=found.sop_loss,
                sop_accuracy=found.sop_accuracy,
                checkpoint=str(checkpoint),
            )

    def steps(self, points: Sequence[Point]) -> pyarrow.Table:
        """Return the swarms' histories of steps, with the way and the seed of each."""
        rows = []
        for way, seed in sorted({(point.way, point.seed) for point in points}, key=_place):
            history = self.folder / f"{way}-{seed}" / "steps.parquet"
            if history.exists():
                rows += [{"way": way, "seed": seed, **row} for row in parquet.read_table(history).to_pylist()]
        return pyarrow.Table.from_pylist(rows)

    @property
    def _special(self) -> Any:
        return load_special_ids(self.tokenizer)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing, judge it, write the curves, print the bands."""
    options = _options(arguments)
    study = Study(options.folder, options.text, options.samples, options.quick)
    study.prepare()
    points = [point for way in options.ways for seed in options.seeds for point in study.points(way, seed)]
    judged = pyarrow.Table.from_pylist([asdict(point) for point in points]).drop_columns(["checkpoint"])  # a path
    parquet.write_table(judged, study.folder / "curves.parquet")
    parquet.write_table(study.steps(points), study.folder / "steps.parquet")
    draw(points, study.folder)
    figures = figures_of(points, options.samples)
    if options.ner_train is not None:
        figures += names_of(points, options)
    report("one process beside volunteers", figures, options.json)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argument_parser("One model trained by one process, by volunteers, and by volunteers on home lines.")
    parser.add_argument(
        "folder",
        type=Path,
        metavar="DIR",
        nargs="?",
        help="where runs are kept; those that are there stay (with --quick it may be left out)",
    )
    parser.add_argument("--text", type=Path, help="documents as JSON Lines, also packed (default: the demo's corpus)")
    parser.add_argument("--ways", type=_ways, help=f"of {', '.join(WAYS)} (default: all; with --quick the first)")
    parser.add_argument("--seeds", type=_numbers, default=[0, 1, 2], help="(default: 0,1,2)")
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"of each run (default: {SAMPLES})")
    parser.add_argument("--ner-train", type=Path, help="sentences with names, to fine-tune on")
    parser.add_argument("--ner-test", type=Path, help="sentences with names, to judge by")
    options = parser.parse_args(arguments)
    if (options.ner_train is None) != (options.ner_test is None):
        parser.error("--ner-train and --ner-test go together")
    if options.folder is None and not options.quick:
        parser.error("DIR is missing")
    options.folder = options.folder or Path(tempfile.mkdtemp(prefix="collaboration-"))
    options.ways = options.ways or list(WAYS)[: 1 if options.quick else None]
    if options.quick:
        options.samples, options.seeds = QUICK_SAMPLES, options.seeds[:2]
    return options


def _ways(text: str) -> list[str]:
    ways = text.split(",")
    if unknown := set(ways) - WAYS.keys():
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: take {', '.join(WAYS)}")
    return ways


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def band(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation, 0 of one value."""
    return fmean(values), stdev(values) if len(values) > 1 else 0.0


def reached(points: Sequence[Point], way: str, samples: int) -> list[Point]:
    """Return the checkpoint of each run of a way that is nearest to so many samples, in the order of its seeds."""
    nearest: dict[int, Point] = {}
    for point in [point for point in points if point.way == way]:
        before = nearest.setdefault(point.seed, point)
        if abs(point.samples - samples) < abs(before.samples - samples):
            nearest[point.seed] = point
    return [nearest[seed] for seed in sorted(nearest)]


def figures_of(points: Sequence[Point], samples: int) -> list[Figure]:
    """Return each way's losses and accuracies after so many samples, with their spread, beside those of one process."""
    rows = []
    for way in [way for way in WAYS if reached(points, way, samples)]:
        last = reached(points, way, samples)
        name_beside = BESIDE[way] if way in BESIDE and reached(points, BESIDE[way], samples) else "alone"
        others = [] if way == "alone" else reached(points, name_beside, samples)
        for name, text in {
            "step": "steps",
            "samples": "samples",
            "mlm_loss": "loss of masked tokens",
            "accuracy": "masked tokens right",
            "sop_loss": "loss of the sentence order",
            "sop_accuracy": "sentence orders right",
        }.items():
            mean, spread = band([getattr(point, name) for point in last])
            beside = fmean(getattr(point, name) for point in others) if others else None
            rows.append(Figure(f"{way}: {text}", mean, "", beside, name_beside))
            rows.append(Figure(f"{way}: {text}, standard deviation of {len(last)} seeds", spread, ""))
    return rows


def draw(points: Sequence[Point], folder: Path) -> None:
    """Draw the panels, a line a run: as curves.png, and as curves.json for Plotly."""
    picture = figure.Figure(figsize=(16, 5), layout="constrained", facecolor="white")
    runs = sorted({(way, point.seed) for way in WAYS for point in points if point.way == way}, key=_place)
    traces: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"grid": {"rows": 1, "columns": len(PANELS), "pattern": "independent"}}
    for number, (axis, panel) in enumerate(zip(picture.subplots(1, len(PANELS)), PANELS, strict=True), 1):
        for way, seed in runs:
            run = [point for point in points if (point.way, point.seed) == (way, seed)]
            across, up = [getattr(each, panel.across) for each in run], [getattr(each, panel.up) for each in run]
            colour, style, dash = LINES[way]
            is_first = seed == min(other for name, other in runs if name == way)
            axis.plot(across, up, style, color=colour, linewidth=1, label=way if is_first else "")
            traces.append(
                {
                    "x": across,
                    "y": up,
                    "xaxis": f"x{number}",
                    "yaxis": f"y{number}",
                    "mode": "lines",
                    "name": way,
                    "legendgroup": way,
                    "showlegend": is_first and number == 1,
                    "line": {"color": colour, "dash": dash, "width": 1.5},
                    "hovertemplate": f"{way}, seed {seed}: %{{y:.4g}} at %{{x:,}}<extra></extra>",
                }
            )
        axis.set_title(panel.title)
        axis.set_xlabel(panel.across_title)
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.spines[["top", "right"]].set_visible(False)
        layout |= {
            f"xaxis{number}": {"title": {"text": panel.across_title}},
            f"yaxis{number}": {"title": {"text": panel.title}},
        }
    picture.axes[0].legend(frameon=False)
    picture.savefig(folder / "curves.png", dpi=110)
    (folder / "curves.json").write_text(json.dumps({"data": traces, "layout": layout}))


def _place(run: tuple[str, int]) -> tuple[int, int]:
    return list(WAYS).index(run[0]), run[1]


def names_of(points: Sequence[Point], asked: argparse.Namespace) -> list[Figure]:
    """Fine-tune the last checkpoints and a first one for names, and random starts; return F1 over whole names."""
    train, test, folder = asked.ner_train, asked.ner_test, asked.folder
    apart = folder / "ner-test.conll"
    left_out = write_unseen(train, test, apart)
    first = min((point for point in points if point.way == "alone"), key=lambda point: point.step, default=points[0])
    by_name = {f"{way}-{point.seed}": point for way in WAYS for point in reached(points, way, asked.samples)}
    by_name[f"after {first.samples} samples"] = first
    command = [sys.executable, "-m", "manyhands", "evaluate", *(point.checkpoint for point in by_name.values())]
    options = ["--random-start", "--json", "--train", str(train), "--test", str(apart), *NER_OPTIONS, *NER_SENTENCES]
    done = subprocess.run([*command, *options], check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
    (folder / "ner.json").write_text(done.stdout)
    scores = [contestant["tasks"]["ner"] for contestant in json.loads(done.stdout)]
    random_start = scores[-1]["mean"]
    rows = [Figure("names: test sentences left out, as they are training sentences", left_out, "")]
    for name, score in zip([*by_name, "random start"], scores, strict=True):
        rows.append(Figure(f"names: F1, {name}", score["mean"], "", random_start, "random start"))
        rows.append(Figure(f"names: F1, {name}, standard deviation of seeds", score["std"], ""))
    return rows


def write_unseen(train: Path, test: Path, path: Path) -> int:
    """Write the test sentences whose words are those of no training sentence; return how many others there are."""
    known = {words for words, _ in sentences(train)}
    unseen = [lines for words, lines in sentences(test) if words not in known]
    path.write_text("\n\n".join("\n".join(lines) for lines in unseen) + "\n", encoding="utf-8")
    return sum(1 for _ in sentences(test)) - len(unseen)


def sentences(path: Path) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield each sentence's words and lines from a CoNLL file."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        for block in file.read().split("\n\n"):
            lines = [line for line in block.splitlines() if line.strip()]
            if lines:
                yield tuple(line.split()[0] for line in lines), lines


if __name__ == "__main__":
    exit_at_sigterm()
    main()
