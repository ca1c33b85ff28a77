"""Tests of downloads from a local server."""

import hashlib
import io
import re
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import pytest

from ssl_vision.data.loading.download import fetch, fetching, missing_data
from ssl_vision.errors import InputError


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
    (folder / "set.tar.gz.gone").write_bytes(b"another archive")
    with pytest.raises(InputError, match=r"^A set could not be downloaded to .*batches .*corrupted"):
        fetch("A set", reader, tmp_path / "data")


def test_missing_data_message_names_path_and_remedies_in_one_line():
    message = str(missing_data("STL-10", Path("data/stl10_binary")))
    assert "\n" not in message
    for part in ("STL-10", "data/stl10_binary", "--data.download true", "--data Digits"):
        assert part in message


@pytest.mark.parametrize("kind", [URLError, PermissionError, RuntimeError])
def test_failed_download_error_names_dataset_and_cause(kind):
    raises_input_error = pytest.raises(
        InputError, match=re.escape("CIFAR-10 could not be downloaded to data")
    )
    with raises_input_error as caught, fetching("CIFAR-10", Path("data")):
        raise kind("no\nroute")
    assert "no route" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fetching_propagates_programming_errors():
    with pytest.raises(KeyError), fetching("CIFAR-10", Path("data")):
        raise KeyError
