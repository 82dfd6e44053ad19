"""Carry out a recipe: build what it names, train it, and leave a folder that tells the story."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from bayesify.conversion import convert
from bayesify.data import DataSet, TensorData, load_dataset, loader, split
from bayesify.exporting import save
from bayesify.methods import DeepEnsemble
from bayesify.models.catalogue import models
from bayesify.recipes.options import options_of
from bayesify.recipes.recipe import NOISE_AS, Recipe
from bayesify.recipes.run_folder import RunFolder
from bayesify.recipes.warm_start import warm_started
from bayesify.training import History, fit

# A difference here would make the resumed run another run; how it is trained may change.
_FIXED_ON_RESUME = ("model", "data", "method", "seed", "warm_start")


@dataclass(frozen=True, eq=False)
class Parts:
    """What a recipe names, built.

    Attributes:
        recipe: The recipe, with the model's options that the data decide.
        data: The data set.
        train: Loader of the training examples.
        validation: Loader of the examples held out, or None.
        model: The converted model, with fresh weights.
        plain: The plain network it began from, where that was trained or loaded first.
    """

    recipe: Recipe
    data: DataSet
    train: DataLoader[Any]
    validation: DataLoader[Any] | None
    model: nn.Module
    plain: nn.Module | None = None


def build(recipe: Recipe) -> Parts:
    """Load the data, build the network and make it Bayesian."""
    choices, device = recipe.data, data_device(recipe)
    data = load_dataset(choices["name"], choices.get("root"), **recipe.options("data")).to(device)
    recipe = recipe.with_model_options(options_from_data(recipe, data))
    batches, validation = _loaders(recipe, data)
    method = recipe.make_method()
    return Parts(
        recipe=recipe,
        data=data,
        train=batches,
        validation=validation,
        # Data tell nothing about a network that is yet to be trained.
        model=convert(
            _network(recipe).to(device), method.for_data(None if recipe.warm_start else batches)
        ),
    )


def _loaders(recipe: Recipe, data: DataSet) -> tuple[DataLoader[Any], DataLoader[Any] | None]:
    choices = recipe.data
    train, validation = data.train, None
    if choices["validation"]:
        train, held_out = split(data.train, choices["validation"], seed=recipe.seed)
        validation = loader(held_out, choices["batch_size"])
    train = _some(train, choices.get("num_train"), recipe.seed)
    if "noise" in choices:
        noise = choices["noise"]
        train = NOISE_AS[noise["as"]](train, noise["decibels"])
    return loader(train, choices["batch_size"], shuffle=True), validation


def _some(data: TensorData, number: int | None, seed: int) -> TensorData:
    """Return so many examples, drawn by a seed; None for all."""
    if number is None:
        return data
    if number > len(data):
        raise ValueError(f"data.num_train must be at most {len(data)}, got {number}")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    return data.select(order[:number].sort().values)


def data_device(recipe: Recipe) -> torch.device:
    """Return where a recipe's examples are held: on the CPU, or on the GPU of this process.

    Raises:
        ValueError: A GPU was asked for and there is none.
    """
    chosen = recipe.data.get("device", "cpu")
    has_gpu = torch.cuda.is_available()
    if chosen == "auto":
        trains_on_gpu = has_gpu and recipe.settings(run_dir=".").accelerator != "cpu"
        chosen = "cuda" if trains_on_gpu else "cpu"
    if chosen == "cpu":
        return torch.device("cpu")
    if not has_gpu:
        raise ValueError("data.device is 'cuda', but torch finds no GPU: choose 'auto' or 'cpu'")
    # Under torchrun each process has a GPU of its own.
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def options_from_data(recipe: Recipe, data: DataSet) -> dict[str, Any]:
    """Return the options of the model that only the data can know and the recipe leaves open."""
    shape = data.input_shape
    targets = data.test.targets
    num_outputs = data.num_classes or math.prod(targets.shape[1:])
    decided = {
        "in_features": math.prod(shape),
        "out_features": num_outputs,
        "num_classes": num_outputs,
        "in_channels": shape[0],
        "image_size": shape[-1],
    }
    if data.vocabulary is not None:
        decided |= {"vocabulary_size": len(data.vocabulary), "length": shape[0]}
    offered = options_of(models[recipe.model["name"]])
    return {key: decided[key] for key in decided if key in offered and key not in recipe.model}


def run_recipe(
    recipe: Recipe,
    run: RunFolder,
    *,
    resume: bool = False,
    overwrite: bool = False,
    on_start: Callable[[Parts], object] | None = None,
    others: Iterable[RunFolder] = (),
) -> tuple[Parts, History]:
    """Train what a recipe describes and return it, leaving everything in the run's folder.

    Args:
        recipe: What to train.
        run: Where to leave it.
        resume: Whether to go on from the checkpoint in the folder.
        overwrite: Whether a run that lies there already may be replaced.
        on_start: Called once everything is built and before training begins.
        others: Folders of runs whose plain network a warm start may take over, if it was trained
            alike.

    Raises:
        FileExistsError: A run lies there, and neither `resume` nor `overwrite` was asked for.
        ValueError: The run to resume was of another model, data set, method or seed.
    """
    if run.has_begun and not (resume or overwrite):
        raise FileExistsError(
            f"{run.path} holds a run already: --resume goes on with it, --overwrite begins it "
            "again, another --run-dir leaves it alone"
        )
    parts = build(recipe)
    if resume and run.config.is_file():
        _check_same_run(parts.recipe, run)
    if not resume:
        run.clear()
    run.write_recipe(parts.recipe)
    if on_start is not None:
        on_start(parts)
    if parts.recipe.warm_start:
        parts = _warm(parts, run, resume=resume, others=list(others))
    settings = vars(parts.recipe.settings(run_dir=run.path, resume=resume))
    history = fit(parts.model, parts.train, parts.validation, **settings)
    name, options = parts.recipe.model["name"], parts.recipe.options("model")
    note = {"recipe": parts.recipe.to_dict(), "data": describe_data(parts.data)}
    # On every process: each holds a part of a sharded model, and all write the same file.
    save(parts.model, run.model, architecture=name, options=options, note=note)
    return parts, history


def _warm(parts: Parts, run: RunFolder, *, resume: bool, others: list[RunFolder]) -> Parts:
    """Return the parts with the model begun from a plain network that was trained first."""

    def trained(recipe: Recipe, folder: RunFolder) -> nn.Module:
        loaders = _loaders(recipe, parts.data)
        options: dict[str, Any] = {"resume": resume, "others": others}
        return warm_started(recipe, _network(recipe), loaders, folder, **options)

    recipe, method = parts.recipe, parts.recipe.make_method()
    # Where the examples are: a method may look at all of them.
    network = trained(recipe, run).to(data_device(recipe))
    model = convert(network, method.for_data(parts.train))
    if isinstance(method, DeepEnsemble) and method.start == "copy":
        # Copies of one network would all say the same: each has a seed and a training of its own.
        for index in range(1, method.num_members):
            another = replace(recipe, seed=recipe.seed + index)
            state = trained(another, run.member(index)).state_dict()
            model.get_submodule(f"members.{index}").load_state_dict(state)
    return replace(parts, model=model, plain=network)


def describe_data(data: DataSet) -> dict[str, Any]:
    """Return what a model file should remember of the data it was trained on."""
    return {
        "name": data.name,
        "task": data.task,
        "input_shape": list(data.input_shape),
        "classes": None if data.classes is None else list(data.classes),
        "mean": None if data.mean is None else list(data.mean),
        "std": None if data.std is None else list(data.std),
    }


def _network(recipe: Recipe) -> nn.Module:
    # The first weights follow from the seed alone, whatever was drawn before.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return models[recipe.model["name"]](**recipe.options("model"))


def _check_same_run(recipe: Recipe, run: RunFolder) -> None:
    before, now = run.read_recipe().to_dict(), recipe.to_dict()
    for table in _FIXED_ON_RESUME:
        if _choices(before, table) != _choices(now, table):
            raise ValueError(
                f"{run.path} cannot be resumed with another {table}: it was begun with "
                f"{before.get(table)}, this recipe says {now.get(table)}"
            )


def _choices(recipe: Mapping[str, Any], table: str) -> Any:
    found = recipe.get(table)
    # Where the examples lie, and how passes are compiled, is no part of what is learned.
    aside = {"data": "device", "warm_start": "compile"}.get(table)
    return {**found, aside: None} if aside is not None and isinstance(found, Mapping) else found
