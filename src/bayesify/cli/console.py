"""Where the command line writes: answers to standard output, everything else beside it."""

from __future__ import annotations

from rich.console import Console

answers = Console()
errors = Console(stderr=True, soft_wrap=True)
