"""Take named files out of a tar archive, all of them or none."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path


def extract(archive: Path, members: Sequence[str], folder: Path) -> None:
    """Write these members of a tar archive below `folder`, under their own names.

    Only the named regular files are read, whatever else the archive holds, so no entry of it can
    reach outside `folder`. Nothing appears until every member has been read.

    Args:
        archive: A tar file, compressed or not.
        members: Names of the wanted files inside it, with forward slashes.
        folder: Where they go.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as stage:
        try:
            with tarfile.open(archive) as file:
                found = _copy_members(file, frozenset(members), Path(stage))
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            # tarfile lists every compression it tried; the first line says enough.
            reason = str(error).partition("\n")[0].rstrip(":")
            raise ValueError(_damaged(archive, f"got an unreadable one ({reason})")) from error
        if lacking := [member for member in members if member not in found]:
            raise ValueError(_damaged(archive, f"got one without the files {lacking}"))
        for member in members:
            (folder / member).parent.mkdir(parents=True, exist_ok=True)
            Path(stage, member).replace(folder / member)


def _copy_members(file: tarfile.TarFile, wanted: frozenset[str], stage: Path) -> set[str]:
    """Return the names of the members that were there; one pass, as seeking back is slow."""
    found = set()
    for entry in file:
        source = file.extractfile(entry) if entry.name in wanted and entry.isreg() else None
        if source is None:
            continue
        path = stage / entry.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with source, path.open("wb") as target:
            shutil.copyfileobj(source, target)
        found.add(entry.name)
    return found


def _damaged(archive: Path, came: str) -> str:
    return f"{archive} must be a whole tar archive, {came}; delete it and load again"
