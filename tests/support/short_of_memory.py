"""A process whose memory ends: `python short_of_memory.py MIB` trains with so much beyond what it has.

Its address space is limited by the kernel, so it is PyTorch's own allocator that fails. What `train` returns is printed
as one JSON object.
"""

from __future__ import annotations

import json
import resource
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from peer.backends.torch_cpu import TorchBackend
from peer.data.batching.synthetic import random_batch
from tests.support.tiny_albert import SPECIAL, VOCABULARY, gradients, tiny_config, tiny_model

SAMPLES = 1024  # which need some 600 MiB
WARM_UP_SAMPLES = 2  # loads what PyTorch loads late


def train(mib: int | None = None) -> dict[str, Any]:
    """The loss and the gradient's norm of one microbatch, and whether it was computed in parts."""
    config = tiny_config(hidden_size=64, intermediate_size=256, num_hidden_layers=6)
    model = tiny_model(config)
    make_batch = partial(random_batch, config, VOCABULARY, SPECIAL, rng=np.random.default_rng(1))
    backend = TorchBackend(config, model)
    batch = make_batch(SAMPLES)
    if mib is not None:
        backend.accumulate(make_batch(WARM_UP_SAMPLES))
        model.zero_grad(set_to_none=False)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (mib << 20),) * 2)
    loss = backend.accumulate(batch).loss
    return {"loss": loss, "norm": norm(model), "is_divided": backend._passes._at_once is not None}


def norm(model: torch.nn.Module) -> float:
    return float(sum(gradient.double().square().sum() for gradient in gradients(model).values()) ** 0.5)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(train(int(sys.argv[1]))))  # noqa: T201
