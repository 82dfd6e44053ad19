"""Archives are written whole, read whole, and never trusted."""

import pickle
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from bayesify import archive
from bayesify.archive import ArchiveError, read_archive, write_archive

TENSORS = {
    "a": torch.arange(12.0).view(3, 4),
    "half": torch.randn(5).bfloat16(),
    "empty": torch.zeros(0, 3),
    "scalar": torch.tensor(7, dtype=torch.int64),
}


def test_archive_round_trip_keeps_every_bit(tmp_path: Path) -> None:
    write_archive(tmp_path / "x.safetensors", "test", TENSORS, {"n": 1, "list": [1, 2]})
    tensors, description = read_archive(tmp_path / "x.safetensors", "test")
    assert description == {"n": 1, "list": [1, 2]}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_tied_tensors_are_stored_once(tmp_path: Path) -> None:
    tensor = torch.randn(1000)
    write_archive(tmp_path / "one", "test", {"a": tensor}, {})
    write_archive(tmp_path / "two", "test", {"a": tensor, "b": tensor}, {})
    assert (tmp_path / "two").stat().st_size < (tmp_path / "one").stat().st_size + 200
    assert torch.equal(read_archive(tmp_path / "two", "test")[0]["b"], tensor)


def test_views_of_one_storage_are_not_confused(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    tensors = {"head": base[:3], "all": base, "square": base[:4].view(2, 2), "t": base.view(2, 3).T}
    write_archive(tmp_path / "x", "test", tensors, {})
    found = read_archive(tmp_path / "x", "test")[0]
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write_archive(path, "test", TENSORS, {"version": "old"})

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(archive.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_archive(path, "test", TENSORS, {"version": "new"})
    monkeypatch.undo()
    assert read_archive(path, "test")[1] == {"version": "old"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_every_flipped_bit_of_a_small_archive_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_archive(path, "test", {"a": torch.arange(3.0)}, {"n": 1})
    content = path.read_bytes()
    broken = tmp_path / "broken"
    for position in range(0, len(content)):
        bit = 1 << (position % 8)
        flipped = bytearray(content)
        flipped[position] ^= bit
        broken.write_bytes(flipped)
        with pytest.raises(ArchiveError):
            read_archive(broken, "test")


def foreign_files() -> dict[str, bytes]:
    import io

    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as file:
        file.writestr("data.pkl", b"nothing")
    saved = io.BytesIO()
    torch.save({"a": torch.zeros(2)}, saved)
    return {
        "empty": b"",
        "text": b"not a model at all\n",
        "json": b'{"a": 1}',
        "pickle": pickle.dumps({"a": 1}),
        "zip": zipped.getvalue(),
        "torch": saved.getvalue(),
        "huge header": struct.pack("<Q", 2**62) + b"{}",
        "zeros": bytes(4096),
        "png": b"\x89PNG\r\n\x1a\n" + bytes(100),
    }


@pytest.mark.parametrize("kind", foreign_files())
def test_foreign_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(foreign_files()[kind])
    with pytest.raises(ArchiveError, match=r"x cannot be read as a bayesify file"):
        read_archive(path, "test")


def test_pickle_with_code_is_never_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (open, (str(tmp_path / "ran"), "w"))  # type: ignore[return-value]

    (tmp_path / "x").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ArchiveError):
        read_archive(tmp_path / "x", "test")
    assert not (tmp_path / "ran").exists()


def test_other_safetensors_newer_version_and_other_kind_are_named(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "plain")
    with pytest.raises(ArchiveError, match="not one that bayesify wrote"):
        read_archive(tmp_path / "plain", "test")
    save_file({}, tmp_path / "newer", {"format": "bayesify", "version": "99"})
    with pytest.raises(ArchiveError, match="newer bayesify"):
        read_archive(tmp_path / "newer", "test")
    write_archive(tmp_path / "other", "training run", {}, {})
    with pytest.raises(ArchiveError, match="holds a 'training run', expected a 'model'"):
        read_archive(tmp_path / "other", "model")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_archive(tmp_path / "absent", "model")
