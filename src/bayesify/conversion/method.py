"""The contract of a method: its choice on each axis, and the few things only it can do."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from bayesify.conversion.plan import Plan
from bayesify.registry import Registry, unknown


@dataclasses.dataclass(frozen=True)
class Update:
    """One step of the optimisers, as a method sees it.

    Attributes:
        step: Its number, from 1.
        num_steps: How many there will be, None where the loader has no length.
        optimizers: The optimisers; their state can be changed after the step.
        average: Returns the mean of a tensor over all processes.
    """

    step: int
    num_steps: int | None
    optimizers: Sequence[Optimizer]
    average: Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Method(ABC):
    """One point in the space of where × what × how × objective.

    A method is a frozen record of choices. It plans a conversion, carries it out, and says how
    its models are sampled; training and prediction need nothing else of it.
    """

    name: ClassVar[str]
    ways: ClassVar[Mapping[str, str]]
    """Ways `predict(by=...)` can go and what each averages, the default first."""
    can_be_vectorised: ClassVar[bool] = True
    """Whether several draws can share one pass through the network."""
    can_be_trained: ClassVar[bool] = True
    """Whether `fit` can train its model; else it takes `epochs=0` only."""
    can_be_compiled: ClassVar[bool] = True
    """Whether `fit` can compile its passes."""
    can_be_sharded: ClassVar[bool] = True
    """Whether FSDP can hold a part of each parameter on each process."""
    pruning_ratio: ClassVar[float] = 0.83
    """The |mean| / std up to which `compress` takes weights for noise (Graves, 2011)."""

    @abstractmethod
    def plan(self, model: nn.Module) -> Plan:
        """Return what `prepare_` will do, or raise a ConversionError; change nothing."""

    @abstractmethod
    def prepare_(self, model: nn.Module, plan: Plan) -> nn.Module:
        """Carry out a plan on a model and return it (or the module that takes its place)."""

    def for_data(self, data: Iterable[Any] | None) -> Method:
        """Return the method, ready to look at training data while it converts a model.

        Args:
            data: A loader of training examples; None where a model is only made to be looked at,
                or to be filled from a file, and nothing should be asked of any data.
        """
        del data
        return self

    def nll(
        self, model: nn.Module, forward: Callable[[], Any], nll: Callable[..., Tensor]
    ) -> Tensor:
        """Return the negative log-likelihood of one training pass.

        Args:
            model: The converted model.
            forward: Calls it, or what wraps it for training, on the batch.
            nll: The negative log-likelihood of an output; `is_logged=False` keeps the output
                out of what is logged.
        """
        del model
        return nll(forward())

    def outputs(self, model: nn.Module, forward: Callable[[], Any], number: int) -> list[Any]:
        """Return so many draws of the outputs of a batch, for validation.

        Args:
            model: The converted model.
            forward: Calls the model, already in the mode in which every call is one draw.
            number: How many.
        """
        del model
        return [forward() for _ in range(number)]

    def default_way(self) -> str:
        """Return how `predict` goes when nobody says."""
        return next(iter(self.ways))

    def carries_moments(self) -> bool:
        """Return whether it trains on the variances of uncertain inputs, which others draw."""
        return False

    def gpu_compile_options(self, model: nn.Module) -> dict[str, Any]:
        """Return options of torch.compile that suit training on a GPU, beside those of a mode."""
        del model
        return {}

    def num_draws(self, model: nn.Module, requested: int) -> int:
        """Return how many different predictions `requested` samples can give."""
        del model
        return requested

    @contextmanager
    def sampling(self, model: nn.Module, by: str) -> Iterator[None]:
        """Open a context in which every call of the model is one draw, made as `by` says."""
        del model, by
        yield

    @contextmanager
    def around_step(self, model: nn.Module, update: Update) -> Iterator[None]:
        """Open a context for the forward and backward passes of one update; most do nothing."""
        del model, update
        yield

    def after_step(self, model: nn.Module, update: Update) -> None:
        """Do what the method does between optimiser steps; most do nothing.

        Compiled by `fit`, a model whose posteriors get another prior here, or other numbers in it,
        is compiled again each time: the KL is part of what is compiled.
        """
        del model, update

    def watch(self, model: nn.Module) -> dict[str, float]:
        """Return what is worth a column in the history of a run, at the end of an epoch."""
        del model
        return {}

    def to_dict(self) -> dict[str, Any]:
        """Return the fields a file can hold; the plan holds what the others decided."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain = {key: value for key, value in fields.items() if _is_plain(value)}
        return {"name": self.name, **plain}


methods: Registry[type[Method]] = Registry("method")


def method_from_dict(fields: Mapping[str, Any]) -> Method:
    """Return the method that `Method.to_dict` wrote."""
    kind = methods[fields["name"]]
    options = {key: value for key, value in fields.items() if key != "name"}
    known = [field.name for field in dataclasses.fields(kind)]
    for key in options:
        if key not in known:
            raise ValueError(unknown(f"option of {kind.__name__}", key, known))
    return kind(**{key: _as_tuple(value) for key, value in options.items()})


def _as_tuple(value: Any) -> Any:
    # JSON has no tuples; a frozen record with a list in it could not be hashed.
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float, bool, type(None))) or (
        (isinstance(value, (list, tuple)) and all(_is_plain(entry) for entry in value))
        or (isinstance(value, dict) and all(_is_plain(entry) for entry in value.values()))
    )
