"""ELECTRA's two models as one module: a generator that replaces tokens, and a discriminator.

The generator is a small masked language model (Clark et al. 2020, arXiv 2003.10555). Tokens drawn
from its softmax replace the masked tokens, and the discriminator predicts for each token whether it
was replaced. The loss is L_MLM + lambda * L_disc; no gradient passes through the sampling. The
swarm averages both models as one module. They share token embeddings as in DeBERTa-v3 (He et al.
2021, arXiv 2111.09543, section 3.2): the discriminator's embeddings are the generator's, with the
gradient stopped, plus a trained difference that starts at zero. The module's parameter is this
difference. Checkpoints contain the sum, for plain `ElectraForPreTraining` (`published`); the other
weights are needed to resume a run (`unpublished`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining, ElectraPreTrainedModel

if TYPE_CHECKING:
    from peer.data.batching.batches import Batch

EMBEDDINGS = "electra.embeddings.word_embeddings.weight"
GENERATOR, DISCRIMINATOR = "generator.", "discriminator."


class ReplacedTokens(ElectraPreTrainedModel):  # type: ignore[no-untyped-call]
    """A generator and a discriminator with token embeddings of equal width."""

    base_model_prefix = ""  # none, because there are two base models

    def __init__(self, config: ElectraConfig, generator: ElectraConfig) -> None:
        super().__init__(config)
        self.generator = ElectraForMaskedLM(generator)
        self.discriminator = ElectraForPreTraining(config)
        with torch.no_grad():
            self.difference.zero_()

    @property
    def difference(self) -> torch.nn.Parameter:
        """The discriminator's token embeddings, stored as a difference from the generator's."""
        return self.discriminator.get_parameter(EMBEDDINGS)

    def get_input_embeddings(self) -> torch.nn.Module:
        """Return the token embeddings used by both models."""
        found: torch.nn.Module = self.generator.get_input_embeddings()
        return found

    def detection_logits(self, input_ids: Tensor, batch: Batch) -> Tensor:
        """Return each token's logit of being replaced: input_ids (b, l) -> (b, l)."""
        shared, own = self.generator.electra.embeddings, self.discriminator.electra.embeddings
        embedded = functional.embedding(input_ids, shared.word_embeddings.weight.detach())
        hidden = self.discriminator.electra(
            inputs_embeds=embedded + own.word_embeddings(input_ids),  # (b, l, embedding)
            attention_mask=batch.attention_mask,
            token_type_ids=batch.token_type_ids,
        ).last_hidden_state
        logits: Tensor = self.discriminator.discriminator_predictions(hidden)
        return logits.float()

    def published(self) -> dict[str, Tensor]:
        """Return the discriminator's weights, under their transformers names."""
        weights: dict[str, Tensor] = self.discriminator.state_dict()
        shared = self.generator.state_dict()[EMBEDDINGS]
        return {**weights, EMBEDDINGS: shared + weights[EMBEDDINGS]}

    def unpublished(self) -> dict[str, Tensor]:
        """Return the weights that `published` omits, under their names in this module."""
        weights = self.state_dict()
        own = {DISCRIMINATOR + EMBEDDINGS}
        return {name: value for name, value in weights.items() if name.startswith(GENERATOR) or name in own}

    def joined(self, published: Mapping[str, Tensor], unpublished: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Combine the weights of `published` and `unpublished` into this module's state."""
        return {**{DISCRIMINATOR + name: value for name, value in published.items()}, **unpublished}


def detection_loss(logits: Tensor, replaced: Tensor, batch: Batch) -> Tensor:
    """Return the mean loss over all tokens except padding; `logits` and `replaced` are (b, l)."""
    losses = functional.binary_cross_entropy_with_logits(logits, replaced.to(logits.dtype), reduction="none")
    if batch.attention_mask is None:
        return losses.mean()
    return losses.mul(batch.attention_mask).sum() / batch.attention_mask.sum()


def put_in_place(batch: Batch, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Insert tokens (m,) at masked positions; return ids and a mask of changes, (b, l) each."""
    input_ids = batch.input_ids.flatten().index_copy(0, batch.label_positions, tokens)
    replaced = torch.zeros_like(input_ids, dtype=torch.bool)
    replaced.index_copy_(0, batch.label_positions, tokens != batch.labels)
    return input_ids.view_as(batch.input_ids), replaced.view_as(batch.input_ids)


@torch.no_grad()
def draw_tokens(to_logits: Callable[[Tensor], Tensor], hidden: Tensor, draws: Tensor, rows_at_once: int) -> Tensor:
    """Sample a token from each row's softmax, for hidden (m, hidden) and random `draws` (m,).

    The draws, in [0, 1), are part of the batch, so the tokens are reproducible and do not depend on
    the batch's division among devices.
    """
    drawn = []
    for rows, numbers in zip(torch.split(hidden, rows_at_once), torch.split(draws, rows_at_once), strict=True):
        reached = torch.softmax(to_logits(rows).float(), -1).cumsum(-1)  # (rows, vocabulary)
        wanted = numbers[:, None] * reached[:, -1:]  # the last value may differ from 1 by rounding
        drawn.append(torch.searchsorted(reached, wanted, right=True)[:, 0].clamp_(max=reached.shape[1] - 1))
    return torch.cat(drawn)


def shuffled(batch: Batch) -> tuple[Tensor, Tensor]:
    """Replace each masked token with the next masked token; return the tensors of `put_in_place`.

    Used to probe checkpoints: without a generator, the losses of different checkpoints are
    comparable.
    """
    return put_in_place(batch, batch.labels.roll(-1))
