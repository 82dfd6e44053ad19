"""`bayesify compress`: a smaller file of a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from bayesify.cli.console import answers
from bayesify.compression import compress as make_smaller
from bayesify.compression import scores, sparsity
from bayesify.exporting import load, save
from bayesify.exporting.model_file import read_note
from bayesify.recipes.run_folder import model_path


def compress(
    model: Annotated[Path, typer.Argument(help="A model file, or the folder of a run.")],
    by: Annotated[str, typer.Option(help=f"What weights are ranked by: {', '.join(scores)}.")] = (
        "snr"
    ),
    threshold: Annotated[
        float | None,
        typer.Option(help="Remove up to this |mean|/std or |mean|, or from this log alpha on."),
    ] = None,
    keep: Annotated[float | None, typer.Option(help="Keep this share of the weights.")] = None,
    scope: Annotated[
        str, typer.Option(help="Rank over the whole network, global, or in each layer.")
    ] = "global",
    shrink: Annotated[bool, typer.Option(help="Remove dead units too.")] = True,
    seed: Annotated[int, typer.Option(help="Decides what --by random keeps.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="The smaller file.", show_default="model.small.safetensors, beside it"),
    ] = None,
) -> None:
    """Remove the weights that a trained posterior says are noise, and the units they leave dead.

    [cyan]bayesify compress runs/mnist --keep 0.05 --out small.safetensors[/cyan]

    Without --threshold or --keep the method's own rule decides. The file
    that comes out is read by predict and evaluate like any other.
    """
    source = model_path(model)
    target = out or source.with_name(f"{source.stem}.small{source.suffix}")
    if target.resolve() == source.resolve():
        raise ValueError(f"--out must be another file than the model itself, got {target}")
    note = read_note(source)
    if note["architecture"] is None:
        raise ValueError(
            f"{source} does not name a registered model: load it in Python, with its "
            "architecture, and call bayesify.compress"
        )
    rule: dict[str, Any] = {"by": by, "threshold": threshold, "keep": keep, "scope": scope}
    small = make_smaller(load(source), **rule, shrink=shrink, seed=seed)
    save(
        small,
        target,
        architecture=note["architecture"],
        options=note["options"],
        note={**note["note"], "compressed": {**rule, "shrink": shrink, "seed": seed}},
    )
    answers.print(sparsity(small))
    before, after = source.stat().st_size, target.stat().st_size
    answers.print(
        f"[bold]{escape(str(target))}[/bold]: {after:,} bytes, {after / before:.1%} of {before:,}"
    )
