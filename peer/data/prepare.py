"""The run's tokenizer, made from its text or imported, before the run begins."""

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
ORDER_DOCUMENTS, MOST_SINGLE = 500, 0.1  # looked at, and the share of single sentences that is worth a warning


def prepare_tokenizer(config: RunConfig, out_dir: Path) -> None:
    """Make the run's tokenizer folder: import the one that the run names, or train one on the run's documents.

    Raises `ConfigError` if it lacks what the run's objective and family of models need.
    """
    if config.tokenizer.path is not None:
        import_tokenizer(config, Path(config.tokenizer.path), out_dir)
        with suppress(ConfigError, UnreachableError):  # an imported tokenizer needs no text at hand
            _warn_of_single_sentences(config, order_sample(config))
    else:
        save_tokenizer(train_tokenizer(config, training_sample(config)), config, out_dir)
    check_tokenizer(config, read_tokenizer(out_dir), load_special_ids(out_dir))


def training_sample(config: RunConfig) -> Iterator[str]:
    """Yield as many of the run's documents as its tokenizer is trained on, and none that is held out for validation.

    It warns of documents that are mostly too short for an objective with sentence order.
    """
    keeps = PartFilter("training", config.data.validation.share).keeps
    documents = filter(keeps, sample_documents(config, config.tokenizer.max_training_documents))
    if config.objective.name != "mlm+sop":
        return documents
    first = list(islice(documents, ORDER_DOCUMENTS))
    _warn_of_single_sentences(config, first)
    return chain(first, documents)


def order_sample(config: RunConfig) -> list[str]:
    """Return the documents on which `single_sentences` looks, a part of each source; none where no order is learnt."""
    known = all(source.kind == "builtin" for source in config.data.sources)  # its documents are long
    return [] if known or config.objective.name != "mlm+sop" else list(sample_documents(config, ORDER_DOCUMENTS))


@dataclass(frozen=True)
class SingleSentences:
    """The documents of a sample that are one sentence, which teaches no order of sentences."""

    share: float
    documents: int  # of the sample

    @property
    def found(self) -> str:
        """A sentence about them."""
        return (
            f"{100 * self.share:.0f} % of {self.documents:,} documents are one sentence; they take no part in the "
            "sentence-order loss."
        )

    @property
    def remedy(self) -> str:
        """Advice where most documents are such; else empty."""
        advice = (
            "Check that sentences end with marks of `run.language`, join lines that belong together "
            "(`documents: paragraph` of the source), or choose the objective `mlm`."
        )
        return advice if self.share > 0.5 else ""

    def __str__(self) -> str:
        return f"{self.found} {self.remedy}".rstrip()


def single_sentences(config: RunConfig, documents: Iterable[str]) -> SingleSentences | None:
    """Return those of a sample; None where no order of sentences is learnt, and without documents."""
    are_single = [len(split_sentences(document, config.run.language)) < 2 for document in documents]
    if config.objective.name != "mlm+sop" or not are_single:
        return None
    return SingleSentences(sum(are_single) / len(are_single), len(are_single))


def _warn_of_single_sentences(config: RunConfig, documents: Iterable[str]) -> None:
    single = single_sentences(config, documents)
    if single is not None and single.share > MOST_SINGLE:
        logger.warning("%s", single)


def import_tokenizer(config: RunConfig, path: Path, out_dir: Path) -> None:
    """Save a given tokenizer as the run's; raises `ConfigError` if it cannot end a text.

    A sentencepiece model is no more than a vocabulary: what else a masked objective needs is added to it. Any other
    tokenizer is left as it is.
    """
    masked = config.objective.masks
    tokenizer, given = read_tokenizer(path), read_tokenizer_config(path)
    if masked and _find_file(path).suffix == SENTENCEPIECE:
        names = {**ROBERTA_TOKENS, **special_names(tokenizer, given)}
        tokenizer.add_special_tokens(added_tokens(names))
        tokenizer.post_processor = frame(tokenizer, names)
    save_tokenizer(tokenizer, config, out_dir, given)
