"""Tensors and a JSON description in one file: written whole or not at all, checked when read.

The file is plain safetensors; the description and a digest of everything sit in its metadata.
Nothing is ever unpickled, so a file from a stranger cannot run code.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FORMAT = "bayesify"
VERSION = 1


class ArchiveError(ValueError):
    """A file is not what it should be; the message says which file, and what is wrong with it."""


def write_archive(
    path: str | os.PathLike[str], kind: str, tensors: Mapping[str, Tensor], description: Any
) -> None:
    """Write an archive atomically: a reader sees the old file or the new one, never a part.

    Tensors that are one and the same (tied weights) are stored once; shards of FSDP are gathered,
    for which every rank must call this.
    """
    from safetensors.torch import save

    tensors = {name: whole(tensor) for name, tensor in tensors.items()}
    unique: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for name, tensor in tensors.items():
        place = (tensor.device, tensor.data_ptr())
        identity = (*place, tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and identity in seen:
            aliases[name] = seen[identity]
            continue
        seen[identity] = name
        unique[name] = tensor.detach().to("cpu", copy=True).contiguous()
    text = json.dumps({"aliases": aliases, "description": description}, allow_nan=True)
    metadata = {"format": FORMAT, "version": str(VERSION), "kind": kind, "content": text}
    metadata["digest"] = _digest(unique, metadata)
    content = save(unique, metadata)
    write_atomically(path, lambda file: file.write(content))


def read_archive(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], Any]:
    """Read an archive of this kind, all of it, or raise an ArchiveError."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    tensors, metadata = _read_tensors(path)
    if metadata.get("format") != FORMAT:
        raise ArchiveError(f"{path} is a safetensors file, but not one that bayesify wrote")
    _check_version(path, metadata.get("version", ""))
    if metadata.get("digest") != _digest(tensors, metadata):
        raise ArchiveError(f"{path} is damaged: its content does not match its digest")
    if metadata.get("kind") != kind:
        raise ArchiveError(f"{path} holds a {metadata.get('kind')!r}, expected a {kind!r}")
    try:
        content = json.loads(metadata["content"])
        for name, original in content["aliases"].items():
            tensors[name] = tensors[original]
        return tensors, content["description"]
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise ArchiveError(f"{path} is damaged: its description cannot be read") from error


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor in one piece: shards of FSDP are gathered."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor.detach() if gather is None else gather().detach()


def write_atomically(path: str | os.PathLike[str], write: Callable[[Any], object]) -> None:
    """Fill a temporary file beside `path`, flush it to disk, then put it in place."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        # A temporary file is private; the finished one is as open as any file the user makes.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except (SafetensorError, ValueError, RuntimeError, OSError, KeyError, AttributeError) as error:
        raise ArchiveError(
            f"{path} cannot be read as a bayesify file: it is truncated, damaged or of another "
            f"kind ({error})"
        ) from error


def _check_version(path: Path, version: str) -> None:
    if not version.isdigit():
        raise ArchiveError(f"{path} is damaged: its version reads {version!r}")
    if int(version) > VERSION:
        raise ArchiveError(
            f"{path} was written by a newer bayesify (file version {version}; this one reads up "
            f"to {VERSION}): upgrade bayesify to read it"
        )


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Hash names, types, shapes, bytes and metadata, so that no bit can change unseen."""
    digest = hashlib.sha256()
    for key in sorted(set(metadata) - {"digest"}):
        digest.update(f"{key}={metadata[key]}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}\n".encode())
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
