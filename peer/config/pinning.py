"""Which of a run's sources may change under the run: what volunteers read today, they may not read tomorrow."""

from __future__ import annotations

import re
from collections.abc import Iterator

from peer.config.addresses import is_remote
from peer.config.data import Source
from peer.run_config import RunConfig

_COMMIT = re.compile(r"[0-9a-f]{40}")
_PINNED = re.compile(r"hf://[^@]+@[0-9a-f]{40}/.*")


def unpinned(config: RunConfig) -> Iterator[str]:
    """One sentence for each source, or scorer's model, that no revision or digest holds fast."""
    for source in config.data.sources:
        if source.kind == "hub" and not _COMMIT.fullmatch(source.revision or ""):
            yield f"The data source {source.name} is not pinned: give the commit (40 hex digits) as its `revision`."
        elif any(is_remote(path) and not _PINNED.fullmatch(path) for path in source.paths):
            yield (
                f"The data source {source.name} is not pinned: whoever can change its files changes what volunteers "
                "train on; files of the hub can be pinned by `@COMMIT` in their address."
            )
        yield from _unpinned_model(source)


def _unpinned_model(source: Source) -> Iterator[str]:
    scorer = None if source.sampling is None else source.sampling.scorer
    if scorer is not None and scorer.model is not None and scorer.sha256 is None:
        yield f"The scorer's model {scorer.model} is not pinned: give its digest as `sha256`."
