"""A complete run that is made within a second: a few sentences, a tiny tokenizer, free ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from auth.files import write_private
from coordinator.context.open_run import make_settings
from coordinator.run.directory import RunDirectory
from peer.config.run import RunConfig
from peer.data.prepare import prepare_tokenizer
from tests.support.ports import free_ports
from tests.support.stores import put_tables

HOST = "127.0.0.1"
NO_VALIDATION: Mapping[str, Any] = MappingProxyType({"share": 0.0})  # one process less to start
TARGET_BATCH_SIZE = 4096  # so that a step of this tiny model takes about a second, as no step is faster in earnest
SENTENCES = (
    "Many hands make light work. Whoever has an hour to spare may lend it to the others.",
    "The batch is filled by all who are here. Nobody waits for those who have left.",
    "A river is many small streams. Each brings what it has and none is asked for more.",
)
_tokenizers: dict[str, dict[str, bytes]] = {}  # the files of those that this process has made


def small_config(
    directory: Path,
    phases: Sequence[dict[str, Any]] = (),
    validation: Mapping[str, Any] = NO_VALIDATION,
    try_it: bool = False,
) -> RunConfig:
    """A run over a text file of its own in `directory`."""
    text = directory / "documents.txt"
    text.write_text("\n\n".join(f"{sentence} Number {n}." for n in range(40) for sentence in SENTENCES))
    return RunConfig.from_mapping(
        {
            "run": {"name": "small"},
            "model": {
                "embedding_size": 16,
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "intermediate_size": 64,
                "max_position_embeddings": 64,
            },
            "tokenizer": {"vocab_size": 120},
            "data": {
                "sources": [{"kind": "text", "path": str(text)}],
                "sequence_length": 32,
                "microbatch_size": 32,
                "validation": dict(validation),
            },
            "schedule": {"warmup_steps": 1, "total_steps": 1000},
            "averaging": {
                "target_batch_size": TARGET_BATCH_SIZE,
                "averaging_timeout_s": 20.0,
                "statistics_expiration_s": 10.0,
                "progress_refresh_s": 0.15,
            },
            "phases": phases,
            "checkpoints": {"every_steps": 2, "keep": 6},
            "dashboard": {"try_it": try_it},
        }
    )


def make_small_run(
    directory: Path,
    phases: Sequence[dict[str, Any]] = (),
    validation: Mapping[str, Any] = NO_VALIDATION,
    host: str = HOST,
    database_url: str | None = None,
    try_it: bool = False,
) -> RunDirectory:
    """Make it in `directory`/run, to be served at one address: unless said otherwise, to this machine only."""
    control_port, web_port, swarm_port = free_ports(HOST, 3)
    settings = make_settings(
        public_host=host,
        bind_host=host,
        control_port=control_port,
        web_port=web_port,
        swarm_port=swarm_port,
        database_url=database_url,
    )
    config = small_config(directory, phases, validation, try_it)
    return RunDirectory.create(directory / "run", config, settings, prepare=_prepare)


def _prepare(run: RunDirectory) -> None:
    put_tables(run)
    kind = run.config.model_dump_json(exclude={"data": {"sources"}})  # the text is the same everywhere
    if kind not in _tokenizers:
        prepare_tokenizer(run.config, run.tokenizer_dir)
        _tokenizers[kind] = {path.name: path.read_bytes() for path in run.tokenizer_dir.iterdir()}
    for name, content in _tokenizers[kind].items():
        write_private(run.tokenizer_dir / name, content)
