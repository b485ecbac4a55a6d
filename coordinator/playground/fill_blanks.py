"""A checkpoint's predictions for a sentence: the most likely tokens at its blanks or after its end.

The forward pass is the same as in training. The model is built once; for another checkpoint,
only the weights are loaded.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from auth.errors import RequestError
from coordinator.checkpoints.writing import restore_verified
from coordinator.playground.questions import BLANK, Answer, Candidate
from coordinator.run.directory import RunDirectory
from peer.config.architectures import ARCHITECTURES
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.data.tokenization.special_tokens import SpecialIds, special_names
from peer.data.tokenization.tokenizers import load_special_ids, read_tokenizer, read_tokenizer_config
from peer.models.build import build_model, evaluating, family_of

CANDIDATES = 5  # number of candidates for each blank


class BlankFiller:
    """A run's model with the weights of the most recently used checkpoint."""

    def __init__(self, directory: RunDirectory) -> None:
        self._config: RunConfig = directory.config
        self._special: SpecialIds = load_special_ids(directory.tokenizer_dir)
        self._tokenizer = _plain_tokenizer(directory.tokenizer_dir)
        self._mask = special_names(self._tokenizer, read_tokenizer_config(directory.tokenizer_dir)).get("mask", "")
        self._model = build_model(self._config, self._tokenizer.get_vocab_size(), self._special)
        self._loaded = ""  # manifest digest of the loaded checkpoint

    def fill(self, checkpoint: Path, manifest_sha256: str, text: str) -> Answer:
        """Return each blank's candidates; raise `RequestError` (text too long) or `StorageError`."""
        ids = self._encode(text)
        if self._loaded != manifest_sha256:
            self._loaded = ""  # if loading fails, the model may mix weights of two checkpoints
            restore_verified(self._model, checkpoint, manifest_sha256)
            self._loaded = manifest_sha256
        with evaluating(self._model):
            probabilities = self._probabilities(torch.tensor([ids]))  # (blanks, vocabulary)
        return tuple(self._candidates(row) for row in probabilities)

    def _encode(self, text: str) -> list[int]:
        """Encode the sentence with the same special tokens as in training."""
        ids = self._tokenizer.encode(text.replace(BLANK, self._mask or BLANK), add_special_tokens=False).ids
        cls, sep = self._special.cls, self._special.sep
        framed = [cls, *ids, sep] if self._config.objective.masks else [sep, *ids]
        most = min(self._config.data.sequence_length, self._config.model.max_position_embeddings)
        if len(framed) > most:
            raise RequestError(f"The sentence has {len(framed)} tokens; this run's model reads {most}.")
        return framed

    def _probabilities(self, input_ids: Tensor) -> Tensor:
        if self._config.objective.masks:
            wanted = (input_ids[0] == self._special.mask_id).nonzero().flatten()  # (blanks,)
        else:
            wanted = torch.tensor([input_ids.shape[1] - 1])
        segments = ARCHITECTURES[self._config.model.architecture].token_types > 1
        batch = Batch(
            input_ids=input_ids,
            token_type_ids=torch.zeros_like(input_ids) if segments else None,
            attention_mask=None,
            label_positions=wanted,
            labels=torch.zeros_like(wanted),
            sop_labels=None,
        )
        family = family_of(self._model)
        logits = family.token_logits(self._model, family.encode(self._model, batch, wanted))  # (blanks, vocabulary)
        return torch.softmax(logits.float(), dim=-1)

    def _candidates(self, probabilities: Tensor) -> tuple[Candidate, ...]:
        top = torch.topk(probabilities, min(CANDIDATES, len(probabilities)))
        pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        return tuple(Candidate(self._spelling(token), probability) for token, probability in pairs)

    def _spelling(self, token: int) -> str:
        """Decode a token, or return its vocabulary entry if the result is blank or incomplete."""
        text = self._tokenizer.decode([token], skip_special_tokens=False).strip()
        return text if text and "\ufffd" not in text else self._tokenizer.id_to_token(token) or ""


def _plain_tokenizer(path: Path) -> Tokenizer:
    """Read the tokenizer, and disable truncation and padding."""
    tokenizer = read_tokenizer(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
