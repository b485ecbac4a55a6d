"""Separation of the documents in a sample by block-diagonal attention and restarting positions.

Every document begins with [CLS], which is also a sample's first token. ModernBERT's own forward
pass accepts masks and positions. With flash-attn on a GPU the samples become one row of documents
of different lengths, without a mask. Otherwise a mask (b, 1, l, l) marks the tokens of the same
document; PyTorch's attention computes the masked scores too, so the mask saves no time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.masking_utils import sliding_window_bidirectional_mask_function
from transformers.utils.import_utils import is_flash_attn_2_available

from peer.runtime.devices import Precision

if TYPE_CHECKING:
    from peer.data.batching.batches import Batch

FLASH = "flash_attention_2"


def document_places(input_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return each token's document number and its position in the document, (b, l) each."""
    begins = input_ids == input_ids[:, :1]
    index = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    return begins.cumsum(-1) - 1, index - torch.where(begins, index, 0).cummax(-1).values


def encode_apart(model: Any, batch: Batch, wanted: Tensor) -> Tensor:
    """Return the output (n, hidden) at positions `wanted` (n,), attending only within documents."""
    documents, places = document_places(batch.input_ids)
    if model.config._attn_implementation == FLASH:
        hidden = model.base_model(batch.input_ids.view(1, -1), position_ids=places.view(1, -1), **_lengths(places))
    else:
        masks = _masks(documents, batch.attention_mask, model.config.sliding_window)
        hidden = model.base_model(batch.input_ids, attention_mask=masks, position_ids=places)
    found: Tensor = hidden.last_hidden_state.flatten(0, 1).index_select(0, wanted)
    return found


def _lengths(places: Tensor) -> dict[str, Any]:
    """Return flash-attn's variable-length arguments, under transformers' names."""
    begins = (places.flatten() == 0).nonzero().flatten()
    ends = torch.cat([begins, begins.new_tensor([places.numel()])]).to(torch.int32)
    longest = int(places.max()) + 1
    return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}


def _masks(documents: Tensor, attention_mask: Tensor | None, window: int) -> dict[str, Tensor]:
    """Return the attention masks, (b, 1, l, l) for each kind of layer."""
    together = documents[:, None, :, None] == documents[:, None, None, :]
    if attention_mask is not None:
        together = together & attention_mask.bool()[:, None, None, :]
    index = torch.arange(documents.shape[1], device=documents.device)
    near = sliding_window_bidirectional_mask_function(window)(0, 0, index[:, None], index)
    return {"full_attention": together, "sliding_attention": together & near}


def use_flash_attention(model: PreTrainedModel, device: torch.device, precision: Precision) -> None:
    """Use flash-attn, if installed, for separate documents on a CUDA device in half precision."""
    suits = device.type == "cuda" and precision != "fp32"
    if getattr(model, "documents_apart", False) and suits and is_flash_attn_2_available():
        model.set_attn_implementation(FLASH)


def unpacked(batch: Batch) -> Batch:
    """Return the batch with one document per sample, padded with 0; the losses do not change."""
    documents, places = document_places(batch.input_ids)
    counts = documents[:, -1:] + 1  # (b, 1)
    rows = (documents + counts.cumsum(0) - counts).flatten()
    width = int(places.max()) + 1
    flat = rows * width + places.flatten()
    input_ids = torch.zeros(int(rows.max()) + 1, width, dtype=batch.input_ids.dtype)
    attention_mask = torch.zeros_like(input_ids)
    input_ids.view(-1)[flat] = batch.input_ids.flatten()
    attention_mask.view(-1)[flat] = 1
    return replace(
        batch, input_ids=input_ids, attention_mask=attention_mask, label_positions=flat[batch.label_positions]
    )
