"""Deep ensembles: the same network several times, each from a start of its own.

Reference: Lakshminarayanan, Pritzel, Blundell (2017).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from bayesify.conversion.method import Method, methods
from bayesify.conversion.plan import Plan
from bayesify.types import ConversionError


@methods.register("deep_ensemble")
@dataclass(frozen=True)
class DeepEnsemble(Method):
    """Several independently started copies of the network, trained side by side.

    Args:
        num_members: How many copies.
        start: "fresh" draws every member's weights anew with its layers' own initialisation;
            "copy" starts every member at the model's present weights; in a recipe with a warm
            start, each at the plain network of a seed of its own, trained apart.
        seed: Member i starts from seed + i.
    """

    name: ClassVar[str] = "deep_ensemble"
    ways: ClassVar[Mapping[str, str]] = {"sample": "members"}
    can_be_vectorised: ClassVar[bool] = False

    num_members: int = 5
    start: Literal["fresh", "copy"] = "fresh"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_members < 1:
            raise ValueError(f"num_members must be at least 1, got {self.num_members}")
        if self.start not in ("fresh", "copy"):
            raise ValueError(f"start must be 'fresh' or 'copy', got {self.start!r}")

    def plan(self, model: nn.Module) -> Plan:
        """Check that every parameter can be drawn anew."""
        if self.start == "fresh":
            failures = [
                (path or "model", "it has parameters but no reset_parameters: use start='copy'")
                for path, module in model.named_modules()
                if any(True for _ in module.parameters(recurse=False)) and _reset_of(module) is None
            ]
            if failures:
                raise ConversionError(failures)
        return Plan()

    def prepare_(self, model: nn.Module, plan: Plan) -> nn.Module:
        """Return the ensemble of the model's copies."""
        del plan
        members = []
        for index in range(self.num_members):
            member = copy.deepcopy(model)
            if self.start == "fresh":
                with _seeded(self.seed + index, member):
                    for module in member.modules():
                        if (reset := _reset_of(module)) is not None:
                            reset()
            members.append(member)
        return Ensemble(members)

    def nll(
        self, model: nn.Module, forward: Callable[[], Any], nll: Callable[..., Tensor]
    ) -> Tensor:
        """Return the sum of the members' own losses: no member's gradient sees another's."""
        del model
        return torch.stack([nll(output) for output in forward()]).sum()

    def num_draws(self, model: nn.Module, requested: int) -> int:
        """Return one draw per member."""
        del requested
        assert isinstance(model, Ensemble)
        return len(model.members)

    @contextmanager
    def sampling(self, model: nn.Module, by: str) -> Iterator[None]:
        """Let each call be answered by the next member in turn."""
        del by
        assert isinstance(model, Ensemble)
        model.turn = 0
        try:
            yield
        finally:
            model.turn = None


class Ensemble(nn.Module):
    """The members of a deep ensemble; called, it returns the list of all their outputs."""

    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.turn: int | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return every member's output, or in a sampling context the next member's."""
        if self.turn is None:
            return [member(*args, **kwargs) for member in self.members]
        member = self.members[self.turn % len(self.members)]
        self.turn += 1
        return member(*args, **kwargs)


@contextmanager
def _seeded(seed: int, model: nn.Module) -> Iterator[None]:
    """Seed the generators a model's weights are drawn from, and put them back."""
    devices = {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)):
        # Only the generators that are put back: torch.manual_seed would seed every device's.
        torch.default_generator.manual_seed(seed)
        for index in devices:
            torch.cuda.default_generators[index].manual_seed(seed)
        yield


def _reset_of(module: nn.Module) -> Callable[[], object] | None:
    for name in ("reset_parameters", "_reset_parameters"):
        reset = getattr(module, name, None)
        if callable(reset):
            return reset
    return None
