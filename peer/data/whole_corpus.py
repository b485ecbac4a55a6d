"""A run's sources read once from beginning to end, in order: for preparing a corpus rather than for training on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from auth.errors import ConfigError
from peer.config.data import Source
from peer.data.builtin_corpus import builtin_documents
from peer.data.hub_datasets import HubDocuments
from peer.data.local_files import jsonl_documents, text_documents
from peer.run_config import RunConfig

BLOCK = 1_000  # documents
RUN_FILES = (".yaml", ".yml")
JSON_ENDINGS = (".jsonl", ".ndjson", ".json")


def sources_of(names: Sequence[str], text_field: str) -> RunConfig:
    """A run file, or files of documents as the sources of a run; raises `ConfigError`."""
    if any(Path(name).suffix in RUN_FILES for name in names):
        if len(names) > 1:
            raise ConfigError("Give one run file, or files of documents, not both.")
        return RunConfig.from_yaml(Path(names[0]))
    sources = [
        {"kind": "jsonl", "path": name, "text_field": text_field} if _is_json(name) else {"kind": "text", "path": name}
        for name in names
    ]
    return RunConfig.from_mapping({"data": {"sources": sources}})


def read_blocks(config: RunConfig) -> Iterator[list[str]]:
    """All documents of all sources, `BLOCK` at a time; raises `ConfigError`."""
    documents = (document for source in config.data.sources for document in _read(source, config) if document.strip())
    while block := list(islice(documents, BLOCK)):
        yield block


def _read(source: Source, config: RunConfig) -> Iterable[str]:
    if source.kind == "builtin":
        return builtin_documents()
    if source.kind == "hub":
        return _one_epoch(HubDocuments(source, config.run.seed, config.data.shuffle_buffer, None))
    assert source.path is not None
    return text_documents(source.path) if source.kind == "text" else jsonl_documents(source.path, source.text_field)


def _one_epoch(stream: HubDocuments) -> Iterator[str]:
    while True:
        document = next(stream)
        if stream.epoch:
            return
        yield document


def _is_json(name: str) -> bool:
    plain = name.removesuffix(".gz").removesuffix(".zst")
    folder = Path(name)
    return plain.endswith(JSON_ENDINGS) or (folder.is_dir() and any(folder.glob("*.jsonl*")))
