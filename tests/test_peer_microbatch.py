"""How many samples a worker computes at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from peer.backends.memory import FoundSizes
from peer.backends.torch_backend import TorchBackend
from peer.data.batches import Batch
from peer.microbatch import MICROBATCHES_A_STEP, fitting_microbatch_size
from peer.run_config import RunConfig
from tests.support.tiny_albert import SPECIAL, VOCABULARY, tiny_config, tiny_model


class FindingBackend(TorchBackend):
    """Counts how often it is asked to find a size, and really computes one batch."""

    asked = 0

    def microbatch_size(self, usual: int, limit: int, make_batch: Callable[[int], Batch]) -> int:
        self.asked += 1
        assert self.accumulate(make_batch(2)).finite
        return limit


def size_of(backend: TorchBackend, config: RunConfig, directory: Path) -> int:
    found = FoundSizes(directory / "sizes.json")
    return fitting_microbatch_size(backend, config, VOCABULARY, SPECIAL, found)


def test_found_once_for_each_device_model_and_length(tmp_path: Path) -> None:
    """A return costs no trials; another sequence length does."""
    config = tiny_config()
    backend = FindingBackend(config, tiny_model(config))
    limit = config.averaging.target_batch_size // MICROBATCHES_A_STEP
    assert [size_of(backend, config, tmp_path) for _ in range(2)] == [limit, limit]
    assert backend.asked == 1
    longer = config.model_copy(update={"data": config.data.model_copy(update={"sequence_length": 30})})
    size_of(backend, longer, tmp_path)
    assert backend.asked == 2


def test_on_the_cpu_the_runs_size_is_taken(tmp_path: Path) -> None:
    """More samples at once would be no faster there."""
    config = tiny_config()
    backend = TorchBackend(config, tiny_model(config))
    assert size_of(backend, config, tmp_path) == config.data.microbatch_size


def test_no_peer_makes_a_step_of_few_microbatches(tmp_path: Path) -> None:
    """A step of the run's own microbatch is the least that is tried."""
    config = tiny_config()
    small = config.model_copy(
        update={"averaging": config.averaging.model_copy(update={"target_batch_size": config.data.microbatch_size})}
    )
    backend = FindingBackend(small, tiny_model(small))
    assert size_of(backend, small, tmp_path) == config.data.microbatch_size


def test_no_microbatch_is_larger_than_a_local_step(tmp_path: Path) -> None:
    """Where peers take local steps, one of them is made of whole microbatches."""
    config = tiny_config()
    local = config.model_copy(
        update={"averaging": config.averaging.model_copy(update={"target_batch_size": 4096, "local_steps": 64})}
    )
    backend = FindingBackend(local, tiny_model(local))
    assert size_of(backend, local, tmp_path) == local.averaging.local_batch_size
