"""The table of models and cards in the volunteers' guide tells what the program holds in memory."""

from __future__ import annotations

import numpy as np
import torch

from docs.reference.memory import CARD_COPIES, LENGTH, SPECIAL, Need, need_of
from peer.backends.passes import Counts
from peer.backends.replicas import ReplicaBackend
from peer.config.run import RunConfig
from peer.data.batching.synthetic import random_batch
from peer.doctor.machine import GIB
from peer.models.build import build_model

VOCABULARY = 200
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}


def test_a_replica_holds_as_many_copies_of_the_parameters_as_the_table_says() -> None:
    """Parameters, their sums of gradients, and a microbatch's gradients that come apart from these."""
    config = RunConfig.from_mapping(
        {
            "model": {"architecture": "bert", "max_position_embeddings": LENGTH, **SIZES},
            "objective": {"name": "mlm"},
            "data": {"sequence_length": LENGTH},
        }
    )
    model = build_model(config, VOCABULARY, SPECIAL)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    backend = ReplicaBackend(config, model, [torch.device("cpu")])
    [replica] = backend._replicas
    batch = random_batch(config, VOCABULARY, SPECIAL, 1, np.random.default_rng(0))
    share = replica.compute(batch, Counts.of(batch))
    gradients = [gradient for gradient in share.gradients if gradient is not None]
    held = [*replica._parameters, *replica._sums, *gradients]
    assert len({tensor.data_ptr() for tensor in held}) == len(held)
    size = sum(parameter.nbytes for parameter in parameters)
    assert sum(tensor.nbytes for tensor in held) == CARD_COPIES * size
    need = need_of("bert", "mlm", VOCABULARY, SIZES)
    assert need.states == CARD_COPIES * sum(parameter.nbytes for parameter in model.parameters())


def test_checkpointing_keeps_less() -> None:
    """By more, the more layers there are; states and what is sent stay as they are."""
    few, many = (need_of("bert", "mlm", VOCABULARY, {**SIZES, "num_hidden_layers": layers}) for layers in (2, 8))
    assert few.checkpointed < few.kept
    assert many.kept - many.checkpointed > 3 * (few.kept - few.checkpointed)
    assert few.states < many.states
    assert few.gradients < many.gradients


def test_a_card_takes_what_fits_into_nine_tenths_of_it() -> None:
    """With all activations, with checkpointing, or not at all."""
    for kept, checkpointed, told in ((3, 1, "yes"), (4, 1, "checkpointing"), (5, 4, "no")):
        assert Need(1, 4 * GIB, kept * GIB, checkpointed * GIB, 1, 2).card(8) == told
