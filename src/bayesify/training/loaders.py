"""What training asks of a loader: to be read more than once, and at times to have a length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bayesify.training.settings import FitSettings


def check_loader(loader: Any, settings: FitSettings) -> None:
    """Raise unless a loader can be read in every epoch, and has a length where one is needed."""
    if isinstance(loader, Iterator):
        raise TypeError(
            "train_loader must be read anew in every epoch, such as a DataLoader or a list of "
            f"batches, got a {type(loader).__name__}, which can be read once"
        )
    if settings.accumulate > 1 and num_batches(loader) is None:
        raise ValueError(
            f"accumulate={settings.accumulate} needs a train_loader with a length: the last "
            "update of an epoch must know how many batches it has"
        )


def num_batches(loader: Any) -> int | None:
    """Return how many batches a loader yields, None where it does not say."""
    try:
        return len(loader)
    except TypeError:
        return None
