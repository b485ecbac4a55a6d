"""Rehearsed swarms beside real ones: what `peer.rehearsal` predicts of a scenario, and what becomes of it really.

    python -m benchmarks.swarm.rehearsal [--scenarios even-2-compute,mixed-4-line,...] [--seconds S] [--seeds 3]
                                         [--logs DIR] [--save DIR] [--measured DIR] [--quick] [--json]

Each scenario (rehearsed_cases.py) is run by the product's peers in network namespaces on shaped lines, as those of
home_lines.py, and rehearsed with several seeds, of which the median counts. `--save` writes each measured swarm to a
file of its own, and `--measured` compares the saved ones without measuring anew.

- The step time is the median time between steps.
- The utilisation is the time spent on samples that are in steps, of all time in which volunteers held the run's state.
- The share counted is that of samples in steps, of those that are in steps or lost. A measured step has the samples
  that its average weighed, a rehearsed one those that its members brought, of which a newcomer's may be cut.
- The bytes sent are those of a volunteer's line, on the average of all volunteers.

Both swarms are judged up to their last step. The ratio is predicted to measured: 1.10 is an error of 10 %. The last
rows are the median errors over all scenarios.

Not alike in both: the lines of a real swarm have no latency here, and its processes are forked from one that has
imported everything, so they begin sooner than the product's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from benchmarks.support.network import why_impossible
from benchmarks.support.reporting import Figure, argument_parser, exit_at_sigterm, report
from benchmarks.swarm.measured_swarm import Measured, Measurement, measure
from benchmarks.swarm.rehearsed_cases import CASES, DEFAULT, QUICK
from peer.config.run import RunConfig
from peer.rehearsal.scenario import Scenario
from peer.rehearsal.swarm import rehearse

SEEDS = 3
TAKEN_S = 1.0  # from a step's first taker to its last


@dataclass(frozen=True)
class Quantities:
    """The quantities of a swarm that are predicted and measured."""

    step_s: float
    utilisation_percent: float
    counted_percent: float
    sent_mb: float


QUANTITIES = {  # name -> (in words, unit)
    "step_s": ("step time, median", "s"),
    "utilisation_percent": ("utilisation", "%"),
    "counted_percent": ("counted, of computed", "%"),
    "sent_mb": ("sent, a volunteer", "MB"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and rehearse each scenario."""
    parser = argument_parser("Rehearsed swarms beside real ones.")
    parser.add_argument("--scenarios", type=names_of, help=f"of {', '.join(CASES)}; without it: all of up to 8 peers")
    parser.add_argument("--seconds", type=float, help="of each scenario, instead of its own time")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="rehearsals of each scenario")
    parser.add_argument("--logs", type=Path, help="a directory for the processes' logs")
    parser.add_argument("--save", type=Path, help="a directory for the measured swarms")
    parser.add_argument("--measured", type=Path, help="a directory of saved ones, to compare instead of measuring")
    options = parser.parse_args(arguments)
    if options.measured is None and (reason := why_impossible()):
        sys.exit(f"Hosts with lines of their own cannot be made here: {reason}. Run this as root, with iproute2.")
    compared = []
    for measurement in measurements(options):
        config, scenario = measurement.config, measurement.scenario
        rehearsed = median_of([predicted(config, scenario, seed) for seed in range(options.seeds)])
        compared.append((measurement, rehearsed, quantities_of(measurement.measured)))
    report("rehearsed swarms beside real ones", figures_of(compared), options.json)


def names_of(text: str) -> list[str]:
    """Read `--scenarios`."""
    names = text.split(",")
    if unknown := set(names) - CASES.keys():
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: take {', '.join(CASES)}")
    return names


def measurements(options: argparse.Namespace) -> Iterator[Measurement]:
    """Return the saved measurements, or measure now."""
    if options.measured:
        for file in sorted(options.measured.glob("*.json")):
            if options.scenarios is None or file.stem in options.scenarios:
                yield Measurement.model_validate_json(file.read_text(encoding="utf-8"))
        return
    for name in [QUICK] if options.quick else options.scenarios or DEFAULT:
        config, scenario = CASES[name].config(), CASES[name].scenario(options.seconds)
        swarm = measure(config, scenario, options.logs / name if options.logs else None)
        measurement = Measurement(name=name, scenario=scenario, config=config, measured=swarm)
        if options.save:
            options.save.mkdir(parents=True, exist_ok=True)
            (options.save / f"{name}.json").write_text(measurement.model_dump_json(indent=1), encoding="utf-8")
        yield measurement


def predicted(config: RunConfig, scenario: Scenario, seed: int) -> Quantities:
    """Rehearse a scenario until the last step of its time."""
    run = rehearse(config, scenario, seed)
    if run.steps:
        duration_s = min(scenario.duration_s, run.steps[-1].at_s + TAKEN_S)
        run = rehearse(config, scenario.model_copy(update={"duration_s": duration_s}), seed)
    return Quantities(
        step_s=run.step_s or scenario.duration_s,
        utilisation_percent=100 * run.utilisation,
        counted_percent=100 * run.counted_share,
        sent_mb=fmean(device.sent_bytes for device in run.devices) / 1e6,
    )


def quantities_of(swarm: Measured) -> Quantities:
    """Return the quantities of a measured swarm."""
    volunteers = swarm.peers.values()
    present_s = sum(each.present_s for each in volunteers)
    counted = sum(each.counted for each in volunteers)
    judged = counted + sum(each.lost.total() for each in volunteers)
    return Quantities(
        step_s=median([later.at_s - sooner.at_s for sooner, later in pairwise(swarm.steps)] or [swarm.seconds]),
        utilisation_percent=100 * sum(each.utilisation * each.present_s for each in volunteers) / present_s,
        counted_percent=100 * counted / judged if judged else 0.0,
        sent_mb=fmean(each.sent_bytes for each in volunteers) / 1e6,
    )


def median_of(runs: Sequence[Quantities]) -> Quantities:
    """Return each quantity's median."""
    return Quantities(**{name: median(getattr(run, name) for run in runs) for name in QUANTITIES})


def figures_of(compared: Sequence[tuple[Measurement, Quantities, Quantities]]) -> list[Figure]:
    """Return each scenario's quantities, predicted beside measured, and the median errors of all."""
    rows, errors = [], {name: list[float]() for name in QUANTITIES}
    for measurement, rehearsed, real in compared:
        for name, (text, unit) in QUANTITIES.items():
            row = Figure(f"{measurement.name}: {text}", getattr(rehearsed, name), unit, getattr(real, name), "measured")
            rows.append(row)
            errors[name] += [100 * abs(row.ratio - 1)] if row.ratio is not None else []
        busy = measurement.measured.processors_percent
        rows.append(Figure(f"{measurement.name}: processors busy while it was measured", busy, "%"))
    medians = {name: median(each) for name, each in errors.items() if each}
    return rows + [Figure(f"median error: {QUANTITIES[name][0]}", error, "%") for name, error in medians.items()]


if __name__ == "__main__":
    exit_at_sigterm()
    main()
