"""Tests of downloads from a local server."""

import hashlib
import io
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from ssl_vision.data.loading.download import download, fetch
from ssl_vision.errors import InputError

CONTENT = bytes(range(256)) * 3000


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path):
    """Yield a folder and the address at which a local server serves it."""
    folder = tmp_path / "served"
    folder.mkdir()
    http_server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder))
    threading.Thread(target=http_server.serve_forever, args=(0.01,), daemon=True).start()
    yield folder, f"http://127.0.0.1:{http_server.server_port}"
    http_server.shutdown()
    http_server.server_close()


def md5(content):
    return hashlib.md5(content).hexdigest()


def test_download_saves_file_and_does_not_fetch_it_twice(server, tmp_path):
    folder, address = server
    (folder / "a.bin").write_bytes(CONTENT)
    path = tmp_path / "new" / "a.bin"
    download(f"{address}/a.bin", path, md5=md5(CONTENT))
    assert path.read_bytes() == CONTENT
    (folder / "a.bin").unlink()
    download(f"{address}/a.bin", path, md5=md5(CONTENT))


def test_checksum_mismatch_raises_and_keeps_existing_file(server, tmp_path):
    folder, address = server
    (folder / "a.bin").write_bytes(CONTENT)
    path = tmp_path / "a.bin"
    path.write_bytes(b"damaged")
    with pytest.raises(RuntimeError, match=f"{md5(CONTENT)}, not {md5(b'other')}"):
        download(f"{address}/a.bin", path, md5=md5(b"other"))
    assert path.read_bytes() == b"damaged"
    assert {file.name for file in tmp_path.iterdir()} == {"served", "a.bin"}


def test_fetch_unpacks_dataset_and_reports_failed_download(server, tmp_path):
    folder, address = server
    with tarfile.open(folder / "set.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("batches/one")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"one"))
    reader = SimpleNamespace(
        base_folder="batches",
        filename="set.tar.gz",
        url=f"{address}/set.tar.gz",
        tgz_md5=md5((folder / "set.tar.gz").read_bytes()),
    )
    fetch("A set", reader, tmp_path / "data")
    assert (tmp_path / "data" / "batches" / "one").read_bytes() == b"one"
    reader.url += ".gone"
    (tmp_path / "data" / "set.tar.gz").unlink()
    with pytest.raises(InputError, match=r"^A set could not be downloaded to .*batches .*404"):
        fetch("A set", reader, tmp_path / "data")
