"""How long a volunteer waits: from `manyhands join` to the first microbatch that the swarm hears of.

    python benchmarks/join.py [--quick] [--json]

A small run is served on this machine and joined several times, the first time as a new device. The baseline is what
no volunteer can save: a Python process that only imports torch, transformers and hivemind.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks._small_run import SMALL_RUN
from benchmarks.reporting import Figure, argument_parser, report
from coordinator.context.open_run import OpenRun, create_run, make_settings, open_run
from coordinator.ledger.presence import read_swarm_status
from coordinator.run.ports import free_ports
from peer.config.run import RunConfig

HOST = "127.0.0.1"
TIMEOUT_S = 120.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Join once as a new device and then as a known one; compare with bare imports."""
    options = argument_parser("From `manyhands join` to the first reported microbatch.").parse_args(arguments)
    repeats = 1 if options.quick else 3
    with tempfile.TemporaryDirectory() as directory, served_run(Path(directory)) as run:
        imports = [seconds_to_import() for _ in range(repeats)]
        code = run.membership.invite("volunteer")[0]
        first = seconds_to_train(run, Path(directory) / "device", code)
        again = [seconds_to_train(run, Path(directory) / "device", "") for _ in range(repeats)]
    baseline = statistics.median(imports)
    figures = [
        Figure("new device: first microbatch after", first, "s", baseline, "imports alone"),
        Figure("known device: first microbatch after", statistics.median(again), "s", baseline, "imports alone"),
    ]
    report("joining", figures, options.json)


@contextmanager
def served_run(directory: Path) -> Iterator[OpenRun]:
    """The small run, served with its keeper."""
    control_port, web_port, swarm_port = free_ports(HOST, 3)
    settings = make_settings(
        public_host=HOST, bind_host=HOST, control_port=control_port, web_port=web_port, swarm_port=swarm_port
    )
    path = create_run(directory / "run", RunConfig.from_yaml(SMALL_RUN), settings).path
    with open_run(path) as run, (directory / "serve.log").open("w") as log:
        server = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "manyhands", "coordinator", "serve", str(path)], stdout=log, stderr=log
        )
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while read_swarm_status(run.database) is None and time.monotonic() < deadline:
                time.sleep(0.1)
            yield run
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()


def seconds_to_train(run: OpenRun, state_dir: Path, invite: str) -> float:
    """Start a volunteer, wait for its first progress, let it leave."""
    link = str(run.directory.join_link)
    options = ["--threads", "1", "--listen", f"/ip4/{HOST}/tcp/0", "--log-format", "json"]
    began = time.perf_counter()
    process = subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-m", "manyhands", "join", link, "--state-dir", str(state_dir), *options],
        env=os.environ | {"MANYHANDS_INVITE": invite},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    seconds = float("nan")
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "Progress" and event["own_samples"] > 0:
            seconds = time.perf_counter() - began
            break
    process.send_signal(signal.SIGTERM)
    process.stdout.read()
    process.wait()
    return seconds


def seconds_to_import() -> float:
    """A process that imports what the worker needs, and nothing else."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch, transformers, hivemind"], check=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
