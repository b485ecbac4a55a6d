"""Gradients with JAX: on all cores of a TPU host, and by the same code on CPUs and GPUs.

A microbatch is divided among the devices. Each adds up its own gradients where they are; they are summed over devices
and brought to the host once for each averaging (`collect`), and the parameters that the swarm has changed are taken to
the devices once for each global step (`synchronize`). The master copy of the parameters is the PyTorch module's: swarm,
checkpoints and state download know no JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from peer.backends import MicrobatchResult
from peer.backends.jax_encoder import Shard, Weights, loss_sums
from peer.backends.jax_layout import EncoderLayout, layout_of
from peer.config.run import RunConfig

if TYPE_CHECKING:
    from peer.data.batching.batches import Batch

PLACES = 16  # places to guess are filled up to a multiple of this, so that few shapes are ever compiled
AXIS = "data"
EVERYWHERE, DIVIDED = PartitionSpec(), PartitionSpec(AXIS)  # type: ignore[no-untyped-call]
Gradients = dict[str, Array]


class JaxBackend:
    """Runs forward and backward passes on all of this machine's JAX devices."""

    def __init__(
        self,
        config: RunConfig,
        model: torch.nn.Module,
        devices: list[Any] | None = None,
        precision: Any | None = None,
    ) -> None:
        self._devices = devices or jax.local_devices()
        if precision is None:
            precision = jnp.float32 if self._devices[0].platform == "cpu" else jnp.bfloat16
        self._precision = precision
        self._sentence_order = config.objective.name == "mlm+sop"
        self._parameters = dict(model.named_parameters())
        self._mesh = Mesh(np.array(self._devices), (AXIS,))
        layout = layout_of(model.config, sentence_order=self._sentence_order)
        self._accumulate = _compile(self._mesh, layout, precision)
        self._sum = jax.jit(lambda sums: {name: value.sum(0) for name, value in sums.items()})
        self._key = jax.random.key(config.run.seed)
        self._microbatches = 0  # in all: seeds each one's dropout
        self._sums: Gradients
        self._holds_sums = False
        self.synchronize()

    @property
    def description(self) -> str:
        """The kind of device and how many of them, like `TPU v4 × 8 (JAX, bfloat16)`."""
        return f"{self._devices[0].device_kind} × {self.replicas} (JAX, {jnp.dtype(self._precision).name})"

    @property
    def replicas(self) -> int:
        """Among how many devices a microbatch is divided."""
        return len(self._devices)

    def microbatch_size(self, usual: int, limit: int, make_batch: Callable[[int], Batch]) -> int:
        """The usual number on each device: to try others would compile each of them."""
        del make_batch
        return max(1, min(limit, usual * self.replicas))

    def stage(self, batch: Batch) -> Batch:
        """The batch: JAX copies it in one transfer when it has been divided."""
        return batch

    def accumulate(self, batch: Batch) -> MicrobatchResult:
        """Add the gradient of (mean loss * samples); a microbatch with anything not finite adds nothing."""
        masked = max(1, len(batch.labels))
        shard = jax.device_put(divide(batch, self.replicas), NamedSharding(self._mesh, DIVIDED))
        self._microbatches += 1
        self._holds_sums = True
        key = jax.random.fold_in(self._key, self._microbatches)
        scale = jnp.float32(batch.samples / masked)
        self._sums, losses, finite = self._accumulate(self._trained, self._frozen, self._sums, shard, scale, key)
        mlm_sum, order_sum = np.asarray(losses).tolist()  # waits for the devices
        mlm_loss, sop_loss = mlm_sum / masked, order_sum / batch.samples
        return MicrobatchResult(
            samples=batch.samples,
            loss=mlm_loss + sop_loss,
            mlm_loss=mlm_loss,
            sop_loss=sop_loss if self._sentence_order else None,
            finite=bool(finite) and math.isfinite(mlm_loss + sop_loss),
        )

    def collect(self) -> None:
        """Move the accumulated gradients from the devices to the parameters' `.grad`, which is added to in place."""
        if not self._holds_sums:
            return
        for name, total in jax.device_get(self._sum(self._sums)).items():
            gradient = torch.from_numpy(np.array(total))
            parameter = self._parameters[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.add_(gradient)
        self._clear()

    def synchronize(self) -> None:
        """Take the parameters to the devices anew and forget what was accumulated: the swarm has taken a step."""
        everywhere = NamedSharding(self._mesh, EVERYWHERE)
        hosts = {name: parameter.detach().cpu().numpy() for name, parameter in self._parameters.items()}
        trained = {name: host for name, host in hosts.items() if self._parameters[name].requires_grad}
        frozen = {name: host for name, host in hosts.items() if name not in trained}
        self._trained: Weights = jax.device_put(trained, everywhere)
        self._frozen: Weights = jax.device_put(frozen, everywhere)
        self._clear()

    def _clear(self) -> None:
        self._holds_sums = False
        zeros = partial(jnp.zeros, dtype=jnp.float32, device=NamedSharding(self._mesh, DIVIDED))
        self._sums = {name: zeros((self.replicas, *weight.shape)) for name, weight in self._trained.items()}


def divide(batch: Batch, replicas: int) -> Shard:
    """A batch as arrays whose first axis can be divided by `replicas`, places to guess counted within each sample."""
    samples, length = batch.input_ids.shape
    rows = math.ceil(samples / replicas) * replicas
    positions = batch.label_positions.numpy()
    owners, places = positions // length, positions % length
    counts = np.bincount(owners, minlength=samples)
    width = math.ceil(max(1, int(counts.max(initial=0))) / PLACES) * PLACES
    columns = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)

    def scatter(values: Any, dtype: Any) -> Any:
        table = np.zeros((rows, width), dtype)
        table[owners, columns] = values
        return table

    def fill(values: torch.Tensor | None, dtype: Any, default: int = 0) -> Any:
        shape = (rows,) if values is not None and values.ndim == 1 else (rows, length)
        table = np.full(shape, default, dtype)
        table[:samples] = default if values is None else values.numpy()
        return table

    return Shard(  # numpy's arrays: they go to the devices in one transfer
        input_ids=fill(batch.input_ids, np.int32),
        token_type_ids=fill(batch.token_type_ids, np.int32),
        attention_mask=fill(batch.attention_mask, np.bool_, default=1),
        positions=scatter(places, np.int32),
        labels=scatter(batch.labels.numpy(), np.int32),
        counted=scatter(1.0, np.float32),
        sop_labels=fill(batch.sop_labels if batch.sop_labels is not None else torch.zeros(samples), np.int32),
        real=fill(torch.ones(samples), np.float32),
    )


def _compile(mesh: Mesh, layout: EncoderLayout, precision: Any) -> Any:
    """The compiled step: (trained, frozen, sums, shard, scale, key) -> (sums, [masked-LM sum, order sum], finite)."""

    def step(
        trained: Weights, frozen: Weights, sums: Gradients, shard: Shard, scale: Array, key: Array
    ) -> tuple[Gradients, Array, Array]:
        key = jax.random.fold_in(key, jax.lax.axis_index(AXIS))

        def objective(weights: Weights) -> tuple[Array, Array]:
            masked, order = loss_sums({**weights, **frozen}, shard, layout, precision, key)
            return masked * scale + order, jnp.stack([masked, order])

        gradients, losses = jax.grad(objective, has_aux=True)(trained)
        losses = jax.lax.psum(losses, AXIS)  # type: ignore[no-untyped-call]
        sizes = jnp.stack([jnp.square(gradient).sum() for gradient in gradients.values()])
        size = jax.lax.psum(sizes.sum(), AXIS)  # type: ignore[no-untyped-call]
        finite = jnp.isfinite(size + losses.sum())
        sums = {name: jnp.where(finite, total + gradients[name], total) for name, total in sums.items()}
        return sums, losses, finite

    divided = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(EVERYWHERE, EVERYWHERE, DIVIDED, DIVIDED, EVERYWHERE, EVERYWHERE),
        out_specs=(DIVIDED, EVERYWHERE, EVERYWHERE),
        check_vma=False,  # each device's gradient is its own: nothing is summed before `collect`
    )
    return jax.jit(divided, donate_argnums=2)
