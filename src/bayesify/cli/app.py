"""The application: what all commands share, and how an error reads."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bayesify.cli.console import errors
from bayesify.version import __version__

# What the library raises on purpose; anything else is a fault of ours and keeps its traceback.
_EXPECTED = (
    ValueError,
    TypeError,
    LookupError,
    OSError,
    ArithmeticError,
    ImportError,
    RuntimeError,
)
_WRONG_INPUT = 2
_INTERRUPTED = 130


class SentenceGroup(TyperGroup):
    """Shows an error as one sentence; with --debug, wherever it is written, as a traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let --debug stand after the command too."""
        if "--debug" in args:
            args = ["--debug", *(entry for entry in args if entry != "--debug")]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt as error:
            errors.print("[yellow]stopped[/yellow]")
            raise typer.Exit(_INTERRUPTED) from error
        except _EXPECTED as error:
            if ctx.params.get("debug"):
                raise
            text = _sentence(error)
            errors.print(f"Error: {text}", style="bold red", markup=False, highlight=False)
            raise typer.Exit(_WRONG_INPUT) from error


app = typer.Typer(
    name="bayesify",
    cls=SentenceGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback(
    epilog="Begin with [bold]bayesify demo[/bold], then [bold]bayesify fit --help[/bold].",
)
def main(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
    version: Annotated[
        bool,
        # Eager: it answers before a command is asked for.
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Make a PyTorch network Bayesian, train it, and know how sure it is."""
    del debug, version


def _sentence(error: BaseException) -> str:
    # str() of a KeyError is the repr of its message, quotes and all.
    is_quoted = isinstance(error, KeyError) and len(error.args) == 1
    return str(error.args[0] if is_quoted else error) or type(error).__name__
