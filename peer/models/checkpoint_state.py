"""Loading of a checkpoint's weights and optimizer state by a resuming keeper or a joining peer.

`model.safetensors` contains the weights that transformers loads. Additional weights that a run
trains are in `optimizer.safetensors`, as "<parameter>/value".
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from auth.errors import StorageError
from peer.models.replaced_tokens import ReplacedTokens

WEIGHTS, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
VALUE = "value"  # key suffix of a parameter's value, stored next to its statistics


def restore_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Copy a checkpoint's statistics into the optimizer. Raises `StorageError` on a mismatch."""
    stored = _load(path / OPTIMIZER)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                saved = stored.get(f"{names[id(parameter)]}/{key}")
                if saved is None or saved.shape != value.shape:
                    raise StorageError(f"The optimizer's state in {path} does not fit this run's model and optimizer.")
                value.copy_(saved)


def restore_model(model: torch.nn.Module, path: Path) -> None:
    """Copy a checkpoint's weights into the model. Raises `StorageError` on a mismatch."""
    stored = _load(path / WEIGHTS)
    if isinstance(model, ReplacedTokens):
        others = _load(path / OPTIMIZER)
        suffix = f"/{VALUE}"
        values = {name.removesuffix(suffix): value for name, value in others.items() if name.endswith(suffix)}
        stored = model.joined(stored, values)
    try:
        result = model.load_state_dict(stored, strict=False)
    except RuntimeError as error:  # raised by torch if shapes differ
        raise StorageError(f"The weights in {path} are not those of this run's model.") from error
    tied = {name for name, tensor in model.state_dict(keep_vars=True).items() if _is_tied(model, name, tensor)}
    if result.unexpected_keys or set(result.missing_keys) - tied:
        raise StorageError(f"The weights in {path} are not those of this run's model.")


def weight_files(model: torch.nn.Module) -> tuple[str, ...]:
    """Return the names of the files that `restore_model` reads."""
    return (WEIGHTS, OPTIMIZER) if isinstance(model, ReplacedTokens) else (WEIGHTS,)


def _is_tied(model: torch.nn.Module, name: str, tensor: torch.Tensor) -> bool:
    others = (other for key, other in model.state_dict(keep_vars=True).items() if key != name)
    return any(other.data_ptr() == tensor.data_ptr() for other in others)


def _load(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"{path.parent.name}: no complete checkpoint ({path.name} as safetensors: {error})."
        ) from error
