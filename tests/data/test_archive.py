import io
import random
import tarfile

import pytest

from bayesify.data.archive import extract

MEMBERS = ("set/one.bin", "set/two.bin")


def write_archive(path, files, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


@pytest.fixture
def content():
    # Bytes that do not compress, so that cutting the archive cuts into them.
    source = random.Random(0)
    return {name: source.randbytes(30_000) for name in MEMBERS}


def names_in(folder):
    return sorted(str(entry.relative_to(folder)) for entry in folder.rglob("*") if entry.is_file())


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_extract_writes_the_named_members_only(tmp_path, content, mode):
    archive = write_archive(tmp_path / "a.tar", {**content, "set/readme.html": b"hello"}, mode)
    extract(archive, MEMBERS, tmp_path / "out")
    assert names_in(tmp_path / "out") == list(MEMBERS)
    assert (tmp_path / "out" / "set" / "two.bin").read_bytes() == content["set/two.bin"]


def test_extract_ignores_members_that_point_outside(tmp_path, content):
    archive = write_archive(tmp_path / "a.tar.gz", {"../evil": b"x", "/evil": b"x", **content})
    extract(archive, MEMBERS, tmp_path / "out")
    assert names_in(tmp_path / "out") == list(MEMBERS)
    assert not (tmp_path / "evil").exists()


def test_extract_refuses_a_link_in_place_of_a_file(tmp_path, content):
    archive = tmp_path / "a.tar"
    write_archive(archive, {"set/one.bin": content["set/one.bin"]}, "w")
    with tarfile.open(archive, "a") as file:
        entry = tarfile.TarInfo("set/two.bin")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/hostname"
        file.addfile(entry)
    with pytest.raises(ValueError, match=r"got one without the files \['set/two.bin'\]"):
        extract(archive, MEMBERS, tmp_path / "out")
    assert names_in(tmp_path / "out") == []


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_extract_truncated_archive_writes_nothing(tmp_path, content, mode, share):
    archive = write_archive(tmp_path / "a.tar", content, mode)
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=r"a\.tar must be a whole tar archive, .* delete it"):
        extract(archive, MEMBERS, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_extract_refuses_what_is_not_an_archive(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(b"<html>not found</html>" * 100)
    with pytest.raises(ValueError, match="must be a whole tar archive, got an unreadable one"):
        extract(tmp_path / "a.tar.gz", MEMBERS, tmp_path / "out")


def test_extract_names_the_members_that_are_lacking(tmp_path, content):
    archive = write_archive(tmp_path / "a.tar", {"set/one.bin": content["set/one.bin"]}, "w")
    with pytest.raises(ValueError, match=r"got one without the files \['set/two.bin'\]"):
        extract(archive, MEMBERS, tmp_path / "out")
    assert names_in(tmp_path / "out") == []


def test_extract_missing_archive_is_reported_as_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        extract(tmp_path / "none.tar", MEMBERS, tmp_path / "out")
