"""A release of a real checkpoint: what a stranger finds in it, what its card says, and where it goes."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from auth.errors import ConfigError
from coordinator.checkpoints.manifest import verify
from coordinator.cli.release import app
from coordinator.context.open_run import OpenRun, open_run
from coordinator.evaluation.tasks.plan import Plan
from coordinator.evaluation.tasks.results import TaskResult
from coordinator.evaluation.tasks.worker import run_plan
from coordinator.members.audit import audit_log
from coordinator.publishing.release import ReleaseOptions, make_release
from tests.support.evaluated_runs import FILL, make_evaluated_run
from tests.support.local_hub import TOKEN, Hub
from tests.support.sound_checkpoints import add_sound_checkpoint, publish_to
from tests.support.zygote import forking_python

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's own uploads
RECIPE = {"seeds": [0, 1], "epochs": 4, "learning_rate": 0.01, "batch_size": 8, "max_length": 32}
TAGS = {"name": "tags", "kind": "pos", "train": "tags.conll", "test": "tags.conll", "recipe": RECIPE}
PROBES = {"name": "probes", "kind": "bias", "test": "probes.json"}
CHECK = re.compile(r"## Check\n.*?\*\*([\d.]+)\*\*.*?```python\n(.*?)```", re.DOTALL)
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where the run and its releases are; made once, as a release takes seconds."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@pytest.fixture(scope="module")
def run(folder: Path) -> Iterator[OpenRun]:
    """A run with three tasks and a checkpoint."""
    made = make_evaluated_run(folder, FILL, TAGS, PROBES)
    words = "Many\tA\nhands\tB\nmake\tC\nlight\tA\nwork\tB\n\nriver\tB\nis\tC\nmany\tA\nstreams\tB\n\n"
    (made.path / "tags.conll").write_text(words * 8)
    (made.path / "probes.json").write_text('[{"template": "{group} is a [MASK]", "groups": ["He", "She"], "top": 2}]')
    with open_run(made.path) as opened:
        add_sound_checkpoint(made, opened.database, 5)
        yield opened


def here(plan: Plan) -> TaskResult:
    """In this process: a new one takes seconds to import torch."""
    return run_plan(plan)


@pytest.fixture(scope="module")
def released(run: OpenRun, folder: Path) -> Path:
    """The release with all that there can be."""
    wanted = ReleaseOptions("newest", ("tags",), evaluate=True, demo=True)
    with forking_python():
        made = make_release(run, folder / "release", wanted, lambda: 10.0, here)
    assert made.tasks == ("tags",)
    return folder / "release"


def alone(script: str, folder: Path) -> str:
    """What a script prints in a process that finds transformers and none of ours."""
    block = (
        "import sys\nclass None_:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in {'auth', 'peer', 'coordinator', 'manyhands', 'hivemind'}:\n"
        "            raise ImportError(name)\nsys.meta_path.insert(0, None_())\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", block + script], capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_card_tells_what_there_is_to_know(released: Path) -> None:
    """Why this checkpoint, hyperparameters, tasks with spread, probes, licence, citation."""
    card = (released / "model" / "README.md").read_text(encoding="utf-8")
    assert "The released checkpoint, of step 5, is the newest" in card
    for heading in ("Check", "Training data", "Training", "Compute and energy", "Downstream tasks", "Bias", "Licence"):
        assert f"\n## {heading}\n" in card
    assert "| learning rate |" in card
    assert re.search(r"\| tags \| accuracy \| [01]\.\d+ ± 0\.\d+ \| 16 \|", card)
    assert "distance 0." in card
    assert "| He | She |" in card
    assert "pseudo\\_perplexity" in card
    verify(released / "model")


@pytest.mark.thorough
def test_the_released_model_gives_the_loss_that_its_card_states(released: Path) -> None:
    """The card's own code, where only transformers is, prints just that number, and fillings; the demo works there."""
    card = (released / "model" / "README.md").read_text(encoding="utf-8")
    found = CHECK.search(card)
    assert found is not None
    stated, code = found.groups()
    loading, pipeline = CODE.findall(card.partition("## Intended use")[0])
    demo = "sys.path.insert(0, 'demo')\nimport app\nprint(len(app.MODELS))\n"
    script = (code + loading + pipeline + demo).replace('"DIR"', '"model"')
    printed = alone(script, released)
    assert float(printed.splitlines()[0]) == pytest.approx(float(stated), abs=1e-3)  # other kernels round differently
    assert len([float(line.split()[-1]) for line in printed.splitlines()[1:-1]]) == 5  # each a token's probability
    assert printed.splitlines()[-1] == "2"


def test_the_task_model_comes_with_its_scores(released: Path) -> None:
    """It tags with the run's own labels, and its card has every seed's mean and what it was trained on."""
    card = (released / "tags" / "README.md").read_text(encoding="utf-8")
    assert "base_model: small" in card
    assert "`tags.conll`" in card
    assert json.loads((released / "tags" / "config.json").read_text())["id2label"] == {"0": "A", "1": "B", "2": "C"}
    assert (released / "tags" / "model.safetensors").is_file()


def load_demo(folder: Path) -> Any:
    """The demo's own module, from where it was released."""
    spec = importlib.util.spec_from_file_location("released_demo", folder / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where FastAPI looks for the names of annotations
    spec.loader.exec_module(module)
    return module


def test_the_demo_answers_with_the_released_models(released: Path) -> None:
    """It fills a mask and tags words; what cannot be answered is one sentence."""
    with TestClient(load_demo(released / "demo").app) as client:
        assert "Try the model" in client.get("/").text
        tasks = {name: about["task"] for name, about in client.get("/models").json().items()}
        assert tasks == {"small": "fill-mask", "tags": "token-classification"}
        filled = client.post("/models/small", json={"text": "Many [MASK] make light work."}).json()
        assert len(filled) == 5
        assert all(0 <= each["score"] <= 1 for each in filled)
        tagged = client.post("/models/tags", json={"text": "Many hands make light work"}).json()
        assert [(each["text"], each["label"]) for each in tagged] == [
            ("Many", "A"),
            ("hands", "B"),
            ("make", "C"),
            ("light", "A"),
            ("work", "B"),
        ]
        assert client.post("/models/small", json={"text": "no mask"}).status_code == 400
        assert client.post("/models/none", json={"text": "x"}).status_code == 404
        assert client.post("/models/small", json={"text": "x" * 1001}).status_code == 422


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (ReleaseOptions("newest", ("fill",)), "names no task 'fill' that is fine-tuned; it names: tags"),
        (ReleaseOptions("best"), "must be one of"),
    ],
)
def test_a_release_that_cannot_be_made_leaves_nothing(
    run: OpenRun, folder: Path, wanted: ReleaseOptions, said: str
) -> None:
    """One sentence, and no folder."""
    with pytest.raises(ConfigError, match=said):
        make_release(run, folder / "none", wanted, lambda: 10.0, here)
    assert not (folder / "none").exists()


def command(*arguments: object) -> str:
    """Run the command; raises what it raises."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    return result.stdout


@pytest.mark.usefixtures("forked")
def test_it_is_pushed_to_a_repository_for_each_part(
    run: OpenRun, folder: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model, the task's model that names it, and a Space that loads both; the audit log has it."""
    monkeypatch.setattr("coordinator.publishing.release.run_apart", here)
    monkeypatch.setattr("coordinator.publishing.release.make_release.__defaults__", (here,))
    (run.directory.path / "token").write_text(TOKEN)
    (run.directory.path / "token").chmod(0o600)
    publish_to(run.directory.path, {"to": "hf://us/model", "secret_file": "token"})
    arguments = ("--rule", "5", "--task", "tags", "--demo", "--push", "hf://us/model", "--json")
    facts = json.loads(command(run.directory.path, folder / "pushed", *arguments))
    assert facts["step"] == 5
    assert len(facts["published"]) == 3
    assert {"model.safetensors", "README.md", "tokenizer.json"} <= set(hub.files("us/model"))
    assert b"base_model: us/model" in hub.files("us/model-tags")["README.md"]
    demo = hub.files("us/model-demo")
    assert {"app.py", "Dockerfile", "index.html", "requirements.txt"} <= set(demo)
    assert b"sdk: docker" in demo["README.md"]
    assert [about["model"] for about in json.loads(demo["models.json"]).values()] == ["us/model", "us/model-tags"]
    with open_run(run.directory.path) as again:
        assert "release" in [row.act for row in audit_log(again.database, 10)]


def test_a_place_that_is_not_of_the_run_is_refused(run: OpenRun, folder: Path) -> None:
    """Before anything is made."""
    with pytest.raises(ConfigError, match="names no 'hf://x/y'"):
        command(run.directory.path, folder / "x", "--push", "hf://x/y")
