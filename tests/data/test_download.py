import hashlib
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bayesify.data.download import DataNotFoundError, Resource, fetch, md5_of, whole_file

CONTENT = b"some published bytes" * 1000
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def published(tmp_path):
    """Return a folder that holds the published file."""
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "file.bin").write_bytes(CONTENT)
    return folder


@pytest.fixture
def serve():
    """Return a function that serves requests on this machine and gives the address."""
    servers = []

    def start(handler):
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


class TruncatingHandler(BaseHTTPRequestHandler):
    """Announce the whole file and send half of it."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[: len(CONTENT) // 2])

    def log_message(self, *arguments):
        pass


class SilentHandler(BaseHTTPRequestHandler):
    """Accept a request and never answer while a test waits."""

    released = threading.Event()

    def do_GET(self):
        self.released.wait(10)

    def log_message(self, *arguments):
        pass


def resource(*addresses, md5=MD5):
    return Resource("file.bin", md5, addresses)


def test_fetch_reads_a_file_address(published, tmp_path):
    target = tmp_path / "deep" / "target"
    (path,) = fetch([resource((published / "file.bin").as_uri())], target)
    assert path == target / "file.bin"
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in target.iterdir()] == ["file.bin"]


def test_fetch_reads_over_http(published, tmp_path, serve):
    address = serve(partial(QuietHandler, directory=str(published)))
    (path,) = fetch([resource(f"{address}/file.bin")], tmp_path / "target")
    assert path.read_bytes() == CONTENT


def test_fetch_leaves_a_file_that_is_there_alone(tmp_path):
    (tmp_path / "file.bin").write_bytes(CONTENT)
    before = (tmp_path / "file.bin").stat().st_mtime_ns
    fetch([resource("http://127.0.0.1:9/file.bin")], tmp_path)
    assert (tmp_path / "file.bin").stat().st_mtime_ns == before


def test_fetch_replaces_a_file_with_another_checksum(published, tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "file.bin").write_bytes(CONTENT[:100])
    fetch([resource((published / "file.bin").as_uri())], target)
    assert (target / "file.bin").read_bytes() == CONTENT


def test_fetch_tries_the_next_address(published, tmp_path, serve):
    missing = f"{serve(partial(QuietHandler, directory=str(published)))}/elsewhere.bin"
    good = (published / "file.bin").as_uri()
    fetch([resource(missing, good)], tmp_path / "target")
    assert md5_of(tmp_path / "target" / "file.bin") == MD5


def test_fetch_wrong_checksum_leaves_nothing_behind(published, tmp_path):
    target = tmp_path / "target"
    wrong = resource((published / "file.bin").as_uri(), md5="0" * 32)
    with pytest.raises(DataNotFoundError, match=f"md5 must be {'0' * 32}, got {MD5}"):
        fetch([wrong], target)
    assert list(target.iterdir()) == []


def test_fetch_wrong_checksum_keeps_the_file_that_was_there(published, tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "file.bin").write_bytes(b"mine")
    with pytest.raises(DataNotFoundError):
        fetch([resource((published / "file.bin").as_uri(), md5="0" * 32)], target)
    assert (target / "file.bin").read_bytes() == b"mine"


def test_fetch_truncated_download_leaves_nothing_behind(tmp_path, serve):
    target = tmp_path / "target"
    with pytest.raises(DataNotFoundError, match=r"ended after 10000 of 20000 bytes"):
        fetch([resource(f"{serve(TruncatingHandler)}/file.bin")], target)
    assert list(target.iterdir()) == []


def test_fetch_gives_up_on_a_silent_server(tmp_path, serve):
    address = f"{serve(SilentHandler)}/file.bin"
    try:
        with pytest.raises(DataNotFoundError, match="timed out"):
            fetch([resource(address)], tmp_path / "target", timeout_s=0.2)
    finally:
        SilentHandler.released.set()


def test_fetch_offline_says_what_to_put_where(tmp_path):
    # Port 9 of this machine refuses connections, as a machine without a network does.
    names = ("one.gz", "two.gz")
    resources = [Resource(name, "a" * 32, (f"http://127.0.0.1:9/{name}",)) for name in names]
    with pytest.raises(DataNotFoundError) as caught:
        fetch(resources, tmp_path)
    message = str(caught.value)
    assert "could not be downloaded:\n  http://127.0.0.1:9/one.gz: " in message
    assert f"put these files into {tmp_path}" in message
    for name in names:
        assert f"{name} (md5 {'a' * 32}) from http://127.0.0.1:9/{name}" in message


def test_fetch_names_only_the_files_that_are_missing(tmp_path):
    (tmp_path / "file.bin").write_bytes(CONTENT)
    other = Resource("other.bin", MD5, ("http://127.0.0.1:9/other.bin",))
    with pytest.raises(DataNotFoundError) as caught:
        fetch([resource("http://127.0.0.1:9/file.bin"), other], tmp_path)
    assert "other.bin" in str(caught.value)
    assert "file.bin (md5" not in str(caught.value)


def test_fetch_does_not_touch_the_network_when_told(published, tmp_path):
    with pytest.raises(DataNotFoundError, match="not tried, because download=False"):
        fetch([resource((published / "file.bin").as_uri())], tmp_path / "target", download=False)
    assert not (tmp_path / "target").exists()


def test_fetch_error_is_a_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        fetch([resource("http://127.0.0.1:9/file.bin")], tmp_path)


def test_whole_file_that_fails_leaves_nothing_behind(tmp_path):
    def interrupted():
        with whole_file(tmp_path / "file.bin") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_whole_file_appears_only_when_it_is_whole(tmp_path):
    with whole_file(tmp_path / "file.bin") as file:
        file.write(b"all")
        assert not (tmp_path / "file.bin").exists()
    assert (tmp_path / "file.bin").read_bytes() == b"all"


def test_md5_of_matches_the_published_value(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    assert md5_of(tmp_path / "empty") == "d41d8cd98f00b204e9800998ecf8427e"


def test_fetch_shows_progress_on_a_terminal(published, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    fetch([resource((published / "file.bin").as_uri())], tmp_path / "target")
    assert "file.bin" in capsys.readouterr().err


def test_fetch_is_quiet_without_a_terminal(published, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    fetch([resource((published / "file.bin").as_uri())], tmp_path / "target")
    assert capsys.readouterr() == ("", "")


def test_fetch_works_without_rich(published, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    fetch([resource((published / "file.bin").as_uri())], tmp_path / "target")
    assert md5_of(tmp_path / "target" / "file.bin") == MD5
