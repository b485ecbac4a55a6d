"""Preparation of a run's tokenizer before the run begins, by training on its text or by import."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from auth.errors import ConfigError, UnreachableError
from peer.config.run import RunConfig
from peer.config.tokenizer import ROBERTA_TOKENS
from peer.data.selection.hashing import PartFilter
from peer.data.sources.documents import sample_documents
from peer.data.tokenization.pipelines import frame
from peer.data.tokenization.sentences import split_sentences
from peer.data.tokenization.special_tokens import added_tokens, special_names
from peer.data.tokenization.tokenizers import (
    SENTENCEPIECE,
    _find_file,
    check_tokenizer,
    load_special_ids,
    read_tokenizer,
    read_tokenizer_config,
    save_tokenizer,
)
from peer.data.tokenization.training import train_tokenizer

logger = logging.getLogger(__name__)
ORDER_DOCUMENTS, MOST_SINGLE = 500, 0.1  # sample size, and share of single-sentence documents above which to warn


def prepare_tokenizer(config: RunConfig, out_dir: Path) -> None:
    """Create the run's tokenizer folder, by import or by training on the run's documents.

    Raises `ConfigError` if the tokenizer lacks a token that the objective or model family needs.
    """
    if config.tokenizer.path is not None:
        import_tokenizer(config, Path(config.tokenizer.path), out_dir)
        with suppress(ConfigError, UnreachableError):  # an imported tokenizer does not need the text
            _warn_of_single_sentences(config, order_sample(config))
    else:
        save_tokenizer(train_tokenizer(config, training_sample(config)), config, out_dir)
    check_tokenizer(config, read_tokenizer(out_dir), load_special_ids(out_dir))


def training_sample(config: RunConfig) -> Iterator[str]:
    """Yield documents for training the run's tokenizer, without those held out for validation.

    Logs a warning if an objective with sentence order has too many documents of one sentence.
    """
    keeps = PartFilter("training", config.data.validation.share).keeps
    documents = filter(keeps, sample_documents(config, config.tokenizer.max_training_documents))
    if config.objective.name != "mlm+sop":
        return documents
    first = list(islice(documents, ORDER_DOCUMENTS))
    _warn_of_single_sentences(config, first)
    return chain(first, documents)


def order_sample(config: RunConfig) -> list[str]:
    """Return a sample of the documents, or [] if their sentences need not be counted."""
    known = all(source.kind == "builtin" for source in config.data.sources)  # built-in documents have many sentences
    return [] if known or config.objective.name != "mlm+sop" else list(sample_documents(config, ORDER_DOCUMENTS))


@dataclass(frozen=True)
class SingleSentences:
    """The share of single-sentence documents, which teach no sentence order."""

    share: float
    documents: int  # number of documents in the sample

    @property
    def found(self) -> str:
        """The share of single-sentence documents, described for the user."""
        return (
            f"{100 * self.share:.0f} % of {self.documents:,} documents are one sentence; they take no part in the "
            "sentence-order loss."
        )

    @property
    def remedy(self) -> str:
        """Advice if most documents are single sentences, else empty."""
        advice = (
            "Check that sentences end with marks of `run.language`, join lines that belong together "
            "(`documents: paragraph` of the source), or choose the objective `mlm`."
        )
        return advice if self.share > 0.5 else ""

    def __str__(self) -> str:
        return f"{self.found} {self.remedy}".rstrip()


def single_sentences(config: RunConfig, documents: Iterable[str]) -> SingleSentences | None:
    """Return the share of single-sentence documents; None without documents or sentence order."""
    are_single = [len(split_sentences(document, config.run.language)) < 2 for document in documents]
    if config.objective.name != "mlm+sop" or not are_single:
        return None
    return SingleSentences(sum(are_single) / len(are_single), len(are_single))


def _warn_of_single_sentences(config: RunConfig, documents: Iterable[str]) -> None:
    single = single_sentences(config, documents)
    if single is not None and single.share > MOST_SINGLE:
        logger.warning("%s", single)


def import_tokenizer(config: RunConfig, path: Path, out_dir: Path) -> None:
    """Save an existing tokenizer as the run's. Raises `ConfigError` if it has no end-of-text token.

    A sentencepiece model is only a vocabulary, so the special tokens and template of a masked
    objective are added. Any other tokenizer is not changed.
    """
    masked = config.objective.masks
    tokenizer, given = read_tokenizer(path), read_tokenizer_config(path)
    if masked and _find_file(path).suffix == SENTENCEPIECE:
        names = {**ROBERTA_TOKENS, **special_names(tokenizer, given)}
        tokenizer.add_special_tokens(added_tokens(names))
        tokenizer.post_processor = frame(tokenizer, names)
    save_tokenizer(tokenizer, config, out_dir, given)
