"""A graph as compiled code in a .pt2 package, for this kind of processor: AOTInductor.

What `torch._inductor.aoti_load_package` reads back, from Python or from C++, runs without tracing
and without compiling. A package holds machine code: it belongs to the kind of processor it was made
on, is as trustworthy as whoever made it, and names folders of the machine that compiled it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesify.exporting.torch_file import quiet
from bayesify_runtime import MANIFEST_KEY

_CODE = "/data/aotinductor/"


def require_compiler() -> None:
    """Check that there is a C++ compiler."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        found = shutil.which(get_cpp_compiler())
    except (InvalidCxxCompiler, RuntimeError):
        found = None
    if found is None:
        raise RuntimeError(
            "compiling a model ahead of time needs a C++ compiler, and there is none: install g++ "
            "or clang, name it in the variable CXX, or export without compiling"
        )


def aot_content(program: Any, manifest: dict[str, Any]) -> bytes:
    """Return the bytes of a compiled .pt2 package of an exported program.

    Args:
        program: What `trace` returned.
        manifest: What travels inside, under the key of all exported files.
    """
    require_compiler()
    configs = {"aot_inductor.metadata": {MANIFEST_KEY: json.dumps(manifest)}}
    with tempfile.TemporaryDirectory() as folder, quiet(), torch.no_grad():
        path = Path(folder) / "model.pt2"
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(path), inductor_configs=configs
        )
        return path.read_bytes()


class AotRunner:
    """Runs the bytes of a compiled .pt2 package."""

    def __init__(self, content: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.pt2"
            path.write_bytes(content)
            # Its code is read into memory here; the file is not needed afterwards.
            self._model = torch._inductor.aoti_load_package(str(path))

    def __call__(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the outputs by name."""
        with torch.no_grad():
            return self._model(*inputs)


def is_aot(path: Path) -> bool:
    """Return whether a .pt2 file is a compiled package, not a program of torch.export."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as package:
        return any(_CODE in name for name in package.namelist())


def read_manifest_of_aot(path: Path) -> dict[str, Any]:
    """Return the manifest inside a compiled .pt2 package, of which no code is run."""
    with zipfile.ZipFile(path) as package:
        for name in package.namelist():
            if _CODE in name and name.endswith("_metadata.json"):
                text = json.loads(package.read(name)).get(MANIFEST_KEY)
                if text is not None:
                    return json.loads(text)
    raise ValueError(f"{path} holds no manifest: it was not written by bayesify.export")
