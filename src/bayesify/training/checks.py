"""What `fit` refuses before anything is built or written."""

from __future__ import annotations

from typing import Any

from bayesify.conversion.method import Method
from bayesify.training.settings import FitSettings


def check_fit(method: Method, settings: FitSettings, val_loader: Any) -> None:
    """Raise a ValueError where a method cannot be trained as the settings say."""
    name = type(method).__name__
    if settings.epochs and not method.can_be_trained:
        raise ValueError(
            f"epochs must be 0 with {name}, whose posterior belongs to the weights as they are: "
            "train the plain network, then convert it"
        )
    if settings.compile is not False and not method.can_be_compiled:
        raise ValueError(
            f"compile must be False with {name}, whose passes are derivatives example by example, "
            f"got {settings.compile!r}"
        )
    if settings.strategy == "fsdp" and not method.can_be_sharded:
        raise ValueError(
            f"strategy='fsdp' cannot shard {name}, whose stored entries move: use strategy='ddp'"
        )
    if settings.patience is not None and val_loader is None:
        raise ValueError("patience needs val_loader: it watches the validation nll")
    if settings.keep_best and val_loader is None:
        raise ValueError("keep_best needs val_loader: it keeps the best validation epoch")
