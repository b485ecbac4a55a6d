"""How well a language model likes documents: scorers, and how to open the one that a run file or a command names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from auth.errors import ConfigError
from peer.config.addresses import is_remote
from peer.config.data import Source
from peer.config.sampling import Scorer as ScorerConfig
from peer.data.addresses import storage_options
from peer.data.digests import sha256_of


class Scorer(Protocol):
    """Gives documents their perplexities."""

    def perplexities(self, documents: Sequence[str]) -> NDArray[np.float64]:
        """(documents,), each 1 or more; infinite where there is nothing to score."""
        ...


def open_scorer(config: ScorerConfig, tokenizer_dir: Path | None) -> Scorer:
    """The scorer that `config` describes; raises `ConfigError`.

    `tokenizer_dir` holds the run's tokenizer, which scores where no model is named.
    """
    if config.kind == "kenlm":
        from peer.data.kenlm_scoring import KenlmScorer

        assert config.model is not None
        return KenlmScorer(_checked_copy(config, config.model), config.text)
    from peer.data.tokenizers import read_tokenizer
    from peer.data.unigram_scoring import UnigramScorer

    path = tokenizer_dir if config.model is None else _checked_copy(config, config.model)
    if path is None:
        raise ConfigError("Sampling needs a scorer: the run's tokenizer, or a `model` for `sampling.scorer`.")
    return UnigramScorer(read_tokenizer(path))


def _checked_copy(config: ScorerConfig, address: str) -> Path:
    """The model's file, of which the digest is right if the run file gives one; raises `ConfigError`."""
    path = local_copy(address)
    if config.sha256 is not None and not (path.is_file() and sha256_of(path).hex() == config.sha256):
        raise ConfigError(f"The scorer's model {address} is not the one that the run names: its SHA-256 differs.")
    return path


def local_copy(address: str) -> Path:
    """The file at a path, or a copy of what is at an address, which lasts as long as this process."""
    if not is_remote(address):
        return Path(address)
    import fsspec

    try:
        options = {address.partition("://")[0]: storage_options(Source(kind="text", path=(address,)))}
        return Path(fsspec.open_local(f"simplecache::{address}", **options))
    except Exception as error:  # of any file system
        raise ConfigError(f"Cannot fetch the scorer's model {address} ({error}): check its `model`.") from error
