"""Begin from a plain network that was trained first, here or elsewhere.

A posterior that starts on trained weights spends its epochs on the spread alone. The other way to
start warm, the KL switched off and then annealed, needs nothing but a schedule:
`beta = {name = "warm_up", start = 0.5, fraction = 0.5}`.

Runs that begin from the same plain network need not train it each: what another run trained by the
same recipe and seed is taken over, be it that run's own warm start or a plain run's result.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from bayesify.archive import ArchiveError, write_atomically
from bayesify.conversion import convert, revert
from bayesify.data.catalogue import data_root
from bayesify.exporting import load, save
from bayesify.methods import Deterministic
from bayesify.recipes.recipe import Recipe
from bayesify.recipes.run_folder import RunFolder
from bayesify.training import fit
from bayesify.training.settings import FitSettings

# What belongs to one run makes no difference to the network.
_ANY_RUN: dict[str, Any] = {"run_dir": ".", "progress": None, "compile": False}


def warm_started(
    recipe: Recipe,
    network: nn.Module,
    loaders: tuple[Any, Any],
    run: RunFolder,
    *,
    resume: bool,
    others: Iterable[RunFolder] = (),
) -> nn.Module:
    """Return the plain network a recipe's warm start asks for, trained or loaded.

    Args:
        recipe: A recipe with a warm start.
        network: The network with fresh weights.
        loaders: Training and validation batches.
        run: The folder of the run; the plain network is kept in a folder inside.
        resume: Whether to take up what lies there.
        others: Folders of runs whose plain network will do, if it was trained alike.
    """
    if "weights" in recipe.warm_start:
        file = _weights_file(recipe.warm_start["weights"], recipe.data.get("root"))
        return with_weights(network, file)
    own = run.warm_start
    if resume and own.model.is_file():
        return revert(load(own.model, network))
    alike = trained_alike(recipe, others)
    if alike is not None and not own.has_begun:
        own.path.mkdir(parents=True, exist_ok=True)
        content = alike.read_bytes()
        write_atomically(own.model, lambda file: file.write(content))
        return revert(load(own.model, network))
    resumes = resume and own.has_begun
    settings = recipe.warm_start_settings(run_dir=own.path, resume=resumes)
    assert settings is not None
    plain = convert(network, Deterministic())
    fit(plain, *loaders, **vars(settings))
    save(plain, own.model)
    return revert(plain)


def trained_alike(recipe: Recipe, others: Iterable[RunFolder]) -> Path | None:
    """Return the file of a plain network that a run trained as a recipe's warm start says.

    Args:
        recipe: A recipe with a warm start that is trained.
        others: Folders of runs, begun, ended or empty.
    """
    settings = recipe.warm_start_settings(**_ANY_RUN)
    for other in others:
        for file in (other.model, other.warm_start.model):
            if not file.is_file() or not other.config.is_file():
                continue
            try:
                theirs = other.read_recipe()
            except (ValueError, TypeError, LookupError):
                continue  # written by another version
            how = _plain_settings(theirs, is_result=file == other.model)
            if how == settings and _begins(theirs) == _begins(recipe):
                return file
    return None


def _plain_settings(recipe: Recipe, *, is_result: bool) -> FitSettings | None:
    """Return how a run trained its plain network: as its result, or before it began."""
    if not is_result:
        return recipe.warm_start_settings(**_ANY_RUN)
    is_plain = recipe.method["name"] == Deterministic.name and not recipe.warm_start
    return recipe.settings(**_ANY_RUN) if is_plain else None


def _begins(recipe: Recipe) -> dict[str, Any]:
    # As TOML has them: a list is no tuple, and what is None is not there.
    tables = tomllib.loads(recipe.to_toml())
    # Where the examples lie is no part of what is learned from them.
    data = {key: value for key, value in tables["data"].items() if key != "device"}
    return {"model": tables["model"], "data": data, "seed": tables["seed"]}


def _weights_file(path: str, root: str | None) -> Path:
    """Return a file of weights where it is named, or below the folder of the data."""
    here, there = Path(path), data_root(root) / path
    return there if there.is_file() and not here.is_file() else here


def with_weights(network: nn.Module, path: str | Path) -> nn.Module:
    """Return a network with the weights in a file.

    Args:
        network: The network; it is filled in place.
        path: A model that bayesify saved, whose means are taken, or a state dict in safetensors
            or as torch.save writes it (read without unpickling code).

    Raises:
        ValueError: The weights do not fit the network.
        FileNotFoundError: There is no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"warm_start.weights: there is no file {path}")
    if path.suffix == ".safetensors":
        state = _state_of_file(path, network)
    else:
        import torch

        state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, Mapping):
        raise ValueError(f"{path} must hold a state dict, got a {type(state).__name__}")
    state = cast("Mapping[str, Tensor]", state.get("state_dict", state))
    # A network that was wrapped for several GPUs has its name before every key.
    state = {key.removeprefix("module."): value for key, value in state.items()}
    # Older files do not count the batches of norms, which matters only where they average all.
    state = {**{key: own for key, own in network.state_dict().items() if _counts(key)}, **state}
    problem = _misfit(network, state)
    if problem:
        raise ValueError(f"{path} does not fit the network: {problem}")
    network.load_state_dict(state)
    return network


def _state_of_file(path: Path, network: nn.Module) -> Mapping[str, Any]:
    from safetensors.torch import load_file

    try:
        # A compressed model is smaller than the network, which is then found not to fit.
        return revert(load(path, network)).state_dict()
    except ArchiveError:
        return load_file(path)


def _counts(key: str) -> bool:
    return key.rpartition(".")[2] == "num_batches_tracked"


def _misfit(network: nn.Module, state: Mapping[str, Tensor]) -> str | None:
    own = network.state_dict()
    missing, extra = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    if missing or extra:
        return f"missing {missing[:3]}, unexpected {extra[:3]}"
    for key, value in own.items():
        if value.shape != state[key].shape:
            return f"{key} has shape {tuple(state[key].shape)}, expected {tuple(value.shape)}"
    return None
