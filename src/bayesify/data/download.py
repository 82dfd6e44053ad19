"""Fetch published files, checked by md5 and never left half-written."""

from __future__ import annotations

import hashlib
import os
import ssl
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO
from urllib.error import URLError
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
    failures: dict[Resource, list[str]] = {}
    for resource in resources:
        path = folder / resource.name
        if path.is_file() and md5_of(path) == resource.md5:
            continue
        causes = ["not tried, because download=False"]
        if download:
            causes = _download_from_any(resource, path, timeout_s)
        if causes:
            failures[resource] = causes
            download = download and not _is_unreachable(causes)
    if failures:
        raise DataNotFoundError(_explain(failures, folder))
    return [folder / resource.name for resource in resources]


def md5_of(path: Path) -> str:
    """Return the md5 checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
