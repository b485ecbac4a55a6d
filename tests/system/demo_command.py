"""`manyhands demo`, as a person types it, to its end; and the file of a run that is soon over."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.support.titles import title_of
from tests.support.waiting import PATIENCE_S

DOCUMENTS = Path(__file__).parents[2] / "docs"
LENGTH, VOCABULARY = 64, 500
LOOK_S = 0.5
# Its steps take about a second, as none is faster in earnest.
TINY: Mapping[str, Mapping[str, Any]] = {
    "model": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": LENGTH,
    },
    "tokenizer": {"vocab_size": VOCABULARY, "max_training_documents": 100},
    "data": {"sequence_length": LENGTH, "microbatch_size": 32, "validation": {"share": 0.0}},
    "optimizer": {"learning_rate": 0.1},
    "schedule": {"warmup_steps": 1, "total_steps": 1000},
    "averaging": {
        "target_batch_size": 512,
        "averaging_timeout_s": 20,
        "statistics_expiration_s": 8,
        "progress_refresh_s": 0.15,
    },
    "checkpoints": {"every_steps": 1},
    "dashboard": {"try_it": False},
}


def tiny_run(path: Path, own: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write the file of a tiny model's run, which says this beside; without `own`, nothing is evaluated or answered.

    It trains on our own pages: to read the built-in corpus takes each process seconds.
    """
    text = path.with_suffix(".txt")
    text.write_text("\n\n".join(page.read_text(encoding="utf-8") for page in sorted(DOCUMENTS.glob("*.md"))), "utf-8")
    content = {name: {**TINY.get(name, {}), **own.get(name, {})} for name in {**TINY, **own}}
    content["run"] = {"name": f"tiny-{path.stem}"}
    content["data"]["sources"] = [{"kind": "text", "path": str(text)}]
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Finished:
    """A demo that ended by itself."""

    exit_code: int
    stdout: str
    stderr: str
    titles: frozenset[str]  # of its processes, as `ps` showed them


def run_demo(*options: str) -> Finished:
    """Run it with `--json` and these options; what runs too long is ended with all of its processes."""
    command = [sys.executable, "-m", "manyhands", "demo", "--json", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    demo, deadline = psutil.Process(process.pid), time.monotonic() + PATIENCE_S
    titles: set[str] = set()
    while True:
        try:
            stdout, stderr = process.communicate(timeout=LOOK_S)
            return Finished(process.returncode, stdout, stderr, frozenset(titles))
        except subprocess.TimeoutExpired:
            titles |= {title_of(each.pid) for each in (demo, *demo.children(recursive=True))}
            if time.monotonic() > deadline:
                deadline = math.inf  # a second signal would end it at once
                os.killpg(process.pid, signal.SIGTERM)
