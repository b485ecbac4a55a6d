"""Linear layers that multiply with oneDNN on CPUs.

PyTorch hands float32 products to MKL, which does not use the AVX-512 units of AMD's processors: oneDNN, which PyTorch
carries too, is about twice as fast there at the same precision. It is reached through the operator that PyTorch's own
compiler emits; where a build does not have it, and on accelerators, the ordinary `linear` does the work.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D


@cache
def onednn_available() -> bool:
    """Whether this build of PyTorch has oneDNN's product for float32 matrices."""
    built_in: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return built_in and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """inputs (n, k), weight (m, k), bias (m,) -> inputs @ weight.T + bias  # (n, m)"""
    if torch.compiler.is_compiling():  # Inductor cannot take oneDNN's operator with weights that change
        return functional.linear(inputs, weight, bias)
    suits = inputs.device.type == "cpu" and inputs.dtype == torch.float32 and inputs.shape[0] > 0
    if not (suits and onednn_available()) or torch.is_autocast_enabled("cpu"):
        return functional.linear(inputs, weight, bias)
    product: Tensor = _OneDnnLinear.apply(inputs, weight, bias)  # type: ignore[no-untyped-call]
    return product


class _OneDnnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return _product(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs, weight = ctx.saved_tensors
        for_inputs, for_weight, for_bias = ctx.needs_input_grad
        return (
            _product(gradient, weight.t()) if for_inputs else None,
            _product(gradient.t(), inputs.t()) if for_weight else None,
            gradient.sum(0) if for_bias else None,
        )


def use_onednn(model: nn.Module) -> None:
    """Let all linear layers of a model, GPT-2's transposed ones too, multiply so; else they stay what they are."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = _Linear
        elif type(module) is Conv1D:
            module.__class__ = _TransposedLinear


class _Linear(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        """inputs (..., k) -> (..., m)"""
        return linear(inputs.flatten(0, -2), self.weight, self.bias).view(*inputs.shape[:-1], self.out_features)


class _TransposedLinear(Conv1D):
    def forward(self, inputs: Tensor) -> Tensor:
        """inputs (..., k) -> (..., m)"""
        return linear(inputs.flatten(0, -2), self.weight.t(), self.bias).view(*inputs.shape[:-1], self.nf)


def _product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """left (n, k), right (m, k) -> left @ right.T + bias  # (n, m)"""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return product
