"""Every choice `fit` offers, in one record, checked before anything starts."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data.distributed import DistributedSampler

from bayesify.registry import unknown
from bayesify.training.compiling import check_compile
from bayesify.training.likelihood import Likelihood
from bayesify.training.schedule import ScheduleChoice

LikelihoodChoice = Likelihood | Mapping[str, Any] | str | Callable[[Any, Tensor], Tensor]
OptimizerChoice = str | Callable[[Iterable[Any]], Optimizer]


@dataclass(frozen=True)
class FitSettings:
    """How to train.

    Attributes:
        epochs: Passes over the training data; 0 leaves the model as it is, on its device and with
            its likelihood, as one that needs no training wants.
        likelihood: What outputs mean: "classification", "regression", a table of such a name and
            its options, a `Likelihood`, or a loss function. None decides by the type of the
            targets.
        num_data: Number of training examples, the N in KL / N; None asks the loader's data set.
        beta: Weight of the KL: a number, the name of a schedule, a table of its name and options,
            or a function of progress.
        num_samples: Draws of the weights per step; each is followed by its own backward pass, so
            memory does not grow with it.
        optimizer: "adam", "adamw", "sgd", "rmsprop", "adagrad", or a function of parameter groups.
            It moves means and deterministic weights; scales have an optimiser of their own.
        learning_rate: Step size of means and deterministic weights.
        scale_learning_rate: Step size of the scales. Their gradient is divided by N and their
            parameters live on a log-like axis, so they need a larger one than the means.
        scale_optimizer: The optimiser of the scales, by name: "adam", or "rmsprop", which keeps one
            number for each scale where Adam keeps two. Plain "sgd" leaves scales where they are.
        weight_decay: Decay of means and deterministic weights, never of scales.
        schedule: Factor on both learning rates, chosen like `beta`.
        clip_norm: Largest norm of the gradient of means and deterministic weights, and of that
            of the scales; None does not clip.
        accumulate: Batches per optimiser step; the last step of an epoch may have fewer.
        val_samples: Draws averaged per validation prediction.
        patience: Epochs without a better validation epoch before training stops; the best weights
            are put back. None never stops early.
        keep_best: Whether to end on the weights of the best validation epoch.
        best_by: Which validation epoch is the best: the one of the lowest "nll", or the one of the
            best "score", such as the accuracy of classes, which often peaks later. A loss function
            of one's own has no score, and goes by its nll.
        run_dir: Folder for the checkpoint, metrics.csv and log.txt; None writes nothing.
        resume: Whether to go on from the checkpoint in `run_dir`, if there is one.
        checkpoint_every: Steps between checkpoints; None writes one after each epoch.
        tensorboard: Whether to write TensorBoard events to `run_dir`.
        seed: Seed of every random number generator at the start; None leaves them as they are.
        progress: Whether to show a progress bar; None shows one in a terminal.
        compile: Whether to compile the model with torch.compile, or the mode to compile it in:
            "reduce-overhead" also captures its passes in CUDA graphs, for networks and batches so
            small that a GPU waits for the next kernel. What passes return is then written over by
            the next step; other code of the same process that captures graphs has to mark its
            own steps from then on (`torch.compiler.cudagraph_mark_step_begin`).
        channels_last: Whether to hold images and convolution kernels channels last, which GPUs
            prefer. Draws then fall on other entries: the run is as good, but not the same.
        precision: Fabric precision, such as "32-true", "bf16-mixed", "16-mixed".
        accelerator: Fabric accelerator: "auto", "cpu", "cuda", ...
        devices: Number of devices; "auto" takes one, or what `torchrun` started.
        strategy: "auto", "ddp", or "fsdp" (FSDP2, sharded parameters).
    """

    epochs: int
    likelihood: LikelihoodChoice | None = None
    num_data: float | None = None
    beta: ScheduleChoice = 1.0
    num_samples: int = 1
    optimizer: OptimizerChoice = "adam"
    learning_rate: float = 1e-3
    scale_learning_rate: float = 1e-2
    scale_optimizer: str = "adam"
    weight_decay: float = 0.0
    schedule: ScheduleChoice = "cosine"
    clip_norm: float | None = None
    accumulate: int = 1
    val_samples: int = 4
    patience: int | None = None
    keep_best: bool = False
    best_by: Literal["nll", "score"] = "nll"
    run_dir: str | os.PathLike[str] | None = None
    resume: bool = False
    checkpoint_every: int | None = None
    tensorboard: bool = False
    seed: int | None = None
    progress: bool | None = None
    compile: bool | str = False
    channels_last: bool = False
    precision: str = "32-true"
    accelerator: str = "auto"
    devices: int | Literal["auto"] = "auto"
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs, least=0)
        for name in ("num_samples", "accumulate", "val_samples"):
            check_count(name, getattr(self, name))
        for name in ("patience", "checkpoint_every"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        for name in ("learning_rate", "scale_learning_rate"):
            _check_positive(name, getattr(self, name))
        if self.clip_norm is not None:
            _check_positive("clip_norm", self.clip_norm)
        if self.num_data is not None:
            _check_positive("num_data", self.num_data)
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ValueError(f"weight_decay must be finite and >= 0, got {self.weight_decay}")
        if self.best_by not in ("nll", "score"):
            raise ValueError(f"best_by must be 'nll' or 'score', got {self.best_by!r}")
        check_compile(self.compile)
        if self.strategy not in ("auto", "ddp", "fsdp"):
            raise ValueError(f"strategy must be 'auto', 'ddp' or 'fsdp', got {self.strategy!r}")
        if self.channels_last and self.strategy == "fsdp":
            raise ValueError(
                "channels_last=True cannot be combined with strategy='fsdp', which shards "
                "parameters in their plain order only: leave one of them out"
            )
        for name in ("resume", "tensorboard", "checkpoint_every"):
            if getattr(self, name) and self.run_dir is None:
                value = getattr(self, name)
                raise ValueError(f"{name}={value} needs run_dir, the folder of the run")

    @property
    def run_path(self) -> Path | None:
        """The run folder as a path."""
        return None if self.run_dir is None else Path(self.run_dir)


class FitOptions(TypedDict, total=False):
    """The fields of `FitSettings` other than `epochs`, as keywords of `fit`."""

    likelihood: LikelihoodChoice | None
    num_data: float | None
    beta: ScheduleChoice
    num_samples: int
    optimizer: OptimizerChoice
    learning_rate: float
    scale_learning_rate: float
    scale_optimizer: str
    weight_decay: float
    schedule: ScheduleChoice
    clip_norm: float | None
    accumulate: int
    val_samples: int
    patience: int | None
    keep_best: bool
    best_by: Literal["nll", "score"]
    run_dir: str | os.PathLike[str] | None
    resume: bool
    checkpoint_every: int | None
    tensorboard: bool
    seed: int | None
    progress: bool | None
    compile: bool | str
    channels_last: bool
    precision: str
    accelerator: str
    devices: int | Literal["auto"]
    strategy: Literal["auto", "ddp", "fsdp"]


def fit_settings(epochs: int, options: FitOptions) -> FitSettings:
    """Return checked settings; an unknown keyword is named with the closest known one."""
    known = [field.name for field in dataclasses.fields(FitSettings)]
    for name in options:
        if name not in known:
            raise TypeError(unknown("option of fit", name, known))
    return FitSettings(epochs=epochs, **options)


def num_examples(loader: Any, settings: FitSettings) -> float:
    """Return N for KL / N: what the user said, or the length of the loader's data set."""
    if settings.num_data is not None:
        return settings.num_data
    sampler = getattr(loader, "sampler", None)
    if isinstance(sampler, DistributedSampler):
        sampler = None  # its length is one process's part, N is the whole
    for source in (sampler, getattr(loader, "dataset", None)):
        try:
            if count := len(source):  # pyright: ignore[reportArgumentType]
                return count
        except TypeError:
            continue
    raise ValueError(
        "num_data must be given: the training loader's data set has no length, and the weight of "
        "the KL is never guessed"
    )


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise a ValueError unless a value is a whole number, of at least 1 unless told."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}")


def _check_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite, got {value}")
