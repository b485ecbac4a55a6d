"""Evaluation of a model on held-out text: losses and accuracies, summed over microbatches.

The samples are drawn once per run from held-out documents, and stored on disk. All checkpoints of a
run are evaluated on the same samples with the same masks, even after a restart or if the run's
sources have grown. Each sequence length of the run's phases has its own set.

Evaluation uses the forward pass of training (`peer.models.objectives`). The coordinator's validator
evaluates each checkpoint. `unigram_loss` is the loss of predicting tokens by frequency alone; a
model that has learned anything has a lower loss.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from auth.files import make_private_directory, write_private
from peer.config.run import RunConfig
from peer.data.batching.batches import CHUNK_CHARACTERS, Batch, SampleMaker, parts_of
from peer.data.batching.samples import IGNORED, join_samples
from peer.data.selection.hashing import PartFilter, document_hash
from peer.data.sources.documents import MixedDocuments, open_documents
from peer.data.tokenization.special_tokens import SpecialIds
from peer.data.tokenization.tokenizers import TOKENIZER_FILE
from peer.models.build import evaluating, family_of
from peer.models.objectives import label_rows, logits_at_once, replace_tokens
from peer.models.replaced_tokens import ReplacedTokens, detection_loss

TOKENS_AT_ONCE = 4096  # tokens per forward pass, to fit in memory beside the keeper
logger = logging.getLogger(__name__)
MAX_DOCUMENTS_READ = 500_000  # limit for huge corpora: more would take minutes and gigabytes
DRAWING_DEVICE = 0  # device number that determines the order of documents
FORMAT = "1"
SMALL_TYPES = {
    "input_ids": torch.int32,
    "token_type_ids": torch.int8,
    "label_positions": torch.int32,
    "labels": torch.int32,
    "sop_labels": torch.int8,
    "draws": torch.float32,
}


@dataclass(frozen=True)
class HeldOutMetrics:
    """Metrics averaged over all samples; the perplexity is the exponential of `mlm_loss`."""

    samples: int
    predicted_tokens: int
    mlm_loss: float  # mean over labelled positions: masked tokens, or all with a next token
    accuracy: float  # fraction of labelled positions with a correct prediction
    sop_loss: float | None  # None without a sentence-order objective
    sop_accuracy: float | None  # None without a sentence-order objective
    # Metrics of replaced token detection; None for other objectives.
    detection_loss: float | None = None  # not multiplied by the loss's weight
    detection_accuracy: float | None = None  # fraction of all tokens classified correctly
    detection_f1: float | None = None  # harmonic mean of precision and recall for replaced tokens


@dataclass(frozen=True)
class Sums:
    """Sums of losses and correct predictions over one or more microbatches."""

    samples: int = 0
    tokens: int = 0
    token_loss: float = 0.0
    token_hits: int = 0
    orders: int = 0  # samples with a sentence-order label
    order_loss: float = 0.0
    order_hits: int = 0
    told: int = 0  # tokens classified by the discriminator
    told_loss: float = 0.0
    told_right: int = 0
    replaced: int = 0
    called_replaced: int = 0
    found: int = 0  # replaced tokens classified correctly

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(one + another for one, another in zip(astuple(self), astuple(other), strict=True)))

    def means(self) -> HeldOutMetrics:
        """Return the means of all metrics."""
        tokens = max(1, self.tokens)
        return HeldOutMetrics(
            samples=self.samples,
            predicted_tokens=self.tokens,
            mlm_loss=self.token_loss / tokens,
            accuracy=self.token_hits / tokens,
            sop_loss=self.order_loss / self.orders if self.orders else None,
            sop_accuracy=self.order_hits / self.orders if self.orders else None,
            detection_loss=self.told_loss / self.told if self.told else None,
            detection_accuracy=self.told_right / self.told if self.told else None,
            detection_f1=2 * self.found / max(1, self.replaced + self.called_replaced) if self.told else None,
        )


def evaluate(
    model: PreTrainedModel, samples: Batch, should_stop: Callable[[], bool] = lambda: False
) -> HeldOutMetrics | None:
    """Return the model's metrics over all samples, without dropout, or None if stopped early."""
    sums = Sums()
    with evaluating(model):
        for batch in parts_of(samples, max(1, TOKENS_AT_ONCE // samples.input_ids.shape[1])):
            if should_stop():
                return None
            sums += summed(model, batch)
    return sums.means()


def summed(model: PreTrainedModel, batch: Batch) -> Sums:
    """Return one microbatch's sums; the caller must disable gradients."""
    family = family_of(model)
    firsts = 0 if batch.sop_labels is None else batch.samples
    wanted, labels = label_rows(batch, firsts)
    hidden = family.encode(model, batch, wanted)  # (firsts + m + padding, hidden)
    sums = Sums(samples=batch.samples, tokens=len(batch.labels))
    rows = logits_at_once(model)
    for part, ids in zip(torch.split(hidden[firsts:], rows), torch.split(labels, rows), strict=True):
        loss, hits = _loss_and_hits(family.token_logits(model, part), ids)
        sums += Sums(token_loss=loss, token_hits=hits)
    if isinstance(model, ReplacedTokens):
        return sums + _detected(model, batch, hidden)
    if family.order_logits is None or batch.sop_labels is None:
        return sums
    loss, hits = _loss_and_hits(family.order_logits(model, hidden[:firsts]), batch.sop_labels)
    return sums + Sums(orders=int((batch.sop_labels != IGNORED).sum()), order_loss=loss, order_hits=hits)


def _detected(model: ReplacedTokens, batch: Batch, hidden: Tensor) -> Sums:
    """Sample the generator's replacements and classify all tokens of a batch without padding."""
    input_ids, replaced = replace_tokens(model, batch, hidden)
    logits = model.detection_logits(input_ids, batch)  # (b, l)
    called = logits > 0
    return Sums(
        told=logits.numel(),
        told_loss=float(detection_loss(logits, replaced, batch)) * logits.numel(),
        told_right=int((called == replaced).sum()),
        replaced=int(replaced.sum()),
        called_replaced=int(called.sum()),
        found=int((called & replaced).sum()),
    )


def _loss_and_hits(logits: Tensor, labels: Tensor) -> tuple[float, int]:
    """Return the summed cross entropy and number of correct predictions of logits (n, classes)."""
    loss = functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return float(loss), int((logits.argmax(-1) == labels).sum())


def unigram_loss(samples: Batch, vocab_size: int, special: SpecialIds) -> float:
    """Return the loss (nats per token) of predicting tokens by frequency, with add-one smoothing.

    The frequencies, without special tokens, come from the evaluated samples themselves; frequencies
    from other text would give a slightly higher loss.
    """
    counts = torch.bincount(samples.input_ids.flatten(), minlength=vocab_size).double()
    counts += torch.bincount(samples.labels, minlength=vocab_size)
    for token in (special.pad, special.unk, special.cls, special.sep, special.mask):
        if token is not None:
            counts[token] = 0
    frequencies = (counts + 1) / (counts + 1).sum()
    return float(-frequencies[samples.labels].log().mean())


@dataclass(frozen=True)
class ValidationSet:
    """A non-empty set of labelled samples."""

    samples: Batch
    sha256: str  # digest of samples and labels; losses with equal digests are comparable


class HeldOutDocuments:
    """The distinct held-out documents, in a fixed order, among the first `limit` documents."""

    def __init__(self, documents: MixedDocuments, share: float, limit: int = MAX_DOCUMENTS_READ) -> None:
        self._documents, self._limit = documents, limit
        self._held_out = PartFilter("validation", share)
        self._hashes: set[int] = set()
        self.read = 0  # number of documents read, including training documents

    @property
    def found(self) -> int:
        """The number of held-out documents found."""
        return len(self._hashes)

    def __iter__(self) -> Iterator[str]:
        while self.read < self._limit:
            document = next(self._documents)
            if self._documents.epoch:
                return
            self.read += 1
            if self._held_out.keeps(document) and (digest := document_hash(document)) not in self._hashes:
                self._hashes.add(digest)
                yield document


def open_validation_set(config: RunConfig, tokenizer_dir: Path, directory: Path) -> ValidationSet | None:
    """Load the set for the sequence length of `config`, or draw and save it.

    Returns None if the held-out documents do not fill a sample. Raises `ConfigError` for unusable
    sources and `StorageError` if the set cannot be saved.
    """
    path = directory / f"length-{config.data.sequence_length}.safetensors"
    key = _set_key(config, tokenizer_dir)
    saved = _load(path, key)
    if saved is not None:
        return saved
    batch = draw_samples(config, tokenizer_dir)
    if batch is None:
        return None
    tensors = _tensors(batch)
    make_private_directory(directory)
    metadata = {"format": FORMAT, "key": key, "sha256": _digest(tensors)}
    write_private(path, save(tensors, metadata))
    return ValidationSet(batch, metadata["sha256"])


def draw_samples(config: RunConfig, tokenizer_dir: Path, limit: int = MAX_DOCUMENTS_READ) -> Batch | None:
    """Draw labelled samples, at most the configured number; return None if there are none."""
    wanted = config.data.validation.samples
    maker = SampleMaker(config, tokenizer_dir, np.random.default_rng((config.run.seed, DRAWING_DEVICE)))
    samples = None
    with open_documents(config, DRAWING_DEVICE, part=None, tokenizer_dir=tokenizer_dir) as stream:
        documents = HeldOutDocuments(stream, config.data.validation.share, limit)
        for chunk in _chunks(documents):
            more = maker.samples(chunk)
            samples = more if samples is None else join_samples(samples, more)
            if len(samples) >= wanted:
                break
    count = 0 if samples is None else min(wanted, len(samples))
    logger.info(
        "validation set: %d of %d samples of %d tokens, from %d held-out documents among %d read",
        *(count, wanted, config.data.sequence_length, documents.found, documents.read),
    )
    return maker.batch(samples[:wanted]) if samples is not None and count else None


def _chunks(documents: Iterable[str]) -> Iterator[list[str]]:
    """Yield groups of documents, read lazily, that are large enough to pack well."""
    remaining = iter(documents)
    for first in remaining:
        chunk, characters = [], 0
        for document in chain([first], remaining):
            chunk.append(document)
            characters += len(document)
            if characters >= CHUNK_CHARACTERS:
                break
        yield chunk


def _set_key(config: RunConfig, tokenizer_dir: Path) -> str:
    """Return a digest of everything that determines the saved samples, except the sources."""
    model, data, run = config.model, config.data, config.run
    drawn_by = config.objective.model_dump(include={"name", "mask_probability", "whole_words"})
    parts = [drawn_by, data.validation.model_dump(), data.sequence_length, model.architecture]
    parts += [] if data.cross_document_attention else ["documents apart"]
    digest = sha256(json.dumps([*parts, run.seed, FORMAT]).encode())
    digest.update((tokenizer_dir / TOKENIZER_FILE).read_bytes())
    return digest.hexdigest()


def _tensors(batch: Batch) -> dict[str, torch.Tensor]:
    """Return the batch's tensors by name, in compact types for storage."""
    found = {name: getattr(batch, name) for name in SMALL_TYPES}
    return {name: tensor.to(SMALL_TYPES[name]) for name, tensor in found.items() if tensor is not None}


def _digest(tensors: dict[str, torch.Tensor]) -> str:
    return sha256(save(tensors)).hexdigest()


def _load(path: Path, key: str) -> ValidationSet | None:
    """Load the saved set, or return None if it is missing, damaged, or from another run file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError) as error:
        logger.warning("the validation set %s cannot be read (%s): drawing it again", path.name, error)
        return None
    if metadata.get("key") != key:
        logger.warning("the validation set %s is of another run file: drawing it again", path.name)
        return None
    if metadata.get("sha256") != _digest(tensors):
        logger.warning("the validation set %s is damaged: drawing it again", path.name)
        return None
    return ValidationSet(_batch(tensors), metadata["sha256"])


def _batch(tensors: dict[str, torch.Tensor]) -> Batch:
    fields: dict[str, Any] = dict.fromkeys(SMALL_TYPES)
    wide = {name: tensor if tensor.is_floating_point() else tensor.long() for name, tensor in tensors.items()}
    return Batch(attention_mask=None, **fields | wide)
