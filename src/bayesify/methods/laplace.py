"""Laplace: a Gaussian around some weights of a trained network, as wide as its loss is flat there.

Their precision is the loss's curvature (Gauss-Newton, summed over the training data) plus the
prior's; laplace-torch finds both. Predictions are made by the network linearised at its weights,
f(x; mean) + J(x) (w − mean), the model that has this curvature. Nothing is trained.

Reference: Daxberger et al. (2021), "Laplace redux" and "Bayesian deep learning via subnetwork
inference"; Immer, Korzepa, Bauer (2021) for the linearised prediction.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bayesify.batches import drawn, output_tensor, split_batch, to_device
from bayesify.conversion.method import Method, methods
from bayesify.conversion.plan import Plan, Skip
from bayesify.conversion.select import candidates, select
from bayesify.methods.checks import check_choice, check_share
from bayesify.methods.linearised import Linearised
from bayesify.methods.partial_bayes import best
from bayesify.methods.sensitivity import score_tensors, scores
from bayesify.registry import unknown
from bayesify.training.likelihood import match_shape
from bayesify.types import ConversionError, device_of

# Its requirements name torchvision, which it does not import and whose build must match torch's.
_INSTALL = (
    "pip install --no-deps laplace-torch==0.3 asdfghjkl==0.1a4 backpack-for-pytorch einconv einops "
    "curvlinops-for-pytorch linear-operator opt-einsum unfoldNd, and pip install tqdm scipy"
)
_IN = "network."
_TAKES_PART = "all or some of its weights are Gaussian together (Laplace)"
# A full covariance of so many weights takes 3.2 GB while it is found.
_MOST_WEIGHTS = 20_000
# Derivatives by random weights held at once, and outputs whose derivatives by all are.
_MOST_DERIVATIVES = 2**26
_MOST_OUTPUTS = 100


@methods.register("laplace")
@dataclass(frozen=True)
class Laplace(Method):
    """A Gaussian over the last layer, or over the most sensitive weights, of a trained network.

    The model is a `Linearised`, whose `network` is the plain one. It is not trained: `fit` takes
    `epochs=0` only. For a regression say how large the noise is:
    `predict(model, x, likelihood=GaussianRegression(float(model.noise_std)))`.

    Args:
        subset: "last_layer" for its weights and biases, "subnetwork" for the most sensitive share
            of all weights, chosen as `PartialBayes` does.
        fraction: Share of the weights in the subnetwork.
        hessian: "full" for all covariances between the weights, "diag" for none.
        prior_precision: Precision of the weights' Normal prior around 0, or "marglik" for the one
            of the largest marginal likelihood.
        noise_std: Standard deviation of a regression's noise; None takes the root mean square of
            the residuals.
        score: What is taken for sensitive (see `sensitivity`).
        data: A loader of the training data, (inputs, targets); integer targets are classes, others
            a regression's. `fit` from a recipe takes the training data.
        seed: Seed of the scores and of the order of batches.
    """

    name: ClassVar[str] = "laplace"
    ways: ClassVar[Mapping[str, str]] = {
        "sample": "draws of the linearised network",
        "mean": "the plain network",
    }
    can_be_trained: ClassVar[bool] = False
    can_be_sharded: ClassVar[bool] = False

    subset: Literal["last_layer", "subnetwork"] = "last_layer"
    fraction: float = 0.01
    hessian: Literal["full", "diag"] = "full"
    prior_precision: Literal["marglik"] | float = "marglik"
    noise_std: float | None = None
    score: str = "jacobian"
    data: Iterable[Any] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("subset", self.subset, ("last_layer", "subnetwork"))
        check_share("fraction", self.fraction)
        check_choice("hessian", self.hessian, ("full", "diag"))
        for name, default in (("prior_precision", "marglik"), ("noise_std", None)):
            value = getattr(self, name)
            is_positive = isinstance(value, (int, float)) and 0 < value < math.inf
            if value != default and not is_positive:
                raise ValueError(f"{name} must be {default!r} or above 0, got {value!r}")
        if self.score not in scores:
            raise ValueError(unknown("score", self.score, scores))

    def for_data(self, data: Iterable[Any] | None) -> Method:
        """Return the method with data to find the curvature of, where it has none of its own."""
        if self.data is not None:
            return self
        return dataclasses.replace(self, data=() if data is None else data)

    def plan(self, model: nn.Module) -> Plan:
        """Select the tensors, and check that the covariance can be found and held."""
        if self.data is None:
            raise ValueError("data must be given, a training loader: Laplace(data=train_loader)")
        if self.data != ():
            _import_laplace()
        is_last = self.subset == "last_layer"
        selection = select(model, "last_layer" if is_last else "everything", biases=is_last)
        if any(is_lazy(each.tensor) for each in selection.chosen):
            reason = "its shapes are not known yet: run it once on an example first"
            raise ConversionError([("model", reason)])
        count = self._num_random(each.tensor for each in selection.chosen)
        if count == 0 or (self.hessian == "full" and count > _MOST_WEIGHTS):
            most = f" to {_MOST_WEIGHTS:,}: take a smaller fraction, or hessian='diag'"
            reason = f"{count:,} weights were selected, expected 1{most if count else ' or more'}"
            raise ConversionError([("model", reason)])
        found = [*((each, _TAKES_PART) for each in selection.chosen), *selection.skipped]
        return Plan(skipped=tuple(Skip(_IN + each.path, each.shape, why) for each, why in found))

    def prepare_(self, model: nn.Module, plan: Plan) -> nn.Module:
        """Return the network with its posterior, found where there are data."""
        chosen = {skip.path for skip in plan.skipped if skip.reason == _TAKES_PART}
        tensors = {c.path: c.tensor for c in candidates(model) if _IN + c.path in chosen}
        count = self._num_random(tensors.values())
        shape = (count, count) if self.hessian == "full" else (count,)
        linearised = Linearised(model, list(tensors), shape)
        if self.data is not None and self.data != ():
            if self.subset == "subnetwork":
                found = score_tensors(model, tensors, self.data, self.score, seed=self.seed)
                together = torch.cat([score.double().flatten() for score in found.values()])
                linearised.index.copy_(best(together, self.fraction).nonzero().flatten())
            with _evaluating(model, self.seed):
                _find_posterior_(linearised, self, self.data)
        return linearised

    def _num_random(self, tensors: Iterable[Tensor]) -> int:
        total = sum(tensor.numel() for tensor in tensors)
        return total if self.subset == "last_layer" else round(self.fraction * total)

    @contextmanager
    def sampling(self, model: nn.Module, by: str) -> Iterator[None]:
        """Let each call be one draw of the linearised network."""
        assert isinstance(model, Linearised)
        if by == "sample" and bool(model.scale.isnan().any()):
            raise ValueError("model has no posterior: convert it with Laplace(data=train_loader)")
        model.is_sampling = by == "sample"
        try:
            yield
        finally:
            model.is_sampling = False


def _find_posterior_(model: Linearised, method: Laplace, data: Iterable[Any]) -> None:
    """Fill a model's buffers by laplace-torch."""
    laplace = _import_laplace()
    pairs = _Pairs(data, model)
    kind = laplace.FullLaplace if method.hessian == "full" else laplace.DiagLaplace
    found = kind(_Subnetwork(model), pairs.task, backend=_backend(laplace, pairs.num_outputs))
    with torch.no_grad():
        found.fit(pairs, progress_bar=sys.stderr.isatty())
    if pairs.task == "regression":
        # The loss is half the sum of squares, whatever the noise.
        variance = 2 * float(found.loss) / (pairs.num_examples * pairs.num_outputs)
        if method.noise_std is None and variance == 0:
            raise ValueError("noise_std must be given: there are no residuals to take it from")
        found.sigma_noise = method.noise_std or math.sqrt(variance)
    if method.prior_precision == "marglik":
        with warnings.catch_warnings():
            # It speaks of the link function of its own predictions, which are not used.
            warnings.filterwarnings("ignore", message="By default `link_approx`")
            found.optimize_prior_precision(method="marglik")
    else:
        found.prior_precision = float(method.prior_precision)
    model.scale.copy_(found.posterior_scale)
    model.prior_precision.fill_(float(found.prior_precision))
    model.noise_std.fill_(float(found.sigma_noise))


class _Subnetwork(nn.Module):
    """A network as a function of its random weights alone, which is all laplace-torch sees.

    In float64: a curvature in float32 can lose its smallest eigenvalues.
    """

    def __init__(self, model: Linearised) -> None:
        super().__init__()
        self.weights = nn.Parameter(model.mean().double())
        self.outputs = model.outputs  # no submodule: its parameters would take part

    def forward(self, inputs: Tensor) -> Tensor:
        return self.outputs(inputs)(self.weights).double()


class _Pairs:
    """Training data as laplace-torch reads them: on the device, in parts that fit in memory."""

    dataset = ()  # asked for its length, which nothing here depends on

    def __init__(self, data: Iterable[Any], model: Linearised) -> None:
        self.data, self.device, self.num_examples = data, device_of(model), 0
        inputs, targets = next(self._batches(), (None, None))
        if inputs is None or targets is None:
            raise ValueError("data gave no examples to find the loss's curvature of")
        self.task = "regression" if targets.is_floating_point() else "classification"
        with torch.no_grad():
            output = output_tensor(model.network(inputs))
        if output.ndim != 2 or (targets.ndim != 1 and self.task == "classification"):
            raise ValueError(
                "Laplace needs a row of outputs, and a class or a row of real targets, for each "
                f"example, got outputs of shape {tuple(output.shape)} and targets of shape "
                f"{tuple(targets.shape)}"
            )
        self.num_outputs = output.shape[1]
        self.size = max(1, _MOST_DERIVATIVES // (self.num_outputs * len(model.index)))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.num_examples = 0
        for inputs, targets in self._batches():
            self.num_examples += len(inputs)
            if self.task == "regression":
                like = targets.new_empty(len(inputs), self.num_outputs)
                targets = match_shape(targets, like).double()
            yield from zip(inputs.split(self.size), targets.split(self.size), strict=True)

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.data:
            inputs, targets = split_batch(drawn(to_device(batch, self.device)))
            if not isinstance(inputs, Tensor) or targets is None:
                raise TypeError("data must yield pairs of a tensor of inputs and their targets")
            yield inputs, targets


def _backend(laplace: Any, num_outputs: int) -> type:
    """Return laplace-torch's Gauss-Newton curvature, with derivatives example by example.

    Its own cost a pass through the batch for every output of every example; they are left to
    networks that cannot be vectorised.
    """

    class PerExample(laplace.curvature.GGNInterface):
        def jacobians(self, x: Tensor, enable_backprop: bool = False) -> tuple[Tensor, Tensor]:
            def output(weights: Tensor, example: Tensor) -> tuple[Tensor, Tensor]:
                found = self.model.outputs(example[None])(weights)[0].double()
                return found, found

            derivatives = torch.func.jacrev(output, has_aux=True)
            size = max(1, _MOST_OUTPUTS // num_outputs)
            try:
                return torch.vmap(derivatives, (None, 0), chunk_size=size)(self.model.weights, x)
            except RuntimeError:
                return super().jacobians(x, enable_backprop)

    return PerExample


def _import_laplace() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's about what its dependencies use
            import laplace
            import laplace.curvature
    except ImportError as error:
        raise ImportError(f"Laplace needs laplace-torch: {_INSTALL}") from error
    return laplace


@contextmanager
def _evaluating(model: nn.Module, seed: int) -> Iterator[None]:
    """Hold a model in evaluation mode, with random numbers of a seed; put both back."""
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            model.eval()
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
