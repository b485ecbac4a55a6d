"""Exhausted memory is recognized, and the number of samples computed at once is found and remembered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st

from peer.backends.memory import (
    MICROBATCHES_A_STEP,
    FoundSizes,
    fitting_microbatch_size,
    is_out_of_memory,
    largest_fitting,
)
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
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


@pytest.mark.parametrize(
    ("averaging", "size"),
    [({"target_batch_size": 4}, 4), ({"target_batch_size": 4096, "local_steps": 64}, 64)],
    ids=["the run's own microbatch", "a local step"],
)
def test_no_microbatch_is_larger_than_a_step(tmp_path: Path, averaging: dict[str, int], size: int) -> None:
    """A step is made of whole microbatches, and the run's own one is the least that is tried."""
    config = tiny_config()
    config = config.model_copy(update={"averaging": config.averaging.model_copy(update=averaging)})
    backend = FindingBackend(config, tiny_model(config))
    assert size_of(backend, config, tmp_path) == size


@given(capacity=st.integers(0, 5000), limit=st.integers(1, 3000))
def test_size_fits_and_wastes_little(capacity: int, limit: int) -> None:
    """More than half of what would fit is found, and nothing is tried beyond the limit."""
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= capacity

    size = largest_fitting(fits, limit)
    possible = min(capacity, limit)
    assert size <= possible
    assert size > possible / 2 or possible == 0
    assert max(tried) <= limit


def test_what_means_that_memory_has_ended() -> None:
    """Accelerators, the CPU's allocator and Python say it each in their own way; other errors are not taken for it."""
    with pytest.raises(RuntimeError) as cpu:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(cpu.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    assert not is_out_of_memory(ValueError("not enough memory"))


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.58 GiB",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
        "CUDA driver error: out of memory",
        "HIP out of memory. Tried to allocate 2.00 GiB",
        "HIP error: out of memory",
        "MPS backend out of memory (MPS allocated: 17.00 GB, max allowed: 18.13 GB)",
        "cudaErrorMemoryAllocation",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "hipErrorOutOfMemory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "miopenStatusAllocFailed",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
        "RESOURCE_EXHAUSTED: Attempting to reserve 12.65G at the bottom of memory. There are 10.51G free",
        "[enforce fail at alloc_cpu.cpp:75] . DefaultCPUAllocator: can't allocate memory: you tried to allocate",
        "could not create a primitive",
    ],
)
def test_what_devices_and_their_libraries_say_when_memory_has_ended(text: str) -> None:
    """PyTorch has a class of its own for its allocators only; handles and workspaces of libraries need memory too."""
    assert is_out_of_memory(RuntimeError(text))


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: device-side assert triggered",
        "CUDA error: no kernel image is available for execution on the device",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED",
        "INVALID_ARGUMENT: shapes do not match",
        "Expected all tensors to be in the same memory format",
    ],
)
def test_other_faults_of_devices_are_no_lack_of_memory(text: str) -> None:
    """A smaller microbatch does not help against them."""
    assert not is_out_of_memory(RuntimeError(text))


def test_sizes_are_remembered(tmp_path: Path) -> None:
    """For each key its own, by the next process too."""
    path = tmp_path / "sizes.json"
    FoundSizes(path).put("a", 32)
    FoundSizes(path).put("b", 8)
    assert [FoundSizes(path).get(key) for key in "abc"] == [32, 8, None]


def test_a_size_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    """Training goes on where the disk is full; here a file stands where the folder would be."""
    (tmp_path / "file").write_text("")
    sizes = FoundSizes(tmp_path / "file" / "sizes.json")
    sizes.put("a", 32)
    assert sizes.get("a") is None


@pytest.mark.parametrize("content", ["", "[1]", "{broken", '{"a": "many"}', '{"a": -1}'])
def test_damaged_file_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    """What cannot be read is found anew and written over."""
    path = tmp_path / "sizes.json"
    path.write_text(content)
    sizes = FoundSizes(path)
    assert sizes.get("a") is None
    sizes.put("a", 4)
    assert sizes.get("a") == 4
