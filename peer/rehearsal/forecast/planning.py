"""Planning of a run for an event, by rehearsals: the run file of `manyhands plan`, with reasons.

The batch is large enough to keep devices busy despite communication, and small enough for about a
hundred steps. A batch above the recipe's is divided into local steps, unless averages are exact.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from peer.averaging.choice import AveragingChoice
from peer.config.languages import sources_in, word_preset
from peer.config.run import RunConfig
from peer.network.traffic import BYTES_PER_S_OF_MBIT
from peer.rehearsal.forecast.automatic_way import with_chosen_way
from peer.rehearsal.forecast.report import (
    DrawnVolunteers,
    ModelValues,
    RehearsalReport,
    gradient_seconds,
    rehearse_seeds,
    shown,
)
from peer.rehearsal.population import population_tables

LEAST_BATCH, MOST_BATCH = 256, 2**20
LOCAL_BATCH = 256  # samples per local step, as measured in docs/operators/network.md
LOCAL_LEARNING_RATE = 4e-4  # learning rate of AdamW in the same measurement
PROVEN_BATCH, PROVEN_RATE = 4096, 1.76e-3  # sahajBERT's batch and learning rate, with LAMB
BUSY_SHARE = 0.5  # minimum fraction of the volunteers' time to spend on samples that end in steps
LEAST_STEPS = 50  # minimum number of steps in the event
SEARCH_HOURS = 1.0
TIMES_SLOWEST, LEAST_TIMEOUT_S = 3, 60
SAFE_SHARE = 0.9  # length of the schedule as a fraction of the slowest swarm's steps
WARMUP_SHARE = 0.1
CHECKPOINT_MINUTES = 10


@dataclass(frozen=True)
class PlannedSize:
    """A model that fits an event, with the shape of its samples."""

    model: Mapping[str, int]
    vocab_size: int
    sequence_length: int
    microbatch_size: int
    reason: str


SIZES: Mapping[str, PlannedSize] = {
    "small": PlannedSize(
        {
            "embedding_size": 128,
            "hidden_size": 512,
            "num_hidden_layers": 6,
            "num_attention_heads": 8,
            "intermediate_size": 2048,
            "max_position_embeddings": 256,
        },
        vocab_size=16_000,
        sequence_length=256,
        microbatch_size=16,
        reason="a small ALBERT: slow lines and laptops can take part, and an evening shows progress",
    ),
    "base": PlannedSize(
        {
            "embedding_size": 128,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "max_position_embeddings": 512,
        },
        vocab_size=32_000,
        sequence_length=512,
        microbatch_size=8,
        reason="ALBERT-base: eighteen times the work of the small model for each sample; it needs days, or many GPUs",
    ),
}


def plan_run(
    language: str,
    volunteers: int,
    hours: float,
    size: str,
    region: str,
    seeds: int,
    progress: Callable[[str], None] = lambda _: None,
    *,
    is_exact: bool = False,
) -> str:
    """Return the run file's text. Raises `ConfigError` for an unknown language or region.

    `is_exact`: each step waits for the mean of whole gradients.
    """
    content = _content(language, size, is_exact)
    config = RunConfig.from_mapping(content)
    values = ModelValues.of(config)
    search = DrawnVolunteers(values, volunteers, min(hours, SEARCH_HOURS), region)
    scenario = search.scenario(config, 1)
    lines = population_tables().lines.regions[region]
    slowest = min(lines.up_mbit_per_second[0], lines.down_mbit_per_second[0])
    own_s = gradient_seconds(config, scenario, slowest * BYTES_PER_S_OF_MBIT)
    timeout_s = float(max(LEAST_TIMEOUT_S, 10 * math.ceil(TIMES_SLOWEST * own_s / 10)))
    content["averaging"]["averaging_timeout_s"] = timeout_s
    most = PROVEN_BATCH if is_exact else MOST_BATCH
    batch, why = _choose_batch(content, search, hours, slowest * BYTES_PER_S_OF_MBIT, most, progress)
    content = _with_batch(content, batch)
    config = RunConfig.from_mapping(content)
    event = DrawnVolunteers(values, volunteers, hours, region)
    report = rehearse_seeds(config, event.scenario, seeds, lambda text: progress(f"the whole event, {text}"))
    total = max(2, math.floor(SAFE_SHARE * report.figures()["steps"].low))
    content["schedule"] = {"warmup_steps": max(1, round(WARMUP_SHARE * total)), "total_steps": total}
    promised = RehearsalReport(RunConfig.from_mapping(content), report.scenarios, report.runs)
    assert (report.choice is None) == is_exact
    reasons = _reasons(size, region, slowest, own_s, why, report.choice, content)
    command = f"manyhands rehearse run.yaml --volunteers {volunteers} --hours {hours:g} --region {region}"
    return _written(content, reasons, promised, f"{command} --seeds {seeds}")


def _content(language: str, size: str, is_exact: bool) -> dict[str, Any]:
    """Return the keys of the run file that do not depend on rehearsals."""
    its = SIZES[size]
    averaging = {"compression": "float16", "delay": False} if is_exact else {"compression": "auto", "delay": True}
    return {
        "run": {"name": f"{language.lower()}-{size}", "language": language},
        "model": dict(its.model),
        "tokenizer": {"preset": word_preset(language), "vocab_size": its.vocab_size},
        "data": {
            "sources": sources_in(language),
            "sequence_length": its.sequence_length,
            "microbatch_size": its.microbatch_size,
        },
        "averaging": averaging,
        "checkpoints": {"every_minutes": CHECKPOINT_MINUTES},
    }


def _with_batch(content: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """Return the run file's content with this batch, divided into local steps if it exceeds the recipe's."""
    averaging: dict[str, Any] = {**content["averaging"], "target_batch_size": batch}
    if batch > PROVEN_BATCH:
        averaging["local_steps"] = batch // LOCAL_BATCH
        optimizer: dict[str, Any] = {"name": "adamw", "learning_rate": LOCAL_LEARNING_RATE}
    else:
        optimizer = {"name": "lamb", "learning_rate": round(PROVEN_RATE * math.sqrt(batch / PROVEN_BATCH), 6)}
    return {**content, "averaging": averaging, "optimizer": optimizer}


def _choose_batch(
    content: Mapping[str, Any],
    search: DrawnVolunteers,
    hours: float,
    slowest_rate: float,
    most: int,
    progress: Callable[[str], None],
) -> tuple[int, str]:
    """Return the smallest power-of-two batch that keeps devices busy, and the reason.

    If it leaves too few steps, return the largest with enough. Local steps are used only if needed.
    """

    def first(batch: int) -> int:
        """Return a batch to start from, below the likely result, in the mode chosen for `batch`."""
        config, _ = with_chosen_way(RunConfig.from_mapping(_with_batch(content, batch)), search.scenario)
        scenario = search.scenario(config, 1)
        rate = sum(device.samples_per_second or 0.0 for device in scenario.devices)
        least = BUSY_SHARE / (1 - BUSY_SHARE) * rate * gradient_seconds(config, scenario, slowest_rate) / 4
        return min(most, max(LEAST_BATCH, 1 << round(math.log2(max(1.0, least)))))

    divided = max(2 * PROVEN_BATCH, first(2 * PROVEN_BATCH))
    batch = first(PROVEN_BATCH)
    while True:
        if batch > PROVEN_BATCH:
            batch = max(batch, divided)
        progress(f"a target batch of {batch:,}")
        report = rehearse_seeds(RunConfig.from_mapping(_with_batch(content, batch)), search.scenario, 1)
        busy, steps = report.runs[0].utilisation, len(report.runs[0].steps) * hours / search.hours
        found = f"with {batch:,}, {shown(busy, '%')} of the volunteers' time ended in steps"
        if busy >= BUSY_SHARE:
            return batch, f"The smallest power of two that keeps devices busy: {found}. Larger ones make steps rarer."
        leaves_few_steps = steps / 2 < LEAST_STEPS
        if leaves_few_steps or batch >= most:
            larger = f"leave fewer than {LEAST_STEPS} steps" if leaves_few_steps else f"be above {most:,} samples"
            return batch, f"A larger batch would {larger}: {found}; lines are the limit."
        batch *= 2


def _reasons(
    size: str,
    region: str,
    slowest: float,
    own_s: float,
    why_batch: str,
    choice: AveragingChoice | None,
    content: Mapping[str, Any],
) -> dict[str, str]:
    """Return the reason for each key of the run file; `choice` is None for exact averages."""
    if choice is None:
        compression = "Whole gradients, in 16 bits: `--exact`."
        delay = "Each step waits for its average: `--exact`. So the batch is at most sahajBERT's, without local steps."
    else:
        compression = (
            "The keeper chooses in the run, by the peers' lines, and begins with `8bit-blockwise`. The figures above "
            f"are of its choice for the first swarm, {choice.why}"
        )
        delay = (
            "Peers train on while a step is averaged. The operator's guide (Slow lines) says what this and the "
            "compression cost of the loss; `manyhands plan --exact` writes neither."
        )
    local_steps = content["averaging"].get("local_steps")
    optimizer = (
        f"Local steps of {LOCAL_BATCH} samples with AdamW, as measured in the operator's guide (Slow lines)."
        if local_steps
        else f"LAMB with sahajBERT's learning rate, {PROVEN_RATE} at {PROVEN_BATCH:,} samples, by the batch's root."
    )
    return {
        "model": f"Size `{size}`: {SIZES[size].reason}.",
        "tokenizer.vocab_size": "Size of the vocabulary, learnt on the run's own text when the run is made.",
        "data.sources": "The language's Wikipedia and, where C4 has the language, web pages, in sahajBERT's shares: "
        "give each the `revision` of a commit (operator's guide, Choose the text).",
        "averaging.compression": compression,
        "averaging.delay": delay,
        "averaging.averaging_timeout_s": f"The slowest lines ({region}: {slowest:g} Mbit/s) need {own_s:.0f} s for one "
        f"peer's gradients; a round may take {TIMES_SLOWEST} times that, or one slow line fails it for all.",
        "averaging.target_batch_size": why_batch,
        "averaging.local_steps": f"The batch is above sahajBERT's {PROVEN_BATCH:,}: peers train in local steps of "
        f"{LOCAL_BATCH} samples between averagings. The loss falls less for each sample than with common steps.",
        "optimizer.name": optimizer,
        "schedule.warmup_steps": f"{WARMUP_SHARE:.0%} of the steps.",
        "schedule.total_steps": f"{SAFE_SHARE:.0%} of the steps that the slowest rehearsed swarm took, so that the "
        "learning rate reaches zero before people go home.",
        "checkpoints.every_minutes": "By time: the event may have fewer steps than the default interval.",
    }


ORDER = ("run", "model", "tokenizer", "data", "averaging", "optimizer", "schedule", "checkpoints")
PROMISED = ("step_s", "steps", "samples_per_hour", "utilisation", "sent_mb_per_hour", "keeper_mb_per_hour")


def _written(content: Mapping[str, Any], reasons: Mapping[str, str], report: RehearsalReport, command: str) -> str:
    """Return the file's text, with predicted figures at the top and each reason above its key."""
    lines = ["# Planned by manyhands plan. Promised by rehearsals: the median swarm (5 to 95 % of the swarms)."]
    for measure in report.measures:
        if measure.key in PROMISED:
            spread = report.quantiles(measure)
            low, middle, high = (shown(value, measure.unit) for value in (spread.low, spread.middle, spread.high))
            lines.append(f"#   {measure.title}: {middle} ({low} to {high})")
    lines += ["# Rehearse it yourself:", f"#   {command}", ""]
    for section in ORDER:
        lines += _comment(reasons.get(section, ""), "")
        lines.append(f"{section}:")
        for key, value in content[section].items():
            lines += _comment(reasons.get(f"{section}.{key}", ""), "  ")
            lines += textwrap.indent(yaml.safe_dump({key: value}, sort_keys=False).rstrip(), "  ").splitlines()
    return "\n".join(lines) + "\n"


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ") if text else []
