"""The description of a run: which model, which data, which method, how it is trained.

A recipe is a few tables and a seed, read from TOML, from flags, or from both. Everything it names
is checked when it is made, so that a slip of the pen costs a second and not a training run.
"""

from __future__ import annotations

import dataclasses
import inspect
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayesify.conversion.method import Method, method_from_dict, methods
from bayesify.data.catalogue import datasets
from bayesify.data.noisy import check_decibels, newly_noisy, uncertain
from bayesify.methods import DeepEnsemble
from bayesify.models.catalogue import models
from bayesify.recipes.options import check_options, options_of
from bayesify.recipes.toml import to_toml
from bayesify.registry import Registry, unknown
from bayesify.training.likelihood import as_likelihood
from bayesify.training.optimiser import optimizers
from bayesify.training.schedule import as_schedule
from bayesify.training.settings import FitSettings

DEFAULTS: dict[str, dict[str, Any]] = {
    "data": {"batch_size": 128, "validation": 0.1},
    "method": {"name": "mean_field"},
    "fit": {"epochs": 20},
}
"""What a recipe says where its writer says nothing."""

OWN_DATA_KEYS = ("root", "batch_size", "validation", "num_train", "device", "noise")
"""Keys of [data] that belong to the recipe, whichever data set it names."""

NOISE_AS = {"draws": newly_noisy, "variance": uncertain}
"""What can become of the noise that a recipe trains under."""

_TABLES = ("model", "data", "method", "fit", "warm_start")
_DATA_DEVICES = ("auto", "cpu", "cuda")
# They say where and how one run is carried out; the same recipe runs again elsewhere.
_OF_ONE_RUN = ("run_dir", "resume", "progress")


@dataclass(frozen=True)
class Recipe:
    """A checked description of a run.

    Attributes:
        model: "name" of a registered model, and its options.
        data: "name" of a registered data set and its options, beside "root", "batch_size",
            "validation" (a fraction or a count of the training data to hold out, 0 for none),
            "num_train" (how many of the rest to train on, drawn by the seed; all if left out),
            "device", where the examples are held and batches made: "cpu" (also where it is left
            out), "cuda", or "auto" for the GPU that trains, where one does; and "noise" to train
            under: its "decibels", a signal-to-noise ratio or two for each example's to lie between,
            and "as", "draws" or "variance", by which inputs become `Moments`.
        method: "name" of a registered method, and its options.
        fit: Fields of `FitSettings`.
        seed: Seed of the first weights, the split, the order of batches and every draw.
        warm_start: How the plain network is trained before it is made Bayesian: fields of
            `FitSettings`, or "weights", the file of a state dict or a model to begin from, also
            below the folder of the data; empty begins from fresh weights.
    """

    model: Mapping[str, Any]
    data: Mapping[str, Any]
    method: Mapping[str, Any]
    fit: Mapping[str, Any]
    seed: int = 0
    warm_start: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise TypeError(f"seed must be a whole number, got {self.seed!r}")
        _check_named("model", models, self.model)
        _check_named("data", datasets, self.data, OWN_DATA_KEYS)
        _check_data_keys(self.data)
        _check_named("method", methods, self.method)
        check_options("[fit]", FitSettings, self.fit)
        _check_warm_start(self.warm_start)
        _check_members(self.make_method(), self.warm_start)
        _check_names_in_settings(self._some_settings())

    def make_method(self) -> Method:
        """Return the method."""
        return method_from_dict(self.method)

    def settings(self, **of_this_run: Any) -> FitSettings:
        """Return how to train; `of_this_run` adds where and how this one run is carried out."""
        return FitSettings(**{"seed": self.seed, **self.fit, **of_this_run})

    def warm_start_settings(self, **of_this_run: Any) -> FitSettings | None:
        """Return how the plain network is trained first, None where it is not."""
        chosen = {key: value for key, value in self.warm_start.items() if key != "weights"}
        return FitSettings(**{"seed": self.seed, **chosen, **of_this_run}) if chosen else None

    def options(self, table: str) -> dict[str, Any]:
        """Return the options of the model, the data set or the method, without its name."""
        own = ("name", *OWN_DATA_KEYS) if table == "data" else ("name",)
        return {key: value for key, value in getattr(self, table).items() if key not in own}

    def to_dict(self) -> dict[str, Any]:
        """Return every choice of the recipe, the defaults among them; read back it is equal."""
        settings = vars(self._some_settings())
        # One seed says it all, and can then be changed in one place.
        left_out = (*_OF_ONE_RUN, "seed") if settings["seed"] == self.seed else _OF_ONE_RUN
        tables = {
            "seed": self.seed,
            "model": _with_defaults(models, self.model),
            "data": _with_defaults(datasets, self.data),
            "method": self.make_method().to_dict(),
            "fit": {key: value for key, value in settings.items() if key not in left_out},
        }
        return {**tables, "warm_start": dict(self.warm_start)} if self.warm_start else tables

    def to_toml(self) -> str:
        """Return the recipe, defaults and all, as the text of a TOML file."""
        return to_toml(self.to_dict())

    def _some_settings(self) -> FitSettings:
        # Some settings need a run folder, which a recipe need not know.
        return self.settings(run_dir=".")

    def with_model_options(self, options: Mapping[str, Any]) -> Recipe:
        """Return the same recipe with further options of its model."""
        return dataclasses.replace(self, model={**self.model, **options})


def read_tables(path: str | Path) -> dict[str, Any]:
    """Return the tables of a TOML file as they are written, not yet checked."""
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from error
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no file {path}") from error


def make_recipe(tables: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Recipe:
    """Return the recipe that tables describe, after changes to them.

    Args:
        tables: "model", "data", "method" and "fit", each a mapping, and "seed".
        changes: The same; what it says wins. Where it names another model, data set or method,
            the options in `tables` belonged to the old one and are dropped.
    """
    merged: dict[str, Any] = {}
    for source in (DEFAULTS, tables, changes or {}):
        for key, value in source.items():
            if key not in (*_TABLES, "seed"):
                raise ValueError(unknown("key of a recipe", key, (*_TABLES, "seed")))
            merged[key] = value if key == "seed" else _merge(key, merged.get(key, {}), value)
    for table in ("model", "data"):
        if table not in merged or "name" not in merged[table]:
            known = ", ".join(models if table == "model" else datasets)
            raise ValueError(f"{table}.name must be given. Known: {known}.")
    return Recipe(**merged)


def read_recipe(path: str | Path, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Return the recipe in a TOML file, after changes to it (see `make_recipe`)."""
    return make_recipe(read_tables(path), changes)


def _merge(table: str, before: Mapping[str, Any], added: Any) -> dict[str, Any]:
    if not isinstance(added, Mapping):
        raise TypeError(f"{table} must be a table, such as [{table}], got {added!r}")
    return deep_merged(before, added)


def deep_merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables in which what `second` says wins, key by key.

    Where it names another model, data set, method or schedule, the options of the old one go; so do
    weights to begin from where it says how to train them, and the other way round.
    """
    names = (first.get("name"), second.get("name"))
    if None not in names and names[0] != names[1]:
        kept = {key: first[key] for key in OWN_DATA_KEYS if key in first}
        return {**kept, **second}
    if ("weights" in first and "epochs" in second) or ("epochs" in first and "weights" in second):
        return dict(second)
    merged = dict(first)
    for key, value in second.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = deep_merged(merged[key], value) if both else value
    return merged


def _check_named(
    table: str, registry: Registry[Any], choices: Mapping[str, Any], also: tuple[str, ...] = ()
) -> None:
    name = choices.get("name")
    if not isinstance(name, str):
        raise TypeError(f"{table}.name must be the name of a {registry.kind}, got {name!r}")
    options = {key: value for key, value in choices.items() if key not in ("name", *also)}
    check_options(f"{registry.kind} {name!r}", registry[name], options, also)


def _check_data_keys(data: Mapping[str, Any]) -> None:
    size, held_out, root = data.get("batch_size"), data.get("validation"), data.get("root")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError(f"data.batch_size must be a whole number >= 1, got {size!r}")
    if not _is_share(held_out):
        raise ValueError(
            "data.validation must be a fraction below 1 or a count of the training data to hold "
            f"out, 0 for none, got {held_out!r}"
        )
    num_train = data.get("num_train", 1)
    if not isinstance(num_train, int) or isinstance(num_train, bool) or num_train < 1:
        raise ValueError(f"data.num_train must be a whole number >= 1, got {num_train!r}")
    if root is not None and not isinstance(root, str):
        raise TypeError(f"data.root must be the path of a folder, got {root!r}")
    if "noise" in data:
        _check_noise(data["noise"])
    if data.get("device", "cpu") not in _DATA_DEVICES:
        known = ", ".join(map(repr, _DATA_DEVICES))
        raise ValueError(f"data.device must be one of {known}, got {data['device']!r}")


def _check_noise(noise: Any) -> None:
    if not isinstance(noise, Mapping) or set(noise) != {"decibels", "as"}:
        raise ValueError(
            "data.noise must be a table of decibels and as, such as "
            f"{{ decibels = [-6, 20], as = 'draws' }}, got {noise!r}"
        )
    check_decibels(noise["decibels"])
    if str(noise["as"]) not in NOISE_AS:
        raise ValueError(unknown("data.noise.as", str(noise["as"]), NOISE_AS))


def _check_warm_start(choices: Mapping[str, Any]) -> None:
    chosen = {key: value for key, value in choices.items() if key != "weights"}
    if not isinstance(choices.get("weights", ""), str):
        raise TypeError(f"warm_start.weights must be a path, got {choices['weights']!r}")
    if chosen and "weights" in choices:
        raise ValueError(
            "warm_start must either name weights to begin from or say how to train them, got both: "
            f"weights and {', '.join(chosen)}"
        )
    if chosen:
        check_options("[warm_start]", FitSettings, chosen, ("weights",))
        if "epochs" not in chosen:
            raise ValueError("warm_start.epochs must be given: how long the plain network trains")
        _check_names_in_settings(FitSettings(**{**chosen, "run_dir": "."}))


def _check_members(method: Method, warm_start: Mapping[str, Any]) -> None:
    if not isinstance(method, DeepEnsemble) or "epochs" in warm_start:
        return
    if method.start == "copy" and method.num_members > 1:
        raise ValueError(
            "method.start = 'copy' would begin all members at the same weights, and they would "
            "stay alike: take start = 'fresh', or a warm start that is trained "
            "(warm_start.epochs), of which each member has its own"
        )


def _is_share(value: Any) -> bool:
    if isinstance(value, float):
        return 0.0 <= value < 1.0
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_names_in_settings(settings: FitSettings) -> None:
    if isinstance(settings.optimizer, str):
        _ = optimizers[settings.optimizer]
    _ = optimizers[settings.scale_optimizer]
    for key in ("beta", "schedule"):
        as_schedule(key, getattr(settings, key))
    if settings.likelihood is not None:
        as_likelihood(settings.likelihood, None)


def _with_defaults(registry: Registry[Any], choices: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {
        key: value
        for key, value in options_of(registry[choices["name"]]).items()
        if value is not inspect.Parameter.empty
    }
    return {"name": choices["name"], **{**defaults, **choices}}
