"""The posterior of one tensor: its stored state, and the value a layer reads.

State is stored as compactly as the choice of weights allows. `index` holds the flat positions of
the entries that exist at all (None: every one); `random_index` holds the positions, among those,
that are random (None: every one). A dense posterior has neither; a partial one stores a scale
for `random_index` only; a sparse one stores nothing outside `index`. A dense tensor exists only
while a layer's forward uses it, and so does `random_index`, which is kept in a shorter form (see
conversion/positions.py); a state dict has it all the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from bayesify.conversion.positions import Packed, as_stored, packed, unpacked
from bayesify.conversion.recall import (
    Drawn,
    Pass,
    draw_to_repeat,
    generator_state,
    is_recomputing,
    refuse_compiled_code,
    repeat,
)
from bayesify.distributions import Family, Prior, chosen_estimator, estimators
from bayesify.distributions.divergence import AUTO
from bayesify.distributions.family import Parameters
from bayesify.moments import Moments
from bayesify.moments.written_down import written_down

How = Literal["sample", "local", "mean", "moments"]
"""How randomness travels: sampled weights, local reparameterisation, mean weights, or moments."""

# What a posterior knows of the forward pass it is read in (see conversion/scope.py), and what it
# keeps of it until the backward passes after it (see conversion/recall.py).
_OF_ONE_PASS = frozenset(
    {"_held", "_draw", "_pass", "_state", "_records", "_was_read_alone", "gradient"}
    | {"_layout", "_rows", "_in_state"}
)


class Posterior(nn.Module):
    """Approximate posterior of one tensor of a network.

    Args:
        tensor: The trained or freshly initialised tensor the posterior is centred on.
        std: Initial standard deviation: one number per entry, or a tensor that broadcasts to
            the entries, which then share it ("tied" scales).
        family: How entries are distributed.
        prior: What they are measured against.
        index: Flat positions of the entries that exist; the others are 0 and not stored.
        random_index: Positions, among the existing entries, of those that are random.
        estimator: How the KL is found; "auto" takes the best there is for this pair.
        num_samples: Draws averaged by an estimator that draws.
    """

    index: Tensor | None
    _random_places: Tensor | None
    _random_jumps: Tensor | None

    def __init__(
        self,
        tensor: Tensor,
        std: Tensor,
        family: Family,
        prior: Prior,
        *,
        index: Tensor | None = None,
        random_index: Tensor | None = None,
        estimator: str = AUTO,
        num_samples: int = 1000,
    ) -> None:
        super().__init__()
        self.family = family
        self.prior = prior
        self.estimator = chosen_estimator(family, prior, estimator).name
        self.num_samples = num_samples
        self.how: How = "sample"
        self.shape = tensor.shape
        self.is_tied_scale = std.shape != tensor.shape
        if not _broadcasts(std.shape, tensor.shape):
            shapes = f"{tuple(tensor.shape)}, got {tuple(std.shape)}"
            raise ValueError(f"std must broadcast to the shape {shapes}")
        if self.is_tied_scale and (index is not None or random_index is not None):
            raise ValueError("std must have one number per entry where only some entries are kept")
        values = tensor.detach().clone()
        if index is not None:
            values, std = values.flatten()[index], std.flatten()[index]
        random = values
        if random_index is not None:
            random, std = values.flatten()[random_index], std.flatten()[random_index]
        names = family.parameter_names
        initial = family.initial(random, std.detach().to(values.dtype))
        if random_index is not None:
            # What is not random has a location too.
            whole = values.flatten().index_copy(0, random_index, initial[names[0]])
            initial[names[0]] = whole.view(values.shape)
        for name in names:
            entry = nn.Parameter(initial[name].clone(memory_format=torch.preserve_format))
            self.register_parameter(name, entry)
        self.place_(index, random_index)
        # Whether the layer around this tensor has a rule for local reparameterisation.
        self.can_be_local = False
        self._held = False
        self._draw: Tensor | None = None
        self._pass: Pass | None = None
        self._state: Tensor | None = None
        self._records: list[Drawn] = []
        self._was_read_alone = False
        # Whether backward passes leave the gradient of the whole dense tensor in `gradient`: a
        # sparse posterior has no parameter that it could be read from.
        self.keeps_gradient = False
        self.gradient: Tensor | None = None
        # Where the live entries are, in the forms that products need.
        self._layout: Any = None
        self._rows: Any = None
        self._in_state: weakref.ref[Tensor] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        # A module's own way looks for parameters in the value, several times in every forward.
        if name in _OF_ONE_PASS:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def place_(self, index: Tensor | None, random_index: Tensor | None) -> None:
        """Say which entries exist and which of those are random; None stands for every one."""
        self.register_buffer(
            "index", None if index is None else as_stored(index, self.shape.numel())
        )
        kept = None if random_index is None else packed(random_index, self.shape.numel())
        self._num_random = None if random_index is None else random_index.numel()
        self._in_state = None
        self._gap_bits = kept and kept.bits
        self.register_buffer("_random_places", kept and kept.places, persistent=False)
        self.register_buffer("_random_jumps", kept and kept.jumps, persistent=False)

    @property
    def random_index(self) -> Tensor | None:
        """Positions, among the existing entries, of those that are random; None for every one."""
        places, count = self._random_places, self._num_random
        if places is None or count is None:
            return None
        return unpacked(Packed(places, self._random_jumps, self._gap_bits), count)

    @property
    def num_live(self) -> int:
        """How many entries exist."""
        return self._location.numel()

    @property
    def num_random(self) -> int:
        """How many of the existing entries are random."""
        return self.num_live if self._num_random is None else self._num_random

    def scale_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that shape the spread, not the location."""
        for name in self.family.parameter_names[1:]:
            yield getattr(self, name)

    def random_parameters(self) -> dict[str, Tensor]:
        """Return the family's parameters at the random entries."""
        return self._parameters_at(self.random_index)

    def _parameters_at(self, random_index: Tensor | None) -> dict[str, Tensor]:
        names = self.family.parameter_names
        values: dict[str, Tensor] = {name: getattr(self, name) for name in names}
        if random_index is not None:
            values[names[0]] = values[names[0]].flatten()[random_index]
        return values

    def kl(self) -> Tensor:
        """Return KL(posterior ‖ prior) over the random entries, in nats."""
        estimate = estimators[self.estimator]
        return estimate(self.family, self.random_parameters(), self.prior, self.num_samples)

    def dense_mean(self) -> Tensor:
        """Return the mean of the whole tensor."""
        random_index = self.random_index
        mean = self._live_mean(self._parameters_at(random_index), random_index)
        return self._seen(self._dense(mean))

    def dense_variance(self) -> Tensor:
        """Return the variance of the whole tensor, in float32 or better; 0 where not random."""
        random_index = self.random_index
        return self._dense(self._live_variance(self._parameters_at(random_index), random_index))

    def stored_variance(self) -> Tensor:
        """Return the variance of each entry of the family's first parameter, as it is stored."""
        random_index = self.random_index
        variance = self._live_variance(self._parameters_at(random_index), random_index)
        return variance.view(self._location.shape)

    def dense_moments(self) -> tuple[Tensor, Tensor]:
        """Return the mean and the variance of the whole tensor."""
        random_index = self.random_index
        parameters = self._parameters_at(random_index)
        mean = self._live_mean(parameters, random_index)
        variance = self._live_variance(parameters, random_index)
        return self._seen(self._dense(mean)), self._dense(variance)

    def sample(self) -> Tensor:
        """Draw the whole tensor afresh, in float32 or better, then cast to the stored type."""
        random_index = self.random_index
        parameters = self._parameters_at(random_index)
        deviation = self.family.deviation(parameters)
        mean = self._live_mean(parameters, random_index)
        if random_index is None:
            return self._seen(self._dense((mean + deviation).to(mean.dtype)))
        # One pass over the random entries only: the others are read as they are.
        drawn = mean.to(deviation.dtype).index_add(0, random_index, deviation)
        return self._seen(self._dense(drawn.to(mean.dtype)))

    def value(self) -> Tensor:
        """Return what a layer reads now: the mean, this forward's draw, a fresh draw, or moments.

        Moments stand where a tensor would (`bayesify.moments`).
        """
        if torch.compiler.is_compiling() and self._is_repeated():
            refuse_compiled_code()
        drawn = self._to_repeat()
        way = (drawn or self).how
        if way == "mean" or self.num_random == 0:
            return self.dense_mean()
        if way == "moments":
            return cast(Tensor, self._moments())
        if drawn is not None:
            return self._draw_again(drawn)
        if not self._held:
            return self._lone_draw()
        if self._draw is None:
            self._draw = self._first_draw()
        return self._draw

    def way(self) -> str:
        """Return how randomness travels now, or did in the forward a checkpoint repeats."""
        return self.how if torch.compiler.is_compiling() else (self._to_repeat() or self).how

    def remember(self) -> None:
        """Note how this forward read the tensor, for a checkpoint that has to repeat it."""
        if self._pass is not None:
            drawn = Drawn(weakref.ref(self._pass), self.how, self._state)
            self._records = [*(record for record in self._records if record.is_alive), drawn]
            self._was_read_alone = False

    def _is_repeated(self) -> bool:
        return not self._held and len(self._records) > 0 and is_recomputing()

    def _to_repeat(self) -> Drawn | None:
        if not self._is_repeated():
            return None
        return draw_to_repeat(self._records, was_read_alone=self._was_read_alone)

    def _first_draw(self) -> Tensor:
        if self._pass is None:
            return self.sample()
        self._state = generator_state(self._location.device)
        # A reentrant checkpoint calls its layers without gradients: later reads need them.
        with torch.enable_grad():
            return self.sample()

    def _lone_draw(self) -> Tensor:
        if torch.is_grad_enabled() and self._records and not is_recomputing():
            self._was_read_alone = True
        return self.sample()

    def _draw_again(self, drawn: Drawn) -> Tensor:
        if drawn.state is None:
            raise RuntimeError(
                "a gradient checkpoint calls a layer again, but the state of the random generator "
                "at its draw is unknown: do not use a checkpoint while a CUDA graph is captured"
            )
        return repeat(self.sample, drawn.state, self._location.device)

    @property
    def _location(self) -> Tensor:
        return getattr(self, self.family.parameter_names[0])

    def _live_mean(self, parameters: Parameters, random_index: Tensor | None) -> Tensor:
        mean = self.family.mean(parameters)
        if random_index is None:
            return mean
        location = self._location.flatten()
        if mean is parameters[self.family.parameter_names[0]]:
            return location  # the location is the mean, random or not
        return location.index_copy(0, random_index.long(), mean.to(location.dtype))

    def _moments(self) -> Moments:
        if self.is_tied_scale and self.index is None and self.random_index is None:
            # One variance per unit as it is stored: layers make use of it.
            variance = self.family.variance(self._parameters_at(None))
            return Moments(self.dense_mean(), written_down(variance))
        mean, variance = self.dense_moments()
        # Those of a bias are few, and every output reads one.
        return Moments(mean, written_down(variance) if mean.ndim == 1 else variance)

    def _live_variance(self, parameters: Parameters, random_index: Tensor | None) -> Tensor:
        variance = self.family.variance(parameters)
        if random_index is not None:
            zeros = variance.new_zeros(self.num_live)
            return zeros.index_copy(0, random_index.long(), variance)
        return variance.expand(self._location.shape) if self.is_tied_scale else variance

    def _seen(self, dense: Tensor) -> Tensor:
        if self.keeps_gradient and dense.requires_grad:
            dense.register_hook(self._add_gradient)
        return dense

    def _add_gradient(self, gradient: Tensor) -> None:
        self.gradient = gradient.detach() if self.gradient is None else self.gradient + gradient

    def _dense(self, values: Tensor) -> Tensor:
        index, shape = self.index, self.shape
        if index is None:
            return values if values.shape == shape else values.view(shape)
        return values.new_zeros(shape.numel()).index_copy(0, index.long(), values).view(shape)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # A tied tensor is asked twice, and gives one tensor under both names, as for its mean.
        known = None if self._in_state is None else self._in_state()
        random_index = self.random_index if known is None else known
        if random_index is not None:
            self._in_state = weakref.ref(random_index)
            destination[f"{prefix}random_index"] = random_index

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        key, count = f"{prefix}random_index", self._num_random
        # Taken out of a copy: what is no parameter and no buffer would not be expected there.
        rest = dict(state_dict)
        random_index = None if count is None else rest.pop(key, None)
        reports = (missing_keys, unexpected_keys, error_msgs)
        super()._load_from_state_dict(rest, prefix, local_metadata, strict, *reports)
        if random_index is None:
            if count is not None and strict:
                missing_keys.append(key)
        elif random_index.shape != (count,):
            found = tuple(random_index.shape)
            error_msgs.append(f"{key} must hold {count} positions, got a tensor of shape {found}")
        else:
            self.place_(self.index, random_index.to(self._location.device))

    def __getstate__(self) -> dict[str, Any]:
        # A copy or a file never carries a draw: it belongs to one forward of one model.
        forgotten = {"_held": False, "_draw": None, "_pass": None, "_state": None, "_records": []}
        forgotten |= {"keeps_gradient": False, "gradient": None}
        forgotten |= {"_layout": None, "_rows": None, "_in_state": None}
        return {**self.__dict__, **forgotten}

    def extra_repr(self) -> str:
        """Return what `print(model)` shows of this posterior."""
        shape = "x".join(map(str, self.shape))
        return f"{shape}, {self.family.name}, {self.num_random} of {self.shape.numel()} random"


def _broadcasts(shape: torch.Size, onto: torch.Size) -> bool:
    sizes = zip(reversed(shape), reversed(onto), strict=False)
    return len(shape) <= len(onto) and all(size in (1, target) for size, target in sizes)


def posteriors(model: nn.Module) -> list[Posterior]:
    """Return every posterior of a model once, in the order of its modules."""
    return [module for module in model.modules() if isinstance(module, Posterior)]
