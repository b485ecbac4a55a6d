"""A family of each objective trains in `manyhands demo --config`: all is real, from the documents to the checkpoint.

All families build, learn and are saved without a swarm in `tests/peer/models` and `tests/coordinator/checkpoints`.
ALBERT, and what else a demo starts, its validator and the model that answers, `test_demo.py` has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoTokenizer,
)

from tests.support.ports import free_ports
from tests.support.waiting import PATIENCE_S
from tests.system.demo_command import VOCABULARY, Finished, run_demo, tiny_run

AT_ONCE = 2  # demos, on two cores
STEPS = 2
DISCRIMINATOR_WEIGHT = 50.0  # the default
# What the run files say beside sizes.
RUNS: dict[str, dict[str, Any]] = {
    "electra": {"model": {"embedding_size": 16}, "objective": {"name": "rtd", "generator_size": 0.5}},
    "modernbert": {
        "objective": {"name": "mlm"},
        "tokenizer": {"preset": "byte-level"},
        "data": {"cross_document_attention": False},
    },
    "gpt2": {"objective": {"name": "clm"}, "tokenizer": {"preset": "byte-level"}},
}


def run_family(config: Path, directory: Path, port: int) -> Finished:
    """A demo of one family, from its run file."""
    options = {"config": config, "dir": directory, "port": port, "steps": STEPS, "peers": 1}
    return run_demo(*(f"--{name}={value}" for name, value in options.items()))


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Finished]]]:
    """All demos, under way: most of a demo's time is waiting for processes to start."""
    folder = tmp_path_factory.mktemp("families")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        started = {}
        for (architecture, own), port in zip(RUNS.items(), free_ports("127.0.0.1", len(RUNS)), strict=True):
            model = {"architecture": architecture, **own.get("model", {})}
            config = tiny_run(folder / f"{architecture}.yaml", {**own, "model": model})
            started[architecture] = pool.submit(run_family, config, folder / architecture, port)
        yield started


@pytest.mark.parametrize("architecture", RUNS)
def test_a_family_trains(demos: dict[str, Future[Finished]], architecture: str) -> None:
    """Two global steps, then a checkpoint that transformers loads whole and that gives its own probe loss."""
    finished = demos[architecture].result(timeout=len(RUNS) * PATIENCE_S)
    assert finished.exit_code == 0, finished.stderr[-2000:]
    summary = json.loads(finished.stdout)
    assert summary["steps"] >= STEPS
    weight = DISCRIMINATOR_WEIGHT if architecture == "electra" else 0
    assert 0 < summary["last_loss"] < 2 * math.log(VOCABULARY) + weight
    path = Path(summary["checkpoint"])
    manifest = json.loads((path / "manifest.json").read_text())
    kinds = {"electra": AutoModelForPreTraining, "gpt2": AutoModelForCausalLM}
    kind = kinds.get(architecture, AutoModelForMaskedLM)
    model, report = kind.from_pretrained(path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.no_grad():
        loss = float(model.eval()(**load_file(path / "probe.safetensors")).loss)
    assert loss == pytest.approx(manifest["probe_loss"], abs=1e-5)
    assert len(AutoTokenizer.from_pretrained(path)("many hands make light work")["input_ids"]) > 2
