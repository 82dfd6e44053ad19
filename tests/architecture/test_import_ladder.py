"""A file imports only from folders before its own, stays short, and imports nothing heavy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bayesify

PACKAGE = Path(bayesify.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# Rungs from the ground up; names on one rung do not import each other.
LADDER = (
    ("types", "registry", "version", "archive"),
    ("distributions",),
    ("moments",),
    ("batches",),
    ("conversion",),
    ("training",),
    ("prediction",),
    ("methods",),
    ("evaluation",),
    ("compression",),
    ("exporting",),
    ("models", "data"),
    ("recipes", "report"),
    ("cli",),
)
RUNG = {name: height for height, names in enumerate(LADDER) for name in names}
# The package itself and `python -m bayesify` stand above everything.
ABOVE_ALL = {"__init__", "__main__"}
HEAVY = (
    "torchmetrics",
    "lightning",
    "lightning_fabric",
    "sklearn",
    "matplotlib",
    "scipy",
    "rich",
    "typer",
    "transformers",
    "pandas",
    "torch._dynamo",
)
MOST_LINES = 400


def relative(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def folder_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imported_modules(path: Path) -> set[str]:
    """Return every module of the package that a file names, at any depth of its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)} imports relatively, line {node.lineno}"
            found.add(node.module)
            if node.module == "bayesify":
                found |= {f"bayesify.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "bayesify"}


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_file_imports_only_from_below(path):
    own = folder_of(path)
    if own in ABOVE_ALL:
        return
    assert own in RUNG, f"give {own!r} its place on the ladder"
    for name in sorted(imported_modules(path)):
        if name == "bayesify":
            raise AssertionError(f"{relative(path)} imports the whole package")
        other = name.split(".")[1]
        is_below = RUNG.get(other, len(LADDER)) < RUNG[own]
        assert other == own or is_below, f"{relative(path)} imports {name}, which is not below it"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_file_is_short(path):
    num_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert num_lines <= MOST_LINES, f"{relative(path)} has {num_lines} lines"


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import sys, torch, numpy, safetensors\n"
        "before = set(sys.modules)\n"
        "import bayesify\n"
        f"print([name for name in {HEAVY!r} if name in set(sys.modules) - before])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_every_module_says_what_it_is():
    without = [relative(p) for p in FILES if not ast.get_docstring(ast.parse(p.read_text("utf-8")))]
    assert not without
