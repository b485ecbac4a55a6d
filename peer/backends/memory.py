"""Memory that ends: how it is recognized, and how large a microbatch may be."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import torch

from auth.errors import StorageError
from auth.files import write_private

logger = logging.getLogger(__name__)
# In the texts of RuntimeErrors, in small letters: of allocators and drivers (PyTorch, CUDA, ROCm, Apple, JAX), and of
# libraries that find no memory for handles and workspaces (cuBLAS, cuDNN, oneDNN). "Not initialized" and "internal
# error" have other causes too; then a smaller microbatch is tried in vain.
PHRASES = (
    "out of memory",
    "out_of_memory",
    "outofmemory",
    "memoryallocation",
    "can't allocate memory",
    "not enough memory",
    "resource_exhausted",
    "status_alloc_failed",
    "statusallocfailed",
    "cublas_status_not_initialized",
    "cudnn_status_internal_error",
    "could not create a primitive",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the device or the system gives no more memory."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error).lower() for phrase in PHRASES)


def largest_fitting(fits: Callable[[int], bool], limit: int) -> int:
    """The largest size up to `limit` found by doubling from 1, then by half a step further; 0 if not even 1 fits."""
    size = 0
    while (following := max(1, 2 * size)) <= limit and fits(following):
        size = following
    between = size + size // 2
    return between if size < between <= limit and fits(between) else size


class FoundSizes:
    """Sizes that were found on this machine before, in a file; what is damaged in it is found anew."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str) -> int | None:
        """The size found for this device, model and length."""
        size = self._read().get(key)
        return size if isinstance(size, int) and size >= 0 else None

    def put(self, key: str, size: int) -> None:
        """Remember it; where the disk is full, it is found again next time."""
        try:
            write_private(self._path, json.dumps(self._read() | {key: size}, indent=1).encode())
        except StorageError as error:
            logger.warning("the microbatch that fits is not remembered: %s", error)

    def _read(self) -> dict[str, object]:
        try:
            content = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}
