"""The complete data pipeline: `open_batches` turns documents into a stream of masked batches.

`BatchStream` prepares batches in a thread, so that training does not wait for text. `PhasedBatches`
opens the stream of the swarm's current phase, so that the training loop need not handle phases.
`parts_of` splits a batch, for evaluation or to save memory.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from auth.errors import ConfigError
from peer.config.architectures import ARCHITECTURES
from peer.config.run import RunConfig
from peer.data.batching.masking import Labelled, Masker, next_tokens
from peer.data.batching.samples import Samples, join_samples, open_packer
from peer.data.sources.documents import (
    MixedDocuments,
    Position,
    Report,
    check_position,
    open_documents,
    source_names,
)
from peer.data.sources.prefetching import Prefetched
from peer.data.sources.reader import Reserve, no_wait
from peer.data.tokenization.encoding import Encoder
from peer.data.tokenization.special_tokens import SpecialIds
from peer.data.tokenization.tokenizers import load_special_ids, load_tokenizer
from peer.data.tokenization.words import WordStarts

logger = logging.getLogger(__name__)
FIRST_CHUNK_CHARACTERS = 20_000  # the first chunk is small, because the trainer waits for it
CHUNK_CHARACTERS = 200_000  # later chunks keep every core's tokenizer busy
PREFETCHED_BATCHES = 16
STATE_FILE = "stream.json"
STATE_VERSION = 4


@dataclass(frozen=True)
class Batch:
    """The model's input for one microbatch of b samples of length l, with m labels."""

    input_ids: torch.Tensor  # (b, l) int64
    token_type_ids: torch.Tensor | None  # (b, l) int64; 0 = first segment, 1 = second; None: no segments
    attention_mask: torch.Tensor | None  # (b, l) int64; None: no padding, as in all training batches
    label_positions: torch.Tensor  # (m,) int64, ascending; indices into the flattened b * l
    labels: torch.Tensor  # (m,) int64, ids of the tokens to predict
    sop_labels: torch.Tensor | None  # (b,) int64, as in `Samples`; None without sentence order
    draws: torch.Tensor | None = None  # (m,) float32 in [0, 1), to sample replaced tokens; None: unused

    @property
    def samples(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True)
class StreamState:
    """A device's position in the run's data."""

    documents: Position
    batches: int  # number of batches in all sessions; part of each session's seed


class BatchStream:
    """An endless iterator over batches prepared in a thread; close it, or use it as a context manager.

    The position is saved at the start of each chunk of documents, and on closing. After a restart,
    even after `kill -9`, a device resumes at the start of its last chunk, so no earlier document
    is repeated. A device killed during a chunk's first microbatch loses the samples that this
    microbatch took from the previous chunk.
    """

    def __init__(
        self,
        batches: Iterator[tuple[Batch, StreamState]],
        save: Callable[[StreamState], None],
        clock: Callable[[], float],
        stop_reading: Callable[[], None],
    ) -> None:
        self._prefetched = Prefetched(batches, PREFETCHED_BATCHES, "prefetch")
        self._save, self._clock, self._stop_reading = save, clock, stop_reading
        self.wait_s = 0.0  # total time that the consumer has waited
        self._state: StreamState | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        started = self._clock()
        made = self._prefetched.take()
        assert made is not None  # `take` returns None only on a timeout
        self.wait_s += self._clock() - started
        batch, state = made
        moved_on = self._state is None or state.documents is not self._state.documents
        self._state = state
        if moved_on:
            self.save_state()
        return batch

    def save_state(self) -> None:
        """Save the position of the last returned batch."""
        if self._state is not None:
            self._save(self._state)

    def close(self) -> None:
        self._stop_reading()  # otherwise the prefetching thread might wait forever for documents
        self._prefetched.close()
        self.save_state()

    def __enter__(self) -> BatchStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_batches(
    config: RunConfig,
    tokenizer_dir: Path,
    state_dir: Path,
    device_number: int,
    microbatch_size: int,
    clock: Callable[[], float] = time.monotonic,
    report: Report = logger.warning,
    stage: Callable[[Batch], Batch] = lambda batch: batch,
    reserve: Reserve = no_wait,
) -> BatchStream:
    """Open a stream of the run's batches in this device's order, starting at its saved position.

    `stage` is applied to each batch in the thread. `reserve` is called with the number of bytes of
    text downloaded, and returns the seconds to wait before the next read. The first batch raises
    `ConfigError` if the run's sources are unusable. The stream and the tokenizer start threads, so
    call this only after all forks of the process.
    """
    places = SavedPlaces(state_dir / STATE_FILE, config, device_number)
    state = places.load(report)
    batches_before = state.batches if state else 0
    rng = np.random.default_rng((config.run.seed, device_number, batches_before))
    maker = SampleMaker(config, tokenizer_dir, rng)
    documents = open_documents(
        config,
        device_number,
        state.documents if state else None,
        tokenizer_dir=tokenizer_dir,
        report=report,
        reserve=reserve,
    )
    made = make_batches(documents, maker, microbatch_size, batches_before)
    batches = ((stage(batch), reached) for batch, reached in made)
    return BatchStream(batches, places.save, clock, documents.close)


class SampleMaker:
    """A converter of documents to samples, and of samples to batches, for a run's configuration."""

    def __init__(self, config: RunConfig, tokenizer_dir: Path, rng: np.random.Generator) -> None:
        tokenizer, special = load_tokenizer(tokenizer_dir), load_special_ids(tokenizer_dir)
        self._encoder = Encoder(tokenizer, config.run.language)
        self._packer = open_packer(config, special, rng)
        self._label = _open_labelling(config, tokenizer, special, self._packer.special_places, rng)
        self._config, self._rng = config, rng

    @property
    def carried_tokens(self) -> int:
        """The number of tokens carried over to the next chunk."""
        return len(self._packer.carried)

    def samples(self, documents: list[str], count: Callable[[Sequence[int]], None] = lambda _: None) -> Samples:
        """Pack documents and carried tokens into full samples; report token counts to `count`."""
        chunk = self._encoder.encode(documents)
        if chunk.document_tokens is not None:
            count(chunk.document_tokens.tolist())
        return self._packer.pack(chunk)

    def batch(self, samples: Samples) -> Batch:
        """Label these samples and return them as tensors."""
        return labelled_batch(self._config, samples, self._label(samples.input_ids), self._rng)


def labelled_batch(config: RunConfig, samples: Samples, labelled: Labelled, rng: np.random.Generator) -> Batch:
    """Return labelled samples as a batch with the fields that the objective and model need."""
    types = np.zeros_like(samples.input_ids) if samples.token_type_ids is None else samples.token_type_ids
    several_types = ARCHITECTURES[config.model.architecture].token_types > 1
    draws = rng.random(len(labelled.labels), np.float32) if config.objective.name == "rtd" else None
    return Batch(
        input_ids=torch.from_numpy(labelled.input_ids),
        token_type_ids=torch.from_numpy(types.astype(np.int64)) if several_types else None,
        attention_mask=None,
        label_positions=torch.from_numpy(labelled.positions),
        labels=torch.from_numpy(labelled.labels),
        sop_labels=None if samples.sop_labels is None else torch.from_numpy(samples.sop_labels),
        draws=None if draws is None else torch.from_numpy(draws),
    )


def _open_labelling(
    config: RunConfig, tokenizer: Tokenizer, special: SpecialIds, special_places: int, rng: np.random.Generator
) -> Callable[[NDArray[np.int32]], Labelled]:
    """Return the objective's labelling function for ids (samples, length)."""
    objective = config.objective
    if not objective.masks:
        return next_tokens
    word_starts = WordStarts(tokenizer, special) if objective.whole_words else None
    masker = Masker(tokenizer.get_vocab_size(), special, objective.mask_probability, word_starts)
    return lambda input_ids: masker.mask(input_ids, special_places, rng)


def make_batches(
    documents: MixedDocuments, maker: SampleMaker, microbatch_size: int, batches_before: int = 0
) -> Iterator[tuple[Batch, StreamState]]:
    """Yield batches endlessly, each with the position at which its newest chunk begins."""
    made = batches_before
    rest: Samples | None = None
    last_fruitful_epoch = documents.epoch
    characters = FIRST_CHUNK_CHARACTERS
    while True:
        position = documents.position()
        samples = maker.samples(take_documents(documents, characters), documents.count)
        characters = min(2 * characters, CHUNK_CHARACTERS)
        if rest is not None:
            samples = join_samples(rest, samples)
        full = len(samples) - len(samples) % microbatch_size
        for start in range(0, full, microbatch_size):
            yield maker.batch(samples[start : start + microbatch_size]), StreamState(position, made)
            made += 1
        rest = samples[full:]  # the remaining samples go into the next chunk's first batch
        if full:
            last_fruitful_epoch = documents.epoch
        elif maker.carried_tokens == 0 and not len(rest) and documents.epoch > last_fruitful_epoch + 1:
            raise ConfigError(
                "The run's data sources hold no text to train on: check their paths and `text_field` "
                "(text that `data.validation.share` holds out does not count)."
            )


def take_documents(documents: MixedDocuments, characters: int) -> list[str]:
    """Take documents until they have this many characters; stop early after another full epoch."""
    taken: list[str] = []
    epoch = documents.epoch
    while characters > 0 and documents.epoch <= epoch + 1:
        taken.append(next(documents))
        characters -= len(taken[-1])
    return taken


class SavedPlaces:
    """A file with a device's position in each of the run's sources.

    A phase may change the sources and their weights. A device resumes every source where it
    stopped in an earlier phase. Token counts start at zero with each new mixture.
    """

    def __init__(self, path: Path, config: RunConfig, device_number: int) -> None:
        sources = config.data.sources
        self._path, self._names = path, source_names(sources)
        self._weights = [source.weight for source in sources]
        order = [config.run.seed, config.data.shuffle_buffer, device_number]  # a new order invalidates positions
        self._key = sha256(json.dumps(order).encode()).hexdigest()
        self._elsewhere: dict[str, Any] = {}  # positions in the sources of other phases

    def load(self, report: Report) -> StreamState | None:
        """Return the saved position, or None; report a damaged file or a changed order."""
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            if (content["version"], content["key"]) == (STATE_VERSION, self._key):
                return StreamState(self._position_in(content), int(content["batches"]))
            report("The run's seed or shuffle, or this device's number, has changed: this device restarts its data.")
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            reason = " ".join(str(error).split())
            report(f"Ignoring the damaged data position in {self._path} ({reason:.200}): this device starts anew.")
        return None

    def save(self, state: StreamState) -> None:
        """Replace the file atomically; a full disk is logged and does not stop training."""
        content = {
            "version": STATE_VERSION,
            "key": self._key,
            "sources": self._names,
            "weights": self._weights,
            "documents": state.documents,
            "elsewhere": self._elsewhere,
            "batches": state.batches,
        }
        aside = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            aside.write_text(json.dumps(content), encoding="utf-8")
            aside.replace(self._path)
        except OSError as error:
            logger.warning("Cannot save the data position to %s: %s.", self._path, error.strerror)

    def _position_in(self, content: Mapping[str, Any]) -> Position:
        """Return the position in the current sources; store the positions in all other sources."""
        places = dict(zip(content["sources"], content["documents"]["streams"], strict=True))
        known: dict[str, Any] = {**content["elsewhere"], **places}
        self._elsewhere = {name: place for name, place in known.items() if name not in self._names}
        if (content["sources"], content["weights"]) == (self._names, self._weights):
            return check_position(content["documents"], len(self._names))
        streams = [known.get(name) for name in self._names]
        return check_position({"drawn": [0] * len(streams), "streams": streams}, len(streams))


def parts_of(batch: Batch, size: int) -> Iterator[Batch]:
    """Yield the batch in parts of `size` samples; the last part may be smaller."""
    if batch.samples <= size:
        yield batch
        return
    length, device = batch.input_ids.shape[1], batch.label_positions.device
    for start in range(0, batch.samples, size):
        rows = slice(start, start + size)
        bounds = torch.tensor([start * length, (start + size) * length], device=device)
        first, end = torch.searchsorted(batch.label_positions, bounds).tolist()
        yield replace(
            batch,
            input_ids=batch.input_ids[rows],
            token_type_ids=_rows(batch.token_type_ids, rows),
            attention_mask=_rows(batch.attention_mask, rows),
            label_positions=batch.label_positions[first:end] - start * length,
            labels=batch.labels[first:end],
            sop_labels=_rows(batch.sop_labels, rows),
            draws=_rows(batch.draws, slice(first, end)),
        )


def _rows(tensor: Tensor | None, rows: slice) -> Tensor | None:
    return None if tensor is None else tensor[rows]


class PhasedBatches:
    """An endless iterator that opens a new stream for each phase of the swarm; close it after use.

    The iterator checks the step before each batch, so no batch of one phase is used in another.
    A stream saves its data position when it is closed, and the next stream resumes there.
    """

    def __init__(
        self,
        config: RunConfig,
        step: Callable[[], int],
        enter: Callable[[int], BatchStream],
        at_once: Callable[[int], int] = lambda samples: samples,
    ) -> None:
        """Set up the iterator; `at_once` maps a microbatch's size to that of yielded batches."""
        self._at_once = at_once
        self._parts: Iterator[Batch] = iter(())
        self._config = config
        self._step = step
        self._enter = enter
        self._waited_s = 0.0  # time spent waiting for streams that are now closed
        self._open_at(step())

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        step = self._step()
        if len(self._config.at_step(step).phases) != self._phases_begun:
            self._waited_s = self.wait_s
            self._stream.close()
            self._open_at(step)
        part = next(self._parts, None)
        if part is None:
            batch = next(self._stream)
            self._parts = parts_of(batch, self._at_once(batch.samples))
            part = next(self._parts)
        return part

    @property
    def wait_s(self) -> float:
        """The total time in seconds that the consumer has waited for batches, across all phases."""
        return self._waited_s + self._stream.wait_s

    def _open_at(self, step: int) -> None:
        self._phases_begun = len(self._config.at_step(step).phases)
        self._stream, self._parts = self._enter(step), iter(())

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> PhasedBatches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
