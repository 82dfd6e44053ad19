"""Fetch published files, checked by md5 and never left half-written."""

from __future__ import annotations

import hashlib
import os
import ssl
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

TIMEOUT_SECONDS = 30.0
CHUNK_BYTES = 1 << 20


class DataNotFoundError(FileNotFoundError):
    """Data files are neither on disk nor to be had from where they are published."""


class RejectedDownloadError(Exception):
    """A file arrived, but not the file that was published."""


# What the network may do to us; a full disk is not among them and is reported as itself.
NETWORK_ERRORS = (
    URLError,
    HTTPException,
    TimeoutError,
    ConnectionError,
    ssl.SSLError,
    RejectedDownloadError,
)


@dataclass(frozen=True)
class Resource:
    """One published file.

    Args:
        name: Name of the file on disk.
        md5: Its published checksum, in hexadecimal.
        addresses: Where it is published, tried in this order.
    """

    name: str
    md5: str
    addresses: tuple[str, ...]


def fetch(
    resources: Sequence[Resource],
    folder: Path,
    *,
    download: bool = True,
    timeout_s: float = TIMEOUT_SECONDS,
) -> list[Path]:
    """Return the paths of these files in `folder`, downloading those that are not there.

    A file that is there with another checksum is replaced, once its replacement has arrived.

    Args:
        resources: The files that are wanted.
        folder: Where they live; made if need be.
        download: Whether the network may be used.
        timeout_s: Longest silence of a server, in seconds.
    """
    missing = [resource for resource in resources if not _is_there(resource, folder)]
    if missing and not download:
        raise DataNotFoundError(_explain(missing, folder, ["not tried, because download=False"]))
    for position, resource in enumerate(missing):
        causes = _download_from_any(resource, folder, timeout_s)
        if causes:
            # One file that cannot be had is enough to stop: silent servers cost a timeout each.
            raise DataNotFoundError(_explain(missing[position:], folder, causes))
    return [folder / resource.name for resource in resources]


def md5_of(path: Path) -> str:
    """Return the md5 checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, _md5).hexdigest()


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name only when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own per writer: several processes may fetch the same file at once.
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with partial.open("wb") as file:
            yield file
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _is_there(resource: Resource, folder: Path) -> bool:
    path = folder / resource.name
    return path.is_file() and md5_of(path) == resource.md5


def _download_from_any(resource: Resource, folder: Path, timeout_s: float) -> list[str]:
    """Return no causes when an address worked, else the cause of each failure."""
    causes = []
    for address in resource.addresses:
        try:
            _download(address, folder / resource.name, resource.md5, timeout_s)
        except NETWORK_ERRORS as error:
            causes.append(f"{address}: {error or type(error).__name__}")
            if isinstance(error, HTTPError):
                error.close()  # it holds the connection open
        else:
            return []
    return causes


def _download(address: str, path: Path, md5: str, timeout_s: float) -> None:
    request = Request(address, headers={"User-Agent": "bayesify"})
    with urlopen(request, timeout=timeout_s) as response, whole_file(path) as file:
        announced = int(response.headers.get("Content-Length") or 0)
        digest, num_bytes = _md5(), 0
        with _progress(path.name, announced) as advance:
            while chunk := response.read(CHUNK_BYTES):
                file.write(chunk)
                digest.update(chunk)
                num_bytes += len(chunk)
                advance(len(chunk))
        if announced and num_bytes != announced:
            raise RejectedDownloadError(f"ended after {num_bytes} of {announced} bytes")
        if digest.hexdigest() != md5:
            raise RejectedDownloadError(
                f"md5 must be {md5}, got {digest.hexdigest()} ({num_bytes} bytes)"
            )


@contextmanager
def _progress(name: str, num_bytes: int) -> Iterator[Callable[[int], object]]:
    """Yield a function that takes the number of bytes that came; quiet without a terminal."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield lambda _: None
        return
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=num_bytes or None)
        yield lambda count: progress.advance(task, count)


def _explain(missing: Sequence[Resource], folder: Path, causes: Sequence[str]) -> str:
    files = [
        f"  {resource.name} (md5 {resource.md5}) from {' or '.join(resource.addresses)}"
        for resource in missing
    ]
    return "\n".join(
        [
            f"data files are missing or damaged in {folder} and could not be downloaded:",
            *(f"  {cause}" for cause in causes),
            f"Connect to the network and load again, or put these files into {folder.resolve()}:",
            *files,
        ]
    )


def _md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)
