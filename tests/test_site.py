"""The pages as a site: links lead somewhere, every class has its entry, nothing comes from elsewhere."""

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="the site is built where the extra docs is installed")

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site; a link or an anchor that leads nowhere ends the building."""
    folder = tmp_path_factory.mktemp("site")
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.parametrize("room", ["objectives", "metrics", "data", "encoders", "methods", "callbacks"])
def test_every_class_and_function_of_a_room_is_in_the_reference(room, site):
    page = (site / "api" / room / "index.html").read_text(encoding="utf-8")
    described = set(re.findall(r'id="([\w.]+)"', page))
    module = importlib.import_module(f"ssl_vision.{room}")
    public = {name: getattr(module, name) for name in module.__all__}
    wanted = [name for name, what in public.items() if inspect.isclass(what) or inspect.isfunction(what)]
    assert len(wanted) >= 3
    # a function that is named as its file is listed as of the file
    assert [
        name
        for name in wanted
        if not {f"ssl_vision.{room}.{name}", f"ssl_vision.{room}.{name}.{name}"} & described
    ] == []


def test_no_page_loads_anything_from_elsewhere(site):
    for file in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe|link)\b[^>]*?(?:src|href)="([^"]+)"', file.read_text())
        assert not [address for address in loaded if "//" in address], file


def test_links_of_the_files_beside_the_pages_lead_somewhere():
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / name).read_text(encoding="utf-8")):
            assert target.startswith("https://") or (ROOT / target).exists(), (name, target)
