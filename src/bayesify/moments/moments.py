"""A mean and a variance that flow together through an unmodified torch forward.

`Moments` stands where a tensor would. Torch offers every function that meets one to its
`__torch_function__`, which looks the function up in a table of rules; the rules fill the table
with `@rule(torch.relu, torch.Tensor.relu, ...)`. A function without a rule raises
`MissingRuleError`, which names the function and the module that called it.

`Moments` is a plain class and not a subclass of `torch.Tensor`: a subclass would have a storage
of its own, pass silently through any C++ code that does not dispatch (as the fused attention
layers do), and be traced by `torch.compile` as one tensor where there are two. The compiler
reads the plain class as its two tensors; it needs it without `__slots__`, and the chosen rules in
a plain attribute, since it traces no `ContextVar` and does not guard a thread's own variables.

Forwards call `x.mean(dim)`, people read `x.mean`. `Moments.mean` is therefore the tensor, of a
class that can also be called. The compiler cannot call a tensor: inside a compiled function
`mean` is the method alone, and `expected` or `pair()` give the tensor, as they do anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from bayesify.moments.missing_rule import missing_rule, name_of

Rules = Literal["exact", "taylor"]
Rule = Callable[..., Any]
Registered = TypeVar("Registered", bound=Rule)

_TABLES: dict[str, dict[Any, Rule]] = {"exact": {}, "taylor": {}}


class _Chosen:
    """Which of the tables is read; one choice for the whole process."""

    rules: Rules = "exact"


_chosen = _Chosen()


class CallableMean(Tensor):
    """The mean of moments: a tensor in every way, and torch's method `mean` when it is called."""

    # What is computed from it is an ordinary tensor.
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]
    average: Callable[..., Moments]

    def __call__(self, *args: Any, **kwargs: Any) -> Moments:
        """Return the moments of the average over dimensions, as `torch.mean` takes them."""
        return self.average(*args, **kwargs)


class Moments:
    """The mean and the variance of a tensor whose entries are taken as uncorrelated.

    A variance of None means that the value is certain. Rules skip the work that a certain operand
    makes needless; `variance` is a tensor in every case, of zeros then. The variance of a
    half-precision mean is kept in float32.

    Args:
        mean: The mean, of a floating-point type.
        variance: The variance of each entry, at least 0: a tensor that broadcasts to the mean's
            shape, a number for all of them, or None for a certain value.
    """

    def __init__(self, mean: Tensor, variance: Tensor | float | None = None) -> None:
        if not isinstance(mean, Tensor) or not mean.is_floating_point():
            got = mean.dtype if isinstance(mean, Tensor) else type(mean).__name__
            raise TypeError(f"mean must be a floating-point tensor, got {got}")
        if isinstance(variance, (int, float)):
            variance = torch.full_like(mean, variance, dtype=variance_dtype(mean.dtype))
        if variance is not None:
            variance = variance.to(variance_dtype(mean.dtype))
            if variance.shape != mean.shape:
                variance = variance.expand(mean.shape)
        self.expected = mean
        self.variance_or_none = variance

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Answer a torch function by its rule."""
        del types
        return dispatch(func, args, kwargs or {})

    @property
    def mean(self) -> CallableMean:
        """The mean of each entry; called with dimensions, the moments of the average over them."""
        if torch.compiler.is_compiling():
            return self._average  # pyright: ignore[reportReturnType]
        tensor = self.expected.as_subclass(CallableMean)
        tensor.average = self._average
        return tensor

    @property
    def variance(self) -> Tensor:
        """The variance of each entry, of the mean's shape; zeros where the value is certain."""
        if self.variance_or_none is None:
            return torch.zeros_like(self.expected, dtype=variance_dtype(self.expected.dtype))
        return self.variance_or_none

    def pair(self) -> tuple[Tensor, Tensor]:
        """Return the mean and the variance as plain tensors."""
        return self.expected, self.variance

    def _average(self, *args: Any, **kwargs: Any) -> Moments:
        return dispatch("Tensor.mean", (self, *args), kwargs)

    @property
    def is_certain(self) -> bool:
        """Whether no variance is carried at all."""
        return self.variance_or_none is None

    @property
    def shape(self) -> torch.Size:
        """The shape of the mean."""
        return self.expected.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.expected.ndim

    @property
    def dtype(self) -> torch.dtype:
        """The type of the mean; the variance has at least float32."""
        return self.expected.dtype

    @property
    def device(self) -> torch.device:
        """The device of both tensors."""
        return self.expected.device

    @property
    def layout(self) -> torch.layout:
        """The layout of the mean."""
        return self.expected.layout

    @property
    def requires_grad(self) -> bool:
        """Whether either tensor takes part in a gradient."""
        variance = self.variance_or_none
        return self.expected.requires_grad or (variance is not None and variance.requires_grad)

    @property
    def is_nested(self) -> bool:
        """False: there are no nested moments."""
        return False

    @property
    def is_sparse(self) -> bool:
        """False: there are no sparse moments."""
        return False

    @property
    def is_cuda(self) -> bool:
        """Whether the tensors lie on a CUDA device."""
        return self.expected.is_cuda

    def assign(self, other: Moments) -> Moments:
        """Take over what an in-place operation gave, and return this object."""
        self.expected, self.variance_or_none = other.expected, other.variance_or_none
        return self

    def __len__(self) -> int:
        return len(self.expected)

    def __iter__(self) -> Iterator[Moments]:
        return iter(dispatch("Tensor.unbind", (self,), {}))

    def __getattr__(self, name: str) -> Any:
        # Only names that are no attribute come here. The compiler probes for `__dict__` and its
        # like, which must look absent.
        if name.startswith("_") or not hasattr(torch.Tensor, name):
            raise AttributeError(f"'Moments' object has no attribute {name!r}")
        raise missing_rule(f"Tensor.{name}")

    def __setitem__(self, index: Any, value: Any) -> None:
        raise missing_rule("Tensor.__setitem__")

    def __bool__(self) -> bool:
        raise missing_rule("Tensor.__bool__")

    def __lt__(self, other: Any) -> Any:
        raise missing_rule("Tensor.lt")

    def __le__(self, other: Any) -> Any:
        raise missing_rule("Tensor.le")

    def __gt__(self, other: Any) -> Any:
        raise missing_rule("Tensor.gt")

    def __ge__(self, other: Any) -> Any:
        raise missing_rule("Tensor.ge")

    def __eq__(self, other: object) -> Any:
        raise missing_rule("Tensor.eq")

    def __ne__(self, other: object) -> Any:
        raise missing_rule("Tensor.ne")

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        certain = ", certain" if self.is_certain else ""
        return f"Moments(shape={tuple(self.shape)}, dtype={self.dtype}{certain})"


def variance_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type that the variance of a mean of this type has: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def rule(*functions: Any, form: Rules = "exact") -> Callable[[Registered], Registered]:
    """Return a decorator that files a rule under the torch functions it answers.

    The rule is called with the function's own arguments, at least one of them a `Moments`. The
    "exact" form serves both choices where no "taylor" form is filed. Functions that are methods
    of `torch.Tensor` become methods of `Moments`; in-place partners (`relu_` of `relu`) are filed
    with them.
    """

    def register(implementation: Registered) -> Registered:
        for function in functions:
            _file(function, implementation, form)
            for partner in _in_place_partners(function):
                _file(partner, in_place(implementation), form)
        return implementation

    return register


def find_rule(function: Any) -> Rule | None:
    """Return the rule for a torch function under the current choice of rules, or None."""
    key = _key(function)
    found = _TABLES[_chosen.rules].get(key)
    return _TABLES["exact"].get(key) if found is None else found


def dispatch(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer a torch function, or the method of a tensor named "Tensor.view", by its rule."""
    implementation = find_rule(function)
    if implementation is None:
        raise missing_rule(name_of(function))
    return implementation(*args, **kwargs)


class moment_rules:  # noqa: N801 (used as a verb: `with moment_rules("taylor"):`)
    """Choose the rules of a block: "exact" moments, or the first-order "taylor" ones.

    The choice holds for the whole process, all threads included.

    Args:
        rules: "exact" or "taylor".
    """

    def __init__(self, rules: Rules) -> None:
        if rules not in _TABLES:
            raise ValueError(f"rules must be 'exact' or 'taylor', got {rules!r}")
        self.rules: Rules = rules
        self.before: Rules = rules

    def __enter__(self) -> None:
        self.before = _chosen.rules
        _chosen.rules = self.rules

    def __exit__(self, *exception: object) -> None:
        _chosen.rules = self.before


def current_rules() -> Rules:
    """Return which rules are chosen now: "exact" or "taylor"."""
    return _chosen.rules


def as_moments(value: Any) -> Moments:
    """Return a tensor as certain moments, and moments as they are."""
    return value if isinstance(value, Moments) else Moments(value)


def mean_of(value: Any) -> Any:
    """Return the mean of moments, and anything else as it is."""
    return value.expected if isinstance(value, Moments) else value


def variance_of(value: Any) -> Tensor | None:
    """Return the variance of moments, or None for what is certain."""
    return value.variance_or_none if isinstance(value, Moments) else None


def in_place(implementation: Rule) -> Rule:
    """Return the rule that writes its result into its first argument."""

    def assign(target: Any, *args: Any, **kwargs: Any) -> Any:
        result = implementation(target, *args, **kwargs)
        # `tensor += moments` is served too: Python binds the name to what is returned.
        return target.assign(result) if isinstance(target, Moments) else result

    return assign


def registered_functions() -> list[Any]:
    """Return every torch function that has a rule."""
    return [function for function in _TABLES["exact"] if not isinstance(function, str)]


def _file(function: Any, implementation: Rule, form: Rules) -> None:
    _TABLES[form][_key(function)] = implementation
    for name in _TENSOR_METHODS.get(function, ()):
        key = f"Tensor.{name}"
        _TABLES[form][key] = implementation
        if name not in Moments.__dict__:
            setattr(Moments, name, _method(key))


def _tensor_methods() -> dict[Any, list[str]]:
    """Return the names under which torch.Tensor has each of its methods."""
    methods: dict[Any, list[str]] = {}
    for name in dir(torch.Tensor):
        function = getattr(torch.Tensor, name, None)
        if callable(function):
            methods.setdefault(function, []).append(name)
    return methods


def _key(function: Any) -> Any:
    """Return what a function is filed under: itself, or the name of a method.

    Methods that torch wrote in Python go by name, as the compiler misses them in a table.
    """
    name = getattr(function, "__name__", "")
    if name in _PYTHON_METHODS and getattr(torch.Tensor, name) is function:
        return f"Tensor.{name}"
    return function


_TENSOR_METHODS = _tensor_methods()
_PYTHON_METHODS = {
    name
    for function, names in _TENSOR_METHODS.items()
    for name in names
    if isinstance(function, FunctionType) and function.__name__ == name
}


def _method(key: str) -> Rule:
    def method(self: Moments, *args: Any, **kwargs: Any) -> Any:
        return dispatch(key, (self, *args), kwargs)

    return method


def _in_place_partners(function: Any) -> Iterator[Any]:
    name = getattr(function, "__name__", "")
    for home in (torch.Tensor, torch, torch.nn.functional):
        partner = getattr(home, f"{name}_", None)
        if getattr(home, name, None) is function and partner is not None:
            yield partner
