"""The benchmark of virtual workers: they average what one process computes, and codes change only what they must."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow import parquet

from benchmarks.training.virtual_results import Run, bands_of
from benchmarks.training.virtual_swarm import Standing, VirtualSwarm
from benchmarks.training.virtual_ways import BATCH, SHARES, WAYS
from benchmarks.training.virtual_wires import Coded
from benchmarks.training.virtual_workers import Study, figures_of, joined, main
from peer.backends.local_steps import LocalSteps, own_model
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.models.optimizers import build_optimizer, build_scheduler, parameter_groups
from peer.reduction.compression import HALF_BYTES
from tests.support.tiny_albert import random_batch, tiny_config, tiny_model

MICROBATCH, WORKERS, ROUNDS = 16, 2, 3


def run_of(**averaging: Any) -> RunConfig:
    """A run whose batch is one microbatch of each worker, or as many as the local steps."""
    raw = tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).model_dump(mode="json")
    raw["data"] |= {"microbatch_size": MICROBATCH}
    raw["averaging"] |= {"target_batch_size": MICROBATCH * WORKERS, "compression": "none", **averaging}
    raw["schedule"] |= {"warmup_steps": 0, "total_steps": 1_000_000}  # a constant rate
    return RunConfig.from_mapping(raw)


def batches_of(worker: int) -> Iterator[Batch]:
    return (random_batch(100 * worker + number, MICROBATCH) for number in range(100))


def trained(config: RunConfig, *, is_one_bit: bool = False) -> torch.Tensor:
    """Return all parameters after some rounds of virtual workers."""
    model = tiny_model(config)
    swarm = VirtualSwarm(config, model, [batches_of(worker) for worker in range(WORKERS)], is_one_bit=is_one_bit)
    swarm.train(ROUNDS, delay=config.averaging.delay)
    return flat(model)


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_exact_averages_are_the_steps_of_one_process() -> None:
    """The workers' batches together are its batch."""
    config = run_of()
    model = tiny_model(config)
    optimizer = build_optimizer(config, parameter_groups(model, config))
    scheduler, backend = build_scheduler(config, optimizer), TorchBackend(config, model)
    streams = [batches_of(worker) for worker in range(WORKERS)]
    for _ in range(ROUNDS):
        samples = sum(backend.accumulate(next(stream)).samples for stream in streams)
        torch._foreach_div_([each.grad for each in model.parameters() if each.grad is not None], samples)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
    assert torch.allclose(trained(config), flat(model), rtol=0, atol=1e-5)


@pytest.mark.parametrize("way", [name for name, way in WAYS.items() if not (way.is_local or way.is_one_bit)])
def test_each_way_trains_near_exact_averages(way: str) -> None:
    """After so few steps even sparse gradients have led to nearly the same place, and none to the very same."""
    moved = trained(run_of()) - (first := flat(tiny_model(run_of())))
    own = trained(run_of(**WAYS[way].averaging)) - first
    assert torch.nn.functional.cosine_similarity(own, moved, dim=0) > 0.3
    assert torch.equal(own, moved) == (way == "exact")


def test_momenta_in_one_bit_follow_exact_ones_after_the_first_steps() -> None:
    """1-bit LAMB is LAMB until then; from the next step on, signs lead elsewhere, and not far."""
    first = flat(tiny_model(run_of()))

    def moved(compression: str, total_steps: int, *, is_one_bit: bool = True) -> torch.Tensor:
        raw = run_of(compression=compression).model_dump(mode="json")
        raw["schedule"]["total_steps"] = total_steps
        raw["optimizer"]["max_grad_norm"] = 1e9  # 1-bit LAMB clips no gradients
        return trained(RunConfig.from_mapping(raw), is_one_bit=is_one_bit) - first

    assert torch.allclose(moved("none", 100), moved("none", 100, is_one_bit=False), rtol=0, atol=1e-6)
    exact, in_bits = moved("none", 8), moved("float16", 8)
    assert torch.isfinite(in_bits).all()
    assert 0.3 < torch.nn.functional.cosine_similarity(in_bits, exact, dim=0) < 0.9999


@pytest.mark.parametrize("delay", [False, True])
def test_local_steps_are_all_in_the_common_model(delay: bool) -> None:
    """With plain outer steps one worker's common model has taken its local steps, however late they were averaged."""
    local = {"local_steps": 4, "outer_learning_rate": 1.0, "outer_momentum": 0.0, "delay": delay}
    config = run_of(**local, target_batch_size=4 * MICROBATCH)
    model, alone = tiny_model(config), tiny_model(config)
    VirtualSwarm(config, model, [batches_of(0)]).train(ROUNDS, delay=delay)
    single = config.model_copy(update={"averaging": config.averaging.model_copy(update={"local_steps": 4 * ROUNDS})})
    standing = Standing(build_optimizer(single, parameter_groups(alone, single)))
    own = own_model(single, alone)
    backend = LocalSteps(config, TorchBackend(config, own), own, alone, standing)
    stream = batches_of(0)
    for _ in range(4 * ROUNDS):
        backend.accumulate(next(stream))
    assert torch.allclose(flat(model), flat(own), rtol=0, atol=1e-4)


def test_a_code_rounds_as_the_receiver_decodes() -> None:
    """Half bytes are coarse, and float32 is not; the bytes are a worker's and those of the answer."""
    values, other = torch.randn(256), torch.randn(256)
    exact = Coded(2, 0)
    assert torch.allclose(exact.mean_of([[values], [other]], [1, 3])[0], (values + 3 * other) / 4, atol=1e-6)
    assert (exact.cost.sent_bytes, exact.cost.returned_bytes) == (4 * 256, 4 * 256)
    coarse = Coded(1, 0, HALF_BYTES.compression_type)
    rounded = coarse.mean_of([[values]], [1])[0]
    assert 0 < float((rounded - values).abs().max()) < 0.5
    assert (coarse.cost.sent_bytes, coarse.cost.returned_bytes) == (4 * 256, 128 + 4 * 2)
    assert coarse.cost.encode_s > 0
    assert coarse.cost.decode_s > 0


def test_a_batch_has_the_samples_and_the_labels_of_its_parts() -> None:
    """Labels stand where they stood in their part."""
    parts = [random_batch(number, 3) for number in range(2)]
    whole = joined(parts)
    length = whole.input_ids.shape[1]
    assert whole.samples == 6
    assert torch.equal(whole.input_ids[3:], parts[1].input_ids)
    own = whole.label_positions >= 3 * length
    assert torch.equal(whole.labels[own], parts[1].labels)
    assert torch.equal(whole.label_positions[own] - 3 * length, parts[1].label_positions)


@pytest.mark.parametrize("workers", [4, 32])
def test_all_ways_have_the_same_batches_for_any_number_of_workers(tmp_path: Path, workers: int) -> None:
    """A worker's local step has a share of a common step's samples."""
    for way in WAYS.values():
        config = Study(tmp_path, None, 40_960).config(way, workers, seed=1)
        assert config.averaging.local_batch_size == BATCH // (workers if way.is_local else 1)
        assert config.data.microbatch_size * workers == BATCH
        assert config.averaging.target_batch_size * config.schedule.total_steps == 40_960
        assert SHARES % workers == 0


def run(way: str, workers: int, seed: int, loss: float) -> Run:
    return Run(way, workers, seed, 64, 1, loss, 1.0, 0.5, 10.0, 20.0)


def test_a_ratio_is_to_exact_averages_with_the_same_optimizer_and_seed() -> None:
    """With local steps the workers are as many, too; a run without such a partner does not count."""
    runs = [
        run("exact", 4, 0, 2.0),
        run("exact", 4, 1, 4.0),
        run("float16", 4, 0, 2.2),
        run("float16", 8, 0, 2.2),
        run("float16", 8, 1, 4.0),
        run("float16", 8, 2, 9.0),
        run("AdamW, exact", 8, 0, 2.0),
        run("AdamW, float16", 8, 0, 3.0),
        run("AdamW, float16", 4, 0, 9.0),
        run("Muon, float16", 8, 0, 9.0),
    ]
    bands = {(band.way, band.workers): band for band in bands_of(runs)}
    counted = [("exact", 4), ("float16", 4), ("float16", 8), ("AdamW, exact", 8), ("AdamW, float16", 8)]
    assert list(bands) == counted
    found = bands["float16", 8]
    assert (found.seeds, found.loss, found.exact_loss) == (2, pytest.approx(3.1), 3.0)
    assert (found.ratio, found.spread) == (pytest.approx(1.05), pytest.approx(0.1 / 2**0.5))
    assert bands["AdamW, float16", 8].ratio == 1.5
    assert bands["float16", 4].spread == 0.0
    rows = {row.name: row.value for row in figures_of(runs)}
    assert rows["float16, 8 workers: mean ratio (seeds: 2)"] == pytest.approx(1.05)
    assert (rows["float16: sent"], rows["float16: to decode"]) == (1.0, 20.0)


def test_kept_runs_are_reported_and_drawn_and_not_trained_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder with all runs needs no training; it is refused for another number of samples."""
    (tmp_path / "tokenizer").mkdir()
    study = Study(tmp_path, None, 1024)
    study.prepare()
    for way in WAYS:
        study.path(way, 4, 0).write_text(json.dumps(vars(run(way, 4, 0, 2.0))))
    main(["--out", str(tmp_path), "--samples", "1024", "--workers", "4", "--seeds", "0", "--json"])
    figures = {row["name"]: row["value"] for row in json.loads(capsys.readouterr().out)["figures"]}
    assert figures["1-bit LAMB, 4 workers: held-out loss"] == 2.0
    assert (tmp_path / "virtual-workers.png").read_bytes().startswith(b"\x89PNG")
    kept = json.loads((tmp_path / "runs.json").read_text())
    assert [row["way"] for row in kept] == list(WAYS)
    assert parquet.read_table(tmp_path / "runs.parquet").to_pylist() == kept
    with pytest.raises(SystemExit, match="another model, text or number of samples"):
        Study(tmp_path, None, 2048).prepare()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--workers=4,5", "5 does not divide 32"),
        ("--samples=1000", "multiple of 512"),
        ("--samples=512", "at least 1024"),
    ],
)
def test_all_runs_must_have_equally_many_samples(option: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """So workers divide the shares of a batch, and rounds of local steps the samples."""
    with pytest.raises(SystemExit):
        main([option])
    assert message in capsys.readouterr().err
