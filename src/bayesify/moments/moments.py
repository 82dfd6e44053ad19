"""A mean and a variance that flow together through an unmodified torch forward.

`Moments` stands where a tensor would. Torch offers every function that meets one to its
`__torch_function__`, which looks the function up in a table of rules; the rules fill the table
with `@rule(torch.relu, torch.Tensor.relu, ...)`. A function without a rule raises
`MissingRuleError`, which names the function and the module that called it.

`Moments` is a plain class and not a subclass of `torch.Tensor`: a subclass would have a storage
of its own, pass silently through any C++ code that does not dispatch (as the fused attention
layers do), and be traced by `torch.compile` as one tensor where there are two. The compiler
reads the plain class as its two tensors, as long as it has no `__slots__`.

Forwards call `x.mean(dim)`, people read `x.mean`. `Moments.mean` is therefore the tensor, of a
class that can also be called. The compiler cannot call a tensor: inside a compiled function
`mean` is the method alone, and `expected` or `pair()` give the tensor, as they do anywhere.
Nor does the compiler (torch 2.13) trace `@` between two moments: `torch.matmul` it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node
from torch.utils.data._utils.collate import default_collate_fn_map

from bayesify.moments.missing_rule import missing_rule
from bayesify.moments.rule_table import TABLES, TENSOR_METHODS, Rule, Rules, dispatch, table_key
from bayesify.moments.rule_table import current_rules as current_rules

Registered = TypeVar("Registered", bound=Rule)


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
    makes needless; `variance` is a tensor in every case, of zeros then. The variance of a float16
    mean is kept in float32, whose range it needs; that of a bfloat16 mean in bfloat16, which has
    that range. Rules compute in float32 at least (`precise`), but for products.

    Args:
        mean: The mean, of a floating-point type.
        variance: The variance of each entry, at least 0: a tensor that broadcasts to the mean's
            shape, a number for all of them, or None for a certain value.
    """

    shared_variance: Tensor | None = None
    """The variance as it was given, where it has fewer entries than the mean."""

    common: Tensor | None = None
    """The part of the variance that all positions of a channel share (`shared_rules`)."""

    def __init__(self, mean: Tensor, variance: Tensor | float | None = None) -> None:
        if not isinstance(mean, Tensor) or not mean.is_floating_point():
            got = mean.dtype if isinstance(mean, Tensor) else type(mean).__name__
            raise TypeError(f"mean must be a floating-point tensor, got {got}")
        if isinstance(variance, (int, float)):
            variance = torch.full_like(mean, variance, dtype=variance_dtype(mean.dtype))
        if variance is not None:
            if not isinstance(variance, Tensor):
                got = type(variance).__name__
                raise TypeError(f"variance must be a tensor, a number or None, got {got}")
            variance = variance.to(variance_dtype(mean.dtype))
            if variance.shape != mean.shape:
                self.shared_variance = variance
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
        """The type of the mean; that of the variance is wider for float16 alone."""
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

    def check_variance(self) -> None:
        """Raise a ValueError where an input has a variance that is none."""
        variance = self.variance_or_none
        if variance is not None and not bool((variance >= 0).all()):
            least = float(variance.min())
            raise ValueError(f"the variance of the input must be at least 0, got {least:g}")

    def with_each(self, change: Callable[[Tensor], Tensor]) -> Moments:
        """Return moments of both tensors changed alike, as what moves, casts or cuts them does."""
        variance = self.variance_or_none
        return Moments(change(self.expected), None if variance is None else change(variance))

    def draw(self) -> Tensor:
        """Return one draw of a normal value of this mean and variance."""
        if self.variance_or_none is None:
            return self.expected
        mean, variance = precise(self)
        return (mean + variance.sqrt() * torch.randn_like(mean)).to(self.dtype)

    def pin_memory(self) -> Moments:
        """Return the same moments where a GPU can fetch them without waiting; loaders call it."""
        return self.with_each(Tensor.pin_memory)

    def assign(self, other: Moments) -> Moments:
        """Take over what an in-place operation gave, and return this object."""
        self.expected, self.variance_or_none = other.expected, other.variance_or_none
        self.shared_variance, self.common = other.shared_variance, other.common
        return self

    def __len__(self) -> int:
        return len(self.expected)

    def __iter__(self) -> Iterator[Moments]:
        if not self.ndim:
            raise TypeError("iteration over moments of no dimension: there are no rows")
        return self._rows()

    def _rows(self) -> Iterator[Moments]:
        # One at a time: a program that is traced while a library looks at the first row alone, as
        # transformers does, must not fix how many there are.
        index = 0
        while index < self.shape[0]:
            yield dispatch("Tensor.select", (self, 0, index), {})
            index += 1

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


def _flatten(moments: Moments) -> tuple[list[Any], None]:
    return [moments.expected, moments.variance_or_none], None


def _unflatten(children: Iterable[Any], context: None) -> Moments:
    del context
    # Not by the constructor: tree functions put other things than tensors in their places.
    moments = object.__new__(Moments)
    moments.expected, moments.variance_or_none = children
    return moments


def _collated(batch: Sequence[Moments], *, collate_fn_map: Any = None) -> Moments:
    del collate_fn_map
    means = torch.stack([each.expected for each in batch])
    if all(each.is_certain for each in batch):
        return Moments(means)
    return Moments(means, torch.stack([each.variance for each in batch]))


# So that a `DataLoader` stacks examples that are uncertain.
default_collate_fn_map[Moments] = _collated

# So that what walks over inputs and outputs finds the tensors: sharding, vmap, export.
register_pytree_node(Moments, _flatten, _unflatten, serialized_type_name="bayesify.moments.Moments")


def variance_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type that the variance of a mean of this type has."""
    return torch.float32 if dtype == torch.float16 else dtype


def precise_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type that rules compute in: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def precise(x: Moments) -> tuple[Tensor, Tensor]:
    """Return the mean and the variance in a type to compute with."""
    dtype = precise_dtype(x.dtype)
    return x.expected.to(dtype), x.variance.to(dtype)


def rule(*functions: Any, form: Rules = "exact") -> Callable[[Registered], Registered]:
    """Return a decorator that files a rule under the torch functions it answers.

    The rule is called with the function's own arguments, at least one of them a `Moments`. The
    "exact" form serves every choice that has no form of its own. Functions that are methods
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


def _file(function: Any, implementation: Rule, form: Rules) -> None:
    TABLES[form][table_key(function)] = implementation
    for name in TENSOR_METHODS.get(function, ()):
        key = f"Tensor.{name}"
        TABLES[form][key] = implementation
        if name not in Moments.__dict__:
            setattr(Moments, name, _method(key))


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
