"""How units flow: which layers read the units that a layer makes.

The plain network is traced in training and in evaluation mode. A layer's units can be told apart
as long as they pass through operations that treat each by itself (activations, dropout, pooling,
batch normalisation, flattening). Anything else that touches them, such as an addition, blocks the
layer: it keeps its units.

The first axis of every input is taken to be the batch.
"""

from __future__ import annotations

import inspect
import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import is_parametrized

from bayesify.compression.unit_wise import (
    NORMS,
    Layout,
    Step,
    flattening_size,
    may_overwrite,
    operation,
    pass_through,
    unknown,
)
from bayesify.conversion.convert import revert
from bayesify.conversion.layer_class import plain_class
from bayesify.conversion.local import functional_form
from bayesify.conversion.resize import sizes_of

IS_OUTPUT = "its output is an output of the network"
"""Why a layer must keep its units whatever they do."""


@dataclass(frozen=True)
class Reader:
    """A layer that reads units, each as `block` adjacent inputs of its own."""

    path: str
    block: int = 1


@dataclass(frozen=True)
class Link:
    """Whose units are read by whom.

    Attributes:
        producer: The layer that makes the units.
        readers: The layers that weigh them.
        norms: The normalisations between, which have entries for each unit.
        chains: For every way to a reader what it makes of constant units, step by step.
    """

    producer: str
    readers: frozenset[Reader]
    norms: frozenset[Reader] = frozenset()
    chains: tuple[tuple[Step, ...], ...] = field(default=(), compare=False)

    def vanish(self, constants: Tensor) -> Tensor:
        """Return which units, constant at these values, every reader sees as exactly 0."""
        vanishing = torch.ones_like(constants, dtype=torch.bool)
        for chain in self.chains:
            values = constants
            for step in chain:
                values = step(values)
            vanishing &= values == 0
        return vanishing


@dataclass(frozen=True)
class Structure:
    """The links of a network.

    Attributes:
        links: One for each layer whose units can be told apart.
        blocked: Every other layer that makes units, and why it keeps them.
        problem: Why nothing is known of the network, if so.
    """

    links: tuple[Link, ...] = ()
    blocked: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None


def find_structure(model: nn.Module) -> Structure:
    """Trace a model, plain or converted, and return how units flow through it.

    It never raises: a model that cannot be traced has no links and a `problem`.
    """
    if optional := _optional_inputs(model):
        return Structure(problem=f"its forward takes {optional}, which a trace cannot leave out")
    try:
        twin = revert(model)
        traces = [_Trace(twin.train(mode)) for mode in (True, False)]
    except Exception as error:  # the user's own forward: whatever it raises is the reason
        reason = str(error).strip().partition("\n")[0]
        return Structure(problem=f"its forward cannot be traced: {type(error).__name__}: {reason}")
    found = {
        path: _agreed([trace.link(path) for trace in traces])
        for path in dict.fromkeys(path for trace in traces for path in trace.producers())
    }
    return Structure(
        tuple(entry for entry in found.values() if isinstance(entry, Link)),
        {path: entry for path, entry in found.items() if isinstance(entry, str)},
    )


def _optional_inputs(model: nn.Module) -> str | None:
    # Traced, an argument is always there: a branch for its absence would stay unseen.
    forward = inspect.signature(plain_class(type(model)).forward)
    for parameter in forward.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return f"any number of arguments ({parameter})"
        if parameter.default is not parameter.empty:
            return f"an optional argument ({parameter.name})"
    return None


def _agreed(found: list[Link | str]) -> Link | str:
    links: list[Link] = []
    for entry in found:
        if isinstance(entry, str):
            return entry
        links.append(entry)
    if any(link != links[0] for link in links):
        return "its output is used differently in training and in evaluation"
    return replace(links[0], chains=tuple(chain for link in links for chain in link.chains))


class _Blocked(Exception):  # noqa: N818 - no error, only the way out of a walk
    """Units cannot be told apart."""


class _Tracer(fx.Tracer):
    """Trace down to the standard layers, and note every tensor that is read outside one."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[int] = set()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        # Hooks are the user's own code: a trace neither runs them nor knows what they do.
        is_closed = _has_hooks(m) or is_parametrized(m) or functional_form(type(m)) is not None
        return is_closed or super().is_leaf_module(m, module_qualified_name)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if isinstance(attr_val, Tensor):
            self.read.add(id(attr_val))
        return super().getattr(attr, attr_val, parameter_proxy_cache)


class _Trace:
    """One trace of a network, and what stands in the way of changing its layers."""

    def __init__(self, net: nn.Module) -> None:
        tracer = _Tracer()
        nodes = list(tracer.trace(net).nodes)
        self.modules = dict(net.named_modules())
        self.calls = {str(node.target): node for node in nodes if node.op == "call_module"}
        self.num_calls = Counter(str(node.target) for node in nodes if node.op == "call_module")
        names = Counter(
            id(tensor)
            for tensors in (net.named_parameters, net.named_buffers)
            for _, tensor in tensors(remove_duplicate=False)
        )
        self.used_elsewhere = tracer.read | {key for key, count in names.items() if count > 1}

    def producers(self) -> list[str]:
        """Return the layers that make units."""
        return [path for path in self.calls if _is_weighing(self.modules[path])]

    def link(self, path: str) -> Link | str:
        """Return who reads a layer's units, or why that is not known."""
        if path not in self.calls:
            return "its output is used differently in training and in evaluation"
        try:
            self.check(path)
            flow = _Flow(self, path)
            flow.follow(self.calls[path], Layout(_num_dims(self.modules[path])), ())
            return flow.link()
        except _Blocked as blocked:
            return str(blocked)

    def check(self, path: str) -> None:
        """Stop where the tensors of a layer must keep their shape."""
        module = self.modules[path]
        sizes = sizes_of(module)
        if sizes is None:
            raise _Blocked(f"{path} has its channels in groups")
        tensors = {**module._parameters, **module._buffers}
        known = {"num_batches_tracked"}.union(*sizes.axes.values())
        if module._modules or not set(tensors) <= known:
            raise _Blocked(f"{path} holds more than the tensors of a {type(module).__name__}")
        if self.num_calls[path] > 1:
            raise _Blocked(f"{path} is called more than once")
        if _has_hooks(module):
            raise _Blocked(f"{path} has hooks")
        if any(id(tensor) in self.used_elsewhere for tensor in tensors.values()):
            raise _Blocked(f"a tensor of {path} is used elsewhere too")
        if getattr(module, "max_norm", None) is not None:
            raise _Blocked(f"{path} has a max_norm, which looks at all units together")


class _Flow:
    """A walk from one layer to everyone who reads its units."""

    def __init__(self, trace: _Trace, producer: str) -> None:
        module = trace.modules[producer]
        sizes = sizes_of(module)
        assert sizes is not None
        self.trace = trace
        self.producer = producer
        self.num_units: int = getattr(module, sizes.outputs)
        self.readers: set[Reader] = set()
        self.norms: set[Reader] = set()
        self.chains: list[tuple[Step, ...]] = []
        self.batch_sizes: set[fx.Node] = set()
        self.views: dict[fx.Node, fx.Node] = {}
        self.has_fork = False
        self.may_overwrite = False

    def link(self) -> Link:
        """Return what the walk has found."""
        askers = {user for size in self.batch_sizes for user in size.users}
        if not (askers <= self.views.keys() and set(self.views.values()) <= self.batch_sizes):
            raise _Blocked("the shape of its output is used")
        if self.has_fork and self.may_overwrite:
            raise _Blocked("its output may be overwritten in place, and is used twice")
        if not self.readers:
            raise _Blocked("no layer reads its output")
        chains = tuple(self.chains)
        return Link(self.producer, frozenset(self.readers), frozenset(self.norms), chains)

    def follow(self, node: fx.Node, layout: Layout, chain: tuple[Step, ...]) -> None:
        """Walk on to everything that uses a node."""
        users = [user for user in node.users if not self._is_batch_size(user)]
        self.has_fork |= len(users) > 1
        for user in users:
            self._visit(node, user, layout, chain)

    def _is_batch_size(self, user: fx.Node) -> bool:
        arguments = user.args[1:]
        if user.op == "call_method" and user.target == "size" and arguments == (0,):
            self.batch_sizes.add(user)
            return True
        is_shape = user.op == "call_method" and user.target == "size" and not arguments
        if (is_shape and not user.kwargs) or (user.target is getattr and arguments == ("shape",)):
            first = {n for n in user.users if n.target is operator.getitem and n.args[1] == 0}
            self.batch_sizes |= first
            return set(user.users) == first
        return False

    def _visit(self, node: fx.Node, user: fx.Node, layout: Layout, chain: tuple[Step, ...]) -> None:
        if user.op == "output":
            raise _Blocked(IS_OUTPUT)
        module = self.trace.modules[str(user.target)] if user.op == "call_module" else None
        what = operation(user, module)
        name = getattr(what, "__name__", str(what))
        if not user.args or user.args[0] is not node:
            raise _Blocked(f"its units do not stay apart in {name}")
        if (size := flattening_size(user)) is not None:
            self.views[user] = size
            self.follow(user, layout.flattened(), chain)
            return
        if len(user.all_input_nodes) > 1:
            raise _Blocked(f"its units meet others in {name}")
        if module is not None and _has_hooks(module):
            raise _Blocked(f"its output is read by {user.target}, which has hooks")
        if module is not None and _is_weighing(module):
            self.readers.add(self._reader(str(user.target), module, layout))
            self.chains.append(chain)
        elif module is not None and (layout.num_dims or 1) == NORMS.get(what):
            self.norms.add(self._reader(str(user.target), module, layout))
            self.follow(user, layout, (*chain, unknown))
        elif passed := pass_through(user, module, layout):
            self.may_overwrite |= may_overwrite(user, module)
            after, step = passed
            self.follow(user, after, (*chain, step))
        else:
            raise _Blocked(f"its units do not stay apart in {name}")

    def _reader(self, path: str, module: nn.Module, layout: Layout) -> Reader:
        self.trace.check(path)
        sizes = sizes_of(module)
        is_norm = type(module) in NORMS
        if sizes is None or (not is_norm and _num_dims(module) != layout.num_dims):
            raise _Blocked(f"its units are not the inputs of {path}")
        num_inputs = getattr(module, sizes.outputs if is_norm else sizes.inputs or "", 0)
        block, rest = divmod(num_inputs, max(self.num_units, 1))
        if rest or block < 1 or (block > 1 and not layout.is_flat):
            raise _Blocked(f"its units are not the inputs of {path}")
        return Reader(path, block)


def _is_weighing(module: nn.Module) -> bool:
    return functional_form(type(module)) is not None


def _num_dims(module: nn.Module) -> int:
    """Return the number of spatial axes of a layer with a weight."""
    return len(getattr(module, "kernel_size", ()))


def _has_hooks(module: nn.Module) -> bool:
    return any(
        (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._backward_hooks,
            module._backward_pre_hooks,
        )
    )
