"""Write a model to a file that other programs run: ONNX, or a program of torch.export."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bayesify.archive import write_atomically
from bayesify.batches import output_tensor
from bayesify.conversion.convert import Record, require_record
from bayesify.conversion.posterior import posteriors
from bayesify.exporting.agreement import ExportError, batches, check_agreement, rows
from bayesify.exporting.aot_file import AotRunner, aot_content, require_compiler
from bayesify.exporting.deployed_rules import deployed_rules
from bayesify.exporting.folding import FoldedNetwork, WeightMoments, fold_draw, variance_problem
from bayesify.exporting.graphs import MeanGraph, MomentsGraph, SamplesGraph, check_classes
from bayesify.exporting.manifest import make_manifest
from bayesify.exporting.onnx_file import OnnxRunner, onnx_content, require_onnx
from bayesify.exporting.torch_file import TorchRunner, torch_content, trace
from bayesify.moments import Moments
from bayesify.moments.rule_table import Rules, current_rules, moment_rules
from bayesify.prediction.by_moments import NUM_POINTS
from bayesify.prediction.moment_correction import corrected
from bayesify.registry import unknown
from bayesify.training.likelihood import Classification, Likelihood, as_likelihood

What = Literal["moments", "mean", "samples"]

# The way of a method (`predict(by=...)`) that each kind of file takes.
_WAYS = {"mean": "mean", "moments": "moments", "samples": "sample"}
_ENDINGS = (".onnx", ".pt2")
_COMPILED = "a compiled .pt2"
_RUNNERS = {".onnx": OnnxRunner, ".pt2": TorchRunner, _COMPILED: AotRunner}


def export(  # noqa: PLR0913 - each is one choice about the file
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    example_inputs: Any = None,
    what: What = "moments",
    num_samples: int = 16,
    likelihood: Likelihood | str | None = None,
    rules: Rules | None = None,
    quantize: Literal["int8"] | None = None,
    aot: bool = False,
    note: Mapping[str, Any] | None = None,
    calibration: Mapping[str, Any] | None = None,
) -> None:
    """Write a model to a file that runs without this library, whole or not at all.

    The file takes batches of any size, computes in float32, and holds a manifest (`Runtime`,
    `read_manifest`). Before it is put in place it is run, on the example inputs and on other
    sizes of the batch, and compared with torch.

    Args:
        model: A model from `convert`, usually trained with `fit`.
        path: The file: .onnx for ONNX Runtime and others, .pt2 for `torch.export.load`.
        example_inputs: Inputs as the model takes them: a tensor, a tuple of positional inputs or
            a mapping of keyword inputs, one row per example. All sizes but that of the batch are
            those of the file.
        what: "moments" for one pass of means and variances: mean and variance of the outputs, of
            a classifier also probs, entropy, expected_entropy and mutual_information, of a
            regression noise_variance. "mean" for the plain network at the mean weights.
            "samples" for networks drawn inside the graph, anew at every call; ONNX Runtime has
            no input for the seed of its noise.
        num_samples: Draws that a file of samples averages; the graph grows with them.
        likelihood: What outputs mean, where `fit` did not settle it.
        rules: How moments pass each operation: "exact"; "taylor" to first order, which is faster
            and less faithful; "shared", which carries what the positions of an image share;
            "pooled", by which a layer sees the variances of its inputs as one sum; None for the
            rules of the model's method.
        quantize: "int8" to store the weights of an .onnx file in eight bits, a quarter of their
            size, and compute products of linear layers in integers. Outputs may then differ from
            torch's by a tenth of their scale, where else a ten-thousandth is allowed.
        aot: Whether a .pt2 file holds code that AOTInductor compiled for this kind of processor,
            to be run by `torch._inductor.aoti_load_package`; needs a C++ compiler.
        note: What should travel in the manifest; "classes" (names) and "preprocessing" ("mean"
            and "std" of each channel) have a place of their own there.
        calibration: How good and how well calibrated the model was found to be, for the
            manifest.

    Raises:
        MissingRuleError: "moments" meets an operation without a rule for them.
        ExportError: The model cannot be traced, or its file computes something else.
    """
    record = require_record(model)
    target = _checked_path(path)
    _check_choices(record, what, num_samples)
    _check_options(target, what, rules, quantize)
    _check_aot(target, aot)
    with _on_cpu(model) as twin:
        record = require_record(twin)
        meaning = _likelihood(record, likelihood, what)
        example = _examples(twin, example_inputs)
        graph, facts = _graph(twin, record, meaning, what, num_samples, example)
        network = graph.network.network
        factors = record.moment_factors if what == "moments" else None
        with (
            record.method.sampling(network, _WAYS[what]),
            moment_rules(rules) if rules else nullcontext(),
            corrected(network, factors),
            torch.no_grad(),
        ):
            if what == "moments":
                facts["rules"] = current_rules()
            with torch.random.fork_rng(devices=[]):
                outputs = graph(*example.tensors)
            inputs = dict(zip(_free_names(example.names, outputs), example.tensors, strict=True))
            axes = example.has_batch_axis
            if quantize:
                facts["quantized"] = quantize
            manifest = make_manifest(
                record, meaning, what, inputs, outputs, axes, facts, note, calibration
            )
            is_quantised = quantize is not None
            kind = _COMPILED if aot else target.suffix
            content = _content(graph, manifest, example, kind, is_quantised)
            run = _RUNNERS[kind](content)
            for batch in batches(example.tensors, axes):
                draws = facts.get("num_samples", 0)
                check_agreement(
                    run, lambda tensors: graph(*tensors), batch, draws, is_quantised=is_quantised
                )
    write_atomically(target, lambda file: file.write(content))


@dataclass(frozen=True)
class _Examples:
    """Example inputs, in the order a graph takes them."""

    tensors: list[Tensor]
    names: list[str]
    is_by_keyword: bool
    has_batch_axis: list[bool]


def _check_aot(target: Path, aot: bool) -> None:
    if not aot:
        return
    if target.suffix != ".pt2":
        raise ValueError(f"aot=True needs a .pt2 file, which can hold code, got {str(target)!r}")
    require_compiler()


def _checked_path(path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    if target.suffix not in _ENDINGS:
        raise ValueError(
            f"path must end in .onnx or .pt2, which says what is written, got {str(target)!r}"
        )
    if target.suffix == ".onnx":
        require_onnx()
    return target


def _check_choices(record: Record, what: str, num_samples: int) -> None:
    if what not in _WAYS:
        raise ValueError(unknown("what to export", what, _WAYS))
    method = record.method
    # A network without a posterior has moments too: its variance is 0.
    is_certain = set(method.ways) == {"mean"}
    if _WAYS[what] not in method.ways and not (what == "moments" and is_certain):
        offered = [name for name, way in _WAYS.items() if way in method.ways]
        raise ValueError(
            f"what={what!r} cannot be exported of this {method.name} model: there is no "
            f"{_WAYS[what]!r} way to predict with it; take what={' or '.join(map(repr, offered))}"
        )
    is_number = isinstance(num_samples, int) and not isinstance(num_samples, bool)
    if what == "samples" and not (is_number and num_samples >= 2):
        raise ValueError(f"num_samples must be a whole number >= 2, got {num_samples!r}")


def _check_options(target: Path, what: str, rules: Any, quantize: Any) -> None:
    if rules is not None and what != "moments":
        raise ValueError(f"rules={rules!r} are rules of moments; leave them out for what={what!r}")
    if rules is not None:
        moment_rules(rules)  # refuses an unknown name
    if quantize is None:
        return
    if quantize != "int8":
        raise ValueError(f"quantize must be 'int8' or None, got {quantize!r}")
    if target.suffix != ".onnx":
        raise ValueError(
            "quantize='int8' needs an .onnx file, whose runtime has integer products; "
            f"got {str(target)!r}"
        )
    if what == "samples":
        raise ValueError(
            "quantize='int8' cannot be used with what='samples': weights that are drawn at every "
            "call are no constants; take what='moments' or what='mean'"
        )


@contextmanager
def _on_cpu(model: nn.Module) -> Iterator[nn.Module]:
    """Give a copy that is ready to be traced: on the CPU, in float32, in evaluation mode."""
    is_fused = torch.backends.mha.get_fastpath_enabled()
    try:
        # Fused attention is one operation of torch's own, which no other program knows.
        torch.backends.mha.set_fastpath_enabled(False)
        yield copy.deepcopy(model).cpu().float().eval()
    finally:
        torch.backends.mha.set_fastpath_enabled(is_fused)


def _likelihood(record: Record, chosen: Likelihood | str | None, what: str) -> Likelihood | None:
    settled = record.likelihood
    if isinstance(settled, Likelihood) and chosen in (None, settled.task):
        return settled.cpu().float()
    if chosen is not None:
        return copy.deepcopy(as_likelihood(chosen, None)).cpu().float()
    if what == "mean":
        return None
    raise ValueError(
        "likelihood must be given: this model was not trained by fit, so what its outputs mean is "
        "unknown; pass likelihood='classification' or likelihood='regression'"
    )


def _examples(model: nn.Module, inputs: Any) -> _Examples:
    if inputs is None:
        raise ValueError(
            "example_inputs must be given: a batch as the model takes it, such as "
            "example_inputs=images[:8], which says what shape and type its inputs have"
        )
    is_by_keyword = isinstance(inputs, Mapping)
    if is_by_keyword:
        names, values = [str(name) for name in inputs], list(inputs.values())
    else:
        values = list(inputs) if isinstance(inputs, (tuple, list)) else [inputs]
        names = _parameter_names(model, len(values))
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, Tensor):
            raise TypeError(
                f"example_inputs must hold tensors alone, got {type(value).__name__} for {name}"
            )
    sizes = [tensor.shape[0] for tensor in values if tensor.ndim]
    if not sizes or sizes[0] == 0:
        raise ValueError("example_inputs must have one row per example, and one example at least")
    tensors = [_plain(tensor) for tensor in values]
    axes = [tensor.ndim > 0 and tensor.shape[0] == sizes[0] for tensor in tensors]
    return _Examples(tensors, names, is_by_keyword, axes)


def _plain(tensor: Tensor) -> Tensor:
    plain = tensor.detach().cpu()
    return plain.float() if plain.is_floating_point() else plain


def _parameter_names(model: nn.Module, count: int) -> list[str]:
    """Return the names that a model's forward gives its positional inputs."""
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = inspect.signature(model.forward).parameters.values()
    names = [parameter.name for parameter in known if parameter.kind in by_position]
    if len(names) >= count:
        return names[:count]
    return ["input"] if count == 1 else [f"input_{index}" for index in range(count)]


def _free_names(names: Sequence[str], outputs: Mapping[str, Tensor]) -> list[str]:
    # A file calls an input and an output by different names.
    return [f"input_{name}" if name in outputs else name for name in names]


def _graph(
    twin: nn.Module,
    record: Record,
    likelihood: Likelihood | None,
    what: str,
    num_samples: int,
    example: _Examples,
) -> tuple[Any, dict[str, Any]]:
    """Return the module to trace and what the manifest says of it."""
    output = _try(twin, record, what, example)
    names = tuple(example.names) if example.is_by_keyword else None
    if isinstance(likelihood, Classification):
        check_classes(output, likelihood.class_axis or 1)
    if likelihood is None or what == "mean":
        return MeanGraph(FoldedNetwork(twin, None, names)), {}
    likelihood.requires_grad_(False)
    if problem := variance_problem(twin) if what == "moments" else None:
        raise ValueError(f"what='moments' needs variances: {problem}; take what='samples'")
    if what == "moments":
        network = FoldedNetwork(twin, WeightMoments, names)
        facts = {"num_random_weights": network.num_random}
        if isinstance(likelihood, Classification):
            facts["num_points"] = NUM_POINTS
        if record.moment_factors:
            facts["is_corrected"] = True
        return MomentsGraph(network, likelihood, output), facts
    network = FoldedNetwork(twin, fold_draw, names)
    if posteriors(twin) and not network.num_random:
        raise ValueError(
            "what='samples' needs a random weight, and there is none: take what='mean'"
        )
    number = record.method.num_draws(twin, num_samples)
    facts = {"num_random_weights": network.num_random, "num_samples": number}
    return SamplesGraph(network, likelihood, number), facts


def _try(twin: nn.Module, record: Record, what: str, example: _Examples) -> Tensor:
    """Return a mean output of the model itself: what it refuses is refused here, by its names."""
    way = _WAYS[what]
    if way not in record.method.ways:
        way = "mean"
    with torch.no_grad(), torch.random.fork_rng(devices=[]), record.method.sampling(twin, way):
        if example.is_by_keyword:
            output = twin(**dict(zip(example.names, example.tensors, strict=True)))
        else:
            output = twin(*example.tensors)
    found = output_tensor(output, (Tensor, Moments))
    return found.expected if isinstance(found, Moments) else found


def _content(
    graph: nn.Module,
    manifest: dict[str, Any],
    example: _Examples,
    kind: str,
    is_quantised: bool,
) -> bytes:
    axes = example.has_batch_axis
    # From one example alone torch would conclude that the batch is always 1.
    traced = rows(example.tensors, axes, 2)
    try:
        # ONNX Runtime computes with the constants of a graph once; a program of torch does not.
        with deployed_rules() if kind == ".onnx" else nullcontext():
            program = trace(graph, traced, axes)
        if kind != ".onnx":
            return (aot_content if kind == _COMPILED else torch_content)(program, manifest)
        return onnx_content(program, manifest, axes, is_quantised)
    except ValueError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ExportError(
            f"the model cannot be exported to {kind}: {reason[0]}; no file was written"
        ) from error
