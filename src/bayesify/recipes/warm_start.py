"""Begin from a plain network that was trained first, here or elsewhere.

A posterior that starts on trained weights spends its epochs on the spread alone. The other way to
start warm, the KL switched off and then annealed, needs nothing but a schedule:
`beta = {name = "warm_up", start = 0.5, fraction = 0.5}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from bayesify.archive import ArchiveError
from bayesify.conversion import convert, revert
from bayesify.exporting import load, save
from bayesify.methods import Deterministic
from bayesify.recipes.recipe import Recipe
from bayesify.recipes.run_folder import RunFolder
from bayesify.training import fit


def warm_started(
    recipe: Recipe, network: nn.Module, loaders: tuple[Any, Any], run: RunFolder, *, resume: bool
) -> nn.Module:
    """Return the plain network a recipe's warm start asks for, trained or loaded.

    Args:
        recipe: A recipe with a warm start.
        network: The network with fresh weights.
        loaders: Training and validation batches.
        run: The folder of the run; the plain network is kept in a folder inside.
        resume: Whether to take up what lies there.
    """
    if "weights" in recipe.warm_start:
        return with_weights(network, recipe.warm_start["weights"])
    own = run.warm_start
    if resume and own.model.is_file():
        return revert(load(own.model, network))
    resumes = resume and own.has_begun
    settings = recipe.warm_start_settings(run_dir=own.path, resume=resumes)
    assert settings is not None
    plain = convert(network, Deterministic())
    fit(plain, *loaders, **vars(settings))
    save(plain, own.model)
    return revert(plain)


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


def _misfit(network: nn.Module, state: Mapping[str, Tensor]) -> str | None:
    own = network.state_dict()
    missing, extra = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    if missing or extra:
        return f"missing {missing[:3]}, unexpected {extra[:3]}"
    for key, value in own.items():
        if value.shape != state[key].shape:
            return f"{key} has shape {tuple(state[key].shape)}, expected {tuple(value.shape)}"
    return None
