"""Tests of the documentation site: links resolve, every name has an entry, nothing external is loaded."""

import http.server
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from loopback import serving
from scripts import import_script

pytestmark = pytest.mark.docs

pytest.importorskip("mkdocs", reason="the site is built where the extra docs is installed")

ROOT = Path(__file__).parent.parent
REFERENCE = sorted((ROOT / "docs" / "api").glob("*.md"))
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Folder of the built site; a broken link or anchor fails the build."""
    folder = tmp_path_factory.mktemp("site")
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return folder


def entries(page):
    """Full names of the objects that a reference page describes, in page order."""
    return re.findall(r"^::: (.+)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("package", ["objectives", "metrics", "data", "encoders", "methods", "callbacks"])
def test_every_public_name_of_a_package_has_one_entry(package):
    described = entries(ROOT / "docs" / "api" / f"{package}.md")
    names = [name.rpartition(".")[2] for name in described if name.startswith(f"ssl_vision.{package}.")]
    assert sorted(names) == sorted(importlib.import_module(f"ssl_vision.{package}").__all__)


@pytest.mark.parametrize("page", REFERENCE, ids=lambda page: page.stem)
def test_a_reference_page_begins_with_a_table_of_its_entries(site, page):
    html = (site / "api" / page.stem / "index.html").read_text(encoding="utf-8")
    table = html[html.index("<table>") : html.index("</table>")]
    rows = re.findall(r'<td><a [^>]*href="#([\w.]+)"[^>]*>.*?</td>\s*<td>(.+?)</td>', table, flags=re.DOTALL)
    assert [name for name, _ in rows] == entries(page)
    assert html.index("<table>") < html.index("<h2")
    for name, _ in rows:
        assert len(re.findall(rf'<h3 id="{re.escape(name)}"', html)) == 1, name


def test_objectives_reference_begins_with_infonce():
    first = [name.rpartition(".")[2] for name in entries(ROOT / "docs" / "api" / "objectives.md")[:4]]
    assert first == ["InfoNCE", "DCL", "DualTemperature", "MACL"]


def test_docstring_examples_render_as_code(site):
    for file in (site / "api").rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        assert "<blockquote>" not in text, file
    assert '<span class="gp">&gt;&gt;&gt; </span>' in (site / "api" / "objectives" / "index.html").read_text()


def equations():
    """The module that converts equations."""
    return import_script(ROOT / "docs" / "hooks" / "equations.py")


def test_equations_become_mathml():
    page = SimpleNamespace(file=SimpleNamespace(src_path="page.md"))
    html = (
        r'<p><span class="arithmatex">\(a &lt; \frac{b}{c}\)</span></p><div class="arithmatex">\[x^2\]</div>'
    )
    inline, block = re.findall(r"<math.*?</math>", equations().on_page_content(html, page))
    assert re.sub(r"<mo[^>]*>", "<mo>", inline) == (
        "<math><mi>a</mi><mo>&lt;</mo><mfrac><mi>b</mi><mi>c</mi></mfrac></math>"
    )
    assert block == '<math display="block"><msup><mi>x</mi><mn>2</mn></msup></math>'


def test_unknown_tex_command_fails_build_and_names_page():
    from mkdocs.exceptions import PluginError

    page = SimpleNamespace(file=SimpleNamespace(src_path="page.md"))
    with pytest.raises(PluginError, match=r"page\.md: \\unknown"):
        equations().on_page_content(r'<span class="arithmatex">\(\unknown\)</span>', page)


def test_docstring_equations_render_as_mathml(site):
    html = (site / "api" / "objectives" / "index.html").read_text(encoding="utf-8")
    assert re.search(r'<math display="block">.*?log.*?<msup><mi>e</mi><mi>d</mi></msup>', html)


def test_no_page_loads_external_resources(site):
    for file in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe|link)\b[^>]*?(?:src|href)="([^"]+)"', file.read_text())
        assert not [address for address in loaded if "//" in address], file


def test_relative_links_of_root_markdown_files_resolve():
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / name).read_text(encoding="utf-8")):
            assert target.startswith("https://") or (ROOT / target).exists(), (name, target)


@pytest.fixture
def browser():
    """Chromium, driven by chromedriver."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not (CHROMIUM and DRIVER):
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def address(site):
    """The address at which the site is served."""

    class Files(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=site)

        def log_message(self, *args):
            pass

    with serving(Files) as address:
        yield address


# finds pages wider than the window, unconverted TeX, and table words broken over two lines
FIND_FAULTS = r"""
const width = document.documentElement.scrollWidth, faults = [];
if (width > innerWidth) faults.push(`${width} pixels wide`);
const texts = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
    const node = texts.currentNode, parent = node.parentElement;
    if (parent.closest("pre, script, style")) continue;
    if (!parent.closest("code, .doc-signature") && /\$|\\[()[\]]/.test(node.data)) faults.push(node.data);
    if (!parent.closest("td, th")) continue;
    for (const word of node.data.matchAll(/[\p{L}\p{N}_]+/gu)) {
        const range = document.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        const lines = new Set([...range.getClientRects()].map(box => box.top));
        if (lines.size > 1) faults.push(`broken: ${word[0]}`);
    }
}
return faults;
"""


def faults(browser, address, pages):
    """Layout faults of pages on a phone and in a window of 1,400 pixels, by page and width."""
    by_view = {}
    for width in (390, 1400):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        for page in pages:
            browser.get(f"{address}/{page}")
            by_view[page, width] = browser.execute_script(FIND_FAULTS)
    return {view: messages for view, messages in by_view.items() if messages}


def test_objectives_page_fits_the_window(browser, address):
    assert faults(browser, address, ["objectives/"]) == {}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_page_fits_the_window(browser, address, site):
    pages = [f"{file.parent.relative_to(site)}/" for file in site.rglob("index.html")]
    assert len(pages) > 25
    assert faults(browser, address, pages) == {}
