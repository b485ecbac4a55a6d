"""The folder of a demo: the page's files, and which models it tries; ready for a Space, or for `uvicorn app:app`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

FILES = ("app.py", "index.html", "requirements.txt", "Dockerfile")
SOURCE = Path(__file__).parent / "space"
# What the demo knows how to show.
SHOWN = {
    "fill-mask": "Fill a mask",
    "token-classification": "Tag words",
    "text-classification": "Classify a text",
    "text-generation": "Go on with a text",
}


@dataclass(frozen=True)
class Shown:
    """A model of the demo."""

    model: str  # a hub's repository, or a folder relative to the demo's that begins with a dot
    task: str  # as transformers' pipelines call it


def write_demo(folder: Path, run_name: str, terms: str, models: Mapping[str, Shown]) -> None:
    """Fill an empty folder; models of kinds that the page cannot show are left out."""
    folder.mkdir()
    for name in FILES:
        (folder / name).write_bytes((SOURCE / name).read_bytes())
    about = {
        name: {"model": each.model, "task": each.task, "title": f"{SHOWN[each.task]} ({name})"}
        for name, each in models.items()
        if each.task in SHOWN
    }
    (folder / "models.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    repositories = [each.model for each in models.values() if not each.model.startswith(".")]
    front: dict[str, object] = {"title": f"Try {run_name}", "sdk": "docker", "app_port": 7860}
    front |= {"license": terms} if terms else {}
    front |= {"models": repositories} if repositories else {}
    head = yaml.safe_dump(front, sort_keys=False, allow_unicode=True)
    text = f"---\n{head}---\n\n# Try {run_name}\n\nA page to try the models of the run `{run_name}`.\n"
    (folder / "README.md").write_text(text, encoding="utf-8")
