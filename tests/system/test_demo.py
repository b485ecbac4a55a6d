"""`manyhands demo` as a person runs it: everything real, from the documents to the checkpoint.

All of a run's processes begin with a fresh interpreter here: demo, coordinator, service, keeper, volunteer and worker.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sqlalchemy import func, select
from transformers import AutoModelForMaskedLM, AutoTokenizer

from coordinator.checkpoints.validations import validations
from coordinator.checkpoints.validator import open_validator
from coordinator.context.open_run import open_run
from coordinator.store.ledger_models import LostSamples
from coordinator.store.models import UnigramBaseline
from peer.config.run import BUILTIN_RUNS, RunConfig
from tests.support.ports import free_ports
from tests.system.demo_command import Finished, run_demo

FRESH = True
STEPS = 7  # a checkpoint after five, another at the end


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A demo that ended by itself after some steps."""
    directory = tmp_path_factory.mktemp("demo") / "run"
    (port,) = free_ports("127.0.0.1", 1)
    finished = run_demo("--steps", str(STEPS), "--dir", str(directory), "--port", str(port))
    assert finished.exit_code == 0, finished.stderr[-2000:]
    assert "Dashboard: http://127.0.0.1:" in finished.stderr
    return finished


@pytest.fixture(scope="module")
def finished(demo: Finished) -> dict[str, object]:
    """The summary of that demo."""
    summary: dict[str, object] = json.loads(demo.stdout)
    return summary


def test_ps_shows_every_process_by_its_name(demo: Finished) -> None:
    """Coordinator, volunteers and what they fork, each once it has begun."""
    ours = {title for title in demo.titles if title.startswith("manyhands: ")}
    parts = ("supervisor", "service", "keeper", "validator", "answerer", "agent")
    assert ours == {
        "manyhands: demo",
        "manyhands: worker",
        *(f"manyhands: {part} demo" for part in parts),
        *(f"manyhands: {name}: swarm node" for name in ("keeper demo", "worker")),
    } | (ours & {"manyhands: preparation", "manyhands: demo's run"})  # which are soon over


def test_summary_says_what_happened(finished: dict[str, object]) -> None:
    """All steps, a falling loss, samples of both members, and each step's batch full but for what was told as lost."""
    target = RunConfig.from_yaml(BUILTIN_RUNS / "demo.yaml").averaging.target_batch_size
    assert finished["steps"] >= STEPS  # type: ignore[operator]
    assert finished["last_loss"] < finished["first_loss"]  # type: ignore[operator]
    assert finished["target_batch_size"] == target
    assert 0 <= finished["data_wait_share"] < 1  # type: ignore[operator]
    by_member = finished["samples_by_member"]
    by_step = finished["samples_by_step"]
    assert isinstance(by_member, dict)
    assert isinstance(by_step, dict)
    assert len(by_member) == 2
    assert all(samples > 0 for samples in by_member.values())
    with open_run(run_of(finished)) as run, run.database() as session:
        lost = session.scalar(select(func.sum(LostSamples.samples))) or 0
    assert sum(max(0, target - samples) for samples in by_step.values()) <= lost
    assert sum(by_member.values()) == sum(by_step.values())


def test_checkpoint_loads_in_plain_transformers(finished: dict[str, object]) -> None:
    """The checkpoint that the summary names gives its own probe loss, to 1e-5, and its tokenizer loads."""
    path = Path(str(finished["checkpoint"]))
    manifest = json.loads((path / "manifest.json").read_text())
    model = AutoModelForMaskedLM.from_pretrained(path).eval()
    with torch.no_grad():
        loss = float(model(**load_file(path / "probe.safetensors")).loss)
    assert loss == pytest.approx(manifest["probe_loss"], abs=1e-5)
    assert manifest["step"] == finished["steps"]
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert len(tokenizer("many hands make light work")["input_ids"]) > 2


def test_loss_on_held_out_text_falls(finished: dict[str, object]) -> None:
    """The last checkpoint beats the first on text that nobody trained on, and whoever guesses by frequency alone.

    The summary tells what was evaluated. The demo does not wait for a validator that is slow to end; what it has left
    is evaluated here.
    """
    validator = open_validator(run_of(finished))
    told = [row.step for row in validations(validator.database)]
    while validator.evaluate_newest(lambda: False):
        continue
    first, *_, last = validations(validator.database)
    assert first.step < last.step == finished["steps"]
    assert first.set_sha256 == last.set_sha256
    assert first.mlm_loss is not None
    assert last.mlm_loss is not None
    with validator.database() as session:
        by_frequency = session.scalars(select(UnigramBaseline.loss)).one()
    assert last.mlm_loss < min(first.mlm_loss, by_frequency)
    assert last.samples == RunConfig.from_yaml(BUILTIN_RUNS / "demo.yaml").data.validation.samples
    summary = finished["validation"]
    assert ([] if summary is None else [summary["first"]["step"], summary["last"]["step"]]) == told[:1] + told[-1:]  # type: ignore[index]


def run_of(finished: dict[str, object]) -> Path:
    """Its directory."""
    return Path(str(finished["checkpoint"])).parent.parent
