"""What slow lines can save, and what it costs: bytes, time and final loss of each way to average, on the same samples.

    python benchmarks/compression.py [--quick] [--json] [--only TEXT]

Two trainers and a keeper, real peers, train a small ALBERT from the same first weights on the same text; the loss is
the keeper's on held-out text. The trainers' lines are held below a rate, as a volunteer may hold them. The baseline is
run twice: differences as large as that between the two are noise. With `--quick` some ways are left out, with `--only`
all but the baseline and those with this text in their name.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from hivemind.compression import CompressionInfo

from auth.keys import AuthorityKey
from auth.tokens import Role
from benchmarks._members import admit
from benchmarks._small_run import SMALL_RUN
from benchmarks.reporting import Figure, argument_parser, report
from peer.config.run import RunConfig
from peer.config.training import Compression
from peer.data.prepare import prepare_tokenizer
from peer.reduction.compression import HALF_BYTES, compression_of

ROOT = Path(__file__).resolve().parent.parent
Changes = Mapping[str, Mapping[str, Any]]  # of a run file's sections
BASELINE = "float16"
MICROBATCH = 16
TRAINERS = 2
LOCAL_BATCH = 4 * MICROBATCH
CODED_VALUES, PART_VALUES = 2**23, 2**18
INFO = CompressionInfo.from_tensor(torch.zeros(1))
DELAY: Changes = {"averaging": {"delay": True}}
EIGHT_BITS: Changes = {"averaging": {"compression": "8bit-blockwise"}}
SPARSE: Changes = {"averaging": {"compression": "topk-2bit"}}
LOCAL: Changes = {"optimizer": {"name": "adamw", "learning_rate": 0.005}}
PLAIN_OUTER_STEPS: Changes = {"averaging": {"outer_learning_rate": 1.0, "outer_momentum": 0.0}}
CHANGES: dict[str, tuple[Changes, ...]] = {
    BASELINE: (),
    "none": ({"averaging": {"compression": "none"}},),
    "8bit-blockwise": (EIGHT_BITS,),
    "topk-2bit": (SPARSE,),
    "float16, PowerSGD rank 4": ({"averaging": {"powersgd_rank": 4}},),
    "float16, PowerSGD rank 16": ({"averaging": {"powersgd_rank": 16}},),
    "float16, delay": (DELAY,),
    "float16, local steps": (LOCAL,),
    "float16, local steps, delay": (LOCAL, DELAY),
    "8bit-blockwise, local steps": (LOCAL, EIGHT_BITS),
    "topk-2bit, local steps": (LOCAL, SPARSE, PLAIN_OUTER_STEPS),
    "float16 again": (),
}


@dataclass(frozen=True)
class Scale:
    """How much is trained."""

    samples: int  # by all, in each way
    target_batch_size: int
    matchmaking_time_s: float
    line_mbit: float  # of each trainer's line, in each direction
    rarer: int  # how many target batches are one where peers take local steps
    ways: tuple[str, ...]  # to average


FULL = Scale(8192, 512, matchmaking_time_s=1.0, line_mbit=4.0, rarer=4, ways=tuple(CHANGES))
QUICK_WAYS = (BASELINE, "8bit-blockwise", "topk-2bit", "float16, PowerSGD rank 4", "8bit-blockwise, local steps")
QUICK = Scale(192, 64, 1.0, 40.0, rarer=3, ways=QUICK_WAYS)


@dataclass(frozen=True)
class Plan:
    """What one process is."""

    role: Role
    credentials_dir: str
    tokenizer_dir: str
    config: str  # whose data it reads
    device_number: int
    batches: int  # to make ahead, and use again and again
    line_mbit: float  # in each direction; a keeper's is as fast as it can be


@dataclass(frozen=True)
class Outcome:
    """What came of one way."""

    sent_mb: float  # by both trainers, all that they sent, with headers
    received_mb: float  # likewise
    seconds: float  # from the start to the last step
    loss: float  # on held-out text


def main(arguments: Sequence[str] | None = None) -> None:
    """Train once in each way, and compare with gradients in 16 bits."""
    parser = argument_parser("Bytes, time and loss of each way to average less.")
    parser.add_argument("--only", default="", metavar="TEXT", help="ways with this in their name, and the baseline")
    options = parser.parse_args(arguments)
    scale = only(QUICK if options.quick else FULL, options.only)
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        processes = start_peers(Path(directory), scale, stack)
        outcomes = {name: train(processes, config, scale) for name, config in ways(scale).items()}
    report(
        f"{scale.samples:,} samples, {TRAINERS} trainers on lines of {scale.line_mbit:g} Mbit/s",
        [*figures(outcomes), *processor_figures(scale)],
        options.json,
    )


def only(scale: Scale, text: str) -> Scale:
    """The baseline, and those ways that have this text in their name."""
    return replace(scale, ways=tuple(name for name in scale.ways if name == BASELINE or text in name))


def ways(scale: Scale) -> dict[str, RunConfig]:
    """Each way's run, the baseline's first; with local steps the global batch is larger, and divided into them."""
    rare = scale.target_batch_size * scale.rarer
    local: Changes = {"averaging": {"target_batch_size": rare, "local_steps": rare // LOCAL_BATCH}}
    runs = {name: (*CHANGES[name], local) if LOCAL in CHANGES[name] else CHANGES[name] for name in scale.ways}
    return {name: small_run(scale, changes) for name, changes in runs.items()}


def small_run(scale: Scale, changes: Sequence[Changes] = ()) -> RunConfig:
    """The small run, made smaller yet, with these changes of its sections."""
    run: dict[str, Any] = yaml.safe_load(SMALL_RUN.read_text(encoding="utf-8"))
    run["model"] |= {"num_hidden_layers": 2, "max_position_embeddings": 64}
    run["tokenizer"] |= {"vocab_size": 2000}
    run["data"] |= {"sequence_length": 64, "microbatch_size": MICROBATCH}
    run["averaging"] |= {
        "target_batch_size": scale.target_batch_size,
        "matchmaking_time_s": scale.matchmaking_time_s,
        "progress_refresh_s": 0.1,
    }
    for change in changes:
        for section, keys in change.items():
            run[section] |= keys
    return RunConfig.from_mapping(run)


class PeerProcess:
    """A process that takes part in one swarm after another; it speaks and hears JSON, one object a line."""

    def __init__(self, plan: Plan) -> None:
        command = [sys.executable, "-m", "benchmarks._compression_worker", json.dumps(asdict(plan))]
        self.process = subprocess.Popen(  # noqa: S603
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, content: object) -> None:
        """Say something to it."""
        assert self.process.stdin is not None
        print(json.dumps(content), file=self.process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """What it says next; raises `RuntimeError` if it has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a peer has ended with exit code {self.process.wait()}")
        said: dict[str, Any] = json.loads(line)
        return said

    def end(self) -> None:
        """Let it end; it does when nothing more is said to it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def start_peers(directory: Path, scale: Scale, stack: ExitStack) -> list[PeerProcess]:
    """The keeper's process and the trainers', ready to take part."""
    config = small_run(scale)
    tokenizer_dir = directory / "tokenizer"
    prepare_tokenizer(config, tokenizer_dir)
    authority = AuthorityKey.generate()
    roles: list[Role] = ["keeper", *["trainer" for _ in range(TRAINERS)]]  # type: ignore[list-item]
    processes = []
    for number, role in enumerate(roles):
        credentials_dir = admit(directory / f"{role}-{number}", authority, role, config.run.name)
        batches = 1 + scale.samples // TRAINERS // MICROBATCH
        plan = Plan(role, credentials_dir, str(tokenizer_dir), config.to_json(), number, batches, scale.line_mbit)
        processes.append(PeerProcess(plan))
        stack.callback(processes[-1].end)
    for process in processes:
        process.answer()
    return processes


def train(processes: Sequence[PeerProcess], config: RunConfig, scale: Scale) -> Outcome:
    """A run from first weights, by all processes."""
    keeper, *trainers = processes
    task = {"config": config.to_json(), "steps": scale.samples // config.averaging.target_batch_size}
    keeper.tell(task | {"initial_peers": []})
    addresses = keeper.answer()["addresses"]
    for trainer in trainers:
        trainer.tell(task | {"initial_peers": addresses})
    for trainer in trainers:
        trainer.answer()
    began = time.perf_counter()
    for trainer in trainers:
        trainer.tell("begin")
    trained = [trainer.answer() for trainer in trainers]
    seconds = time.perf_counter() - began
    kept = keeper.answer()
    for process in processes:
        process.tell("leave")
    for process in processes:
        process.answer()
    sent_mb, received_mb = (sum(said[way] for said in trained) / 1e6 for way in ("sent_bytes", "received_bytes"))
    return Outcome(sent_mb, received_mb, seconds, kept["loss"])


def processor_figures(scale: Scale) -> list[Figure]:
    """The processor's time for each code among the ways: of a sender, and of a peer that returns or takes averages."""
    used = {change["averaging"]["compression"] for name in scale.ways for change in CHANGES[name] if is_code(change)}
    seconds = {name: code_seconds(name) for name in sorted({BASELINE, *used})}
    return [
        Figure(f"{name}: a core, {what}", now, "ns a value", before, BASELINE)
        for name in seconds
        if name != BASELINE
        for what, now, before in zip(("a gradient", "an average"), seconds[name], seconds[BASELINE], strict=True)
    ]


def is_code(change: Changes) -> bool:
    """True of a change of the compression."""
    return "compression" in change.get("averaging", {})


def code_seconds(name: Compression) -> tuple[float, float]:
    """Nanoseconds of one core for each value of a gradient and of an average, to encode and to decode it once."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gradient = torch.randn(CODED_VALUES, generator=torch.Generator().manual_seed(0))
    senders, reducers = compression_of(name), HALF_BYTES if name == "topk-2bit" else compression_of(name)
    average = torch.cat([senders.extract(senders.compress(part, INFO)) for part in torch.split(gradient, PART_VALUES)])
    found = []
    for code, values in ((senders, gradient), (reducers, average)):
        began = time.process_time()
        for part in torch.split(values, PART_VALUES):
            code.extract(code.compress(part, INFO))
        found.append((time.process_time() - began) / CODED_VALUES * 1e9)
    torch.set_num_threads(threads)
    return found[0], found[1]


def figures(outcomes: Mapping[str, Outcome]) -> list[Figure]:
    """Four of each way, beside the baseline's."""
    baseline = outcomes[BASELINE]
    rows = []
    for name, outcome in outcomes.items():
        if outcome is not baseline:
            rows += [
                Figure(f"{name}: sent by the trainers", outcome.sent_mb, "MB", baseline.sent_mb, BASELINE),
                Figure(f"{name}: received by them", outcome.received_mb, "MB", baseline.received_mb, BASELINE),
                Figure(f"{name}: time", outcome.seconds, "s", baseline.seconds, BASELINE),
                Figure(f"{name}: loss on held-out text", outcome.loss, "loss", baseline.loss, BASELINE),
            ]
    return rows


if __name__ == "__main__":
    main()
