"""What a study measures on a trained network, by the kind of study."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bayesify.recipes.run import Parts
from bayesify.registry import Registry

Measure = Callable[[Parts, Mapping[str, Any]], dict[str, Any]]
"""measure(parts, options): what was found on the test set, ready for JSON."""

measures: Registry[Measure] = Registry("kind of study")
