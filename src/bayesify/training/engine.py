"""Lightning Fabric set up for a Bayesian model: devices, precision, DDP, FSDP2.

Fabric takes seconds to import, so this module is imported inside `fit` only.
"""

from __future__ import annotations

import atexit
import os
import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from lightning_fabric.strategies.strategy import Strategy
from torch import distributed, nn
from torch.utils.data import DataLoader

from bayesify.conversion.posterior import Posterior
from bayesify.training.compiling import torch_release
from bayesify.training.settings import FitSettings

# Seconds for gloo's threads to put down what they hold where they cannot be waited for.
_LAST_TENSORS = 0.2


def make_fabric(settings: FitSettings) -> Fabric:
    """Return a launched Fabric for these settings; under torchrun it joins the other ranks."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    devices = local if settings.devices == "auto" else settings.devices
    strategy: str | Strategy = "auto"
    if settings.strategy == "fsdp":
        _check_release()
        size = max(world, devices)
        strategy = ModelParallelStrategy(_shard, data_parallel_size=size, tensor_parallel_size=1)
    elif settings.strategy == "ddp" or world > 1:
        strategy = DDPStrategy()
    accelerator = settings.accelerator
    if accelerator == "auto" and not torch.cuda.is_available():
        accelerator = "cpu"  # Apple's GPU lacks float64, which the exact KL needs
    fabric = Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=max(world // local, 1),
        strategy=strategy,
        precision=settings.precision,  # pyright: ignore[reportArgumentType]
    )
    if settings.strategy == "fsdp" and fabric.world_size < 2:
        raise ValueError(
            "strategy='fsdp' shards over several processes, but there is one: start the script "
            "with torchrun --nproc-per-node=2 or more"
        )
    has_joined = _is_in_a_group()
    fabric.launch()
    if _is_in_a_group() and distributed.get_backend() != "nccl":
        # Fabric itself leaves a group of nccl at exit, and no other. What is registered last is
        # done first.
        if not has_joined:
            atexit.register(_leave_group)
        if settings.strategy == "fsdp":
            atexit.unregister(_wait_for_threads)
            atexit.register(_wait_for_threads)
    return fabric


def _is_in_a_group() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def _leave_group() -> None:
    """End gloo's threads while the interpreter is whole, and wait for them.

    One that gives back the last tensor of a collective while the interpreter ends would abort
    the process with all its work done (pytorch/pytorch#179291).
    """
    if _is_in_a_group():
        distributed.destroy_process_group()


def _wait_for_threads() -> None:
    # The caches of DTensor hold on to the group and have no public way out: its threads live on.
    time.sleep(_LAST_TENSORS)


def _check_release() -> None:
    if torch_release() < (2, 11):
        raise RuntimeError(
            f"strategy='fsdp' needs torch 2.11 or later, which can shard a softplus; this is "
            f"{torch.__version__}. Use strategy='ddp', or another torch"
        )


def setup_loader(fabric: Fabric, loader: Any) -> Any:
    """Return the loader for this rank, moving its batches to the device."""
    if not isinstance(loader, DataLoader):
        if fabric.world_size > 1:
            raise TypeError(
                "training on several processes needs a torch DataLoader, so that each process "
                f"reads its own part of the data; got {type(loader).__name__}"
            )
        return loader
    with warnings.catch_warnings():
        # Fabric advises more workers on every loader; a loader that reads memory needs none.
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        return fabric.setup_dataloaders(loader)


def start_epoch(loader: Any, epoch: int) -> None:
    """Tell a distributed sampler which epoch's order to use, also after resuming."""
    if hasattr(loader, "_num_iter_calls"):
        loader._num_iter_calls = epoch


def step_optimizers(
    fabric: Fabric, model: Any, optimizers: Sequence[Any], clip_norm: float | None
) -> None:
    """Clip each optimiser's gradient, step all of them, and clear the gradients.

    Under a gradient scaler (float16) all are unscaled by one and the same scale, which changes
    only after the last of them: Fabric's own step would change it in between.
    """
    if clip_norm is not None:
        for optimizer in optimizers:
            fabric.clip_gradients(model, optimizer, max_norm=clip_norm, error_if_nonfinite=False)
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    for optimizer in optimizers:
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer.optimizer)
    if scaler is not None:
        scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)


def _shard(model: nn.Module, device_mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    mesh = device_mesh["data_parallel"]
    layers = [
        module
        for module in model.modules()
        if module is not model and any(isinstance(c, Posterior) for c in module.children())
    ]
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model
