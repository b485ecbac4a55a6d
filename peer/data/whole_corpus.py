"""A run's sources read once from beginning to end, in order: for preparing a corpus rather than for training on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

from auth.errors import ConfigError
from peer.config.data import Source
from peer.data.documents import open_units
from peer.data.faults import describe
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
    documents = (document for source in config.data.sources for document in _read(source))
    while block := list(islice(documents, BLOCK)):
        yield block


def _read(source: Source) -> Iterator[str]:
    """A source's documents that its filters of length and language want."""
    name, least, most = source.name, source.filters.min_characters, source.filters.max_characters
    try:
        units = open_units(source, whole=True)
        for number in range(len(units)):
            name = units.name(number)
            with closing(units.open(number, None)) as unit:
                for document in unit:
                    if document and document.strip() and least <= len(document) <= (most or len(document)):
                        yield document
    except ConfigError:
        raise
    except Exception as error:  # the fault boundary: of any file system and format
        raise ConfigError(f"Cannot read {name} ({describe(error)}): mend it, or leave it out.") from error


def _is_json(name: str) -> bool:
    plain = name.removesuffix(".gz").removesuffix(".zst")
    folder = Path(name)
    return plain.endswith(JSON_ENDINGS) or (folder.is_dir() and any(folder.glob("*.jsonl*")))
