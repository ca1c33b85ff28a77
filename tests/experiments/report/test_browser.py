"""Tests of the page in a real browser; they are skipped if there is none."""

import itertools

import numpy as np
import pytest
from browser import Browser, one
from pages import css_variables

from ssl_vision.data import Digits
from ssl_vision.experiments.sweeps.study import Record
from ssl_vision.experiments.sweeps.sweep_file import SweepMetric
from ssl_vision.experiments.sweeps.sweep_results import write_results
from ssl_vision.experiments.sweeps.trials import Trial


@pytest.fixture(scope="module")
def browser():
    session = Browser()
    yield session
    session.driver.quit()


@pytest.fixture(scope="module")
def file(evaluated_run):
    return evaluated_run / "report.html"


@pytest.fixture(scope="module")
def sweep_file(tmp_path_factory):
    """The page of a made-up sweep of two temperatures and two batch sizes."""
    folder, records = tmp_path_factory.mktemp("sweep"), []
    for number, (temperature, size) in enumerate(itertools.product((0.1, 0.5), (64, 128))):
        varied = {"temperature": temperature, "batch_size": size}
        trial = Trial(f"temperature={temperature},batch_size={size}", varied, varied)
        (folder / trial.name).mkdir()
        lines = [f"{epoch},{epoch},{0.5 + 0.1 * number + 0.02 * epoch}" for epoch in range(3)]
        (folder / trial.name / "metrics.csv").write_text("\n".join(["step,epoch,val/knn_top1", *lines, ""]))
        records.append(Record(trial, "finished", 0.54 + 0.1 * number, ""))
    write_results(folder, records, SweepMetric("val/knn_top1", "maximize"))
    return folder / "sweep.html"


PLOT = "#map .plot"
POINTS = "JSON.parse(document.querySelector('#map script.points').textContent)"
TRACES = "[...document.querySelectorAll('#map .scatterlayer .trace')]"
CLICK = ("mouseMoved", "mousePressed", "mouseReleased")
SHOWN = f"{TRACES}.map(t => t.querySelectorAll('.point').length)"


def isolated_point(browser):
    """Return the point of the map that is farthest from all others, and its position in the window."""
    positions = np.array(browser(f"{POINTS}.layouts['t-SNE']"), dtype=float).T
    distance = np.linalg.norm(positions[:, None] - positions, axis=2) + 1e9 * np.eye(len(positions))
    point = int(distance.min(axis=1).argmax())
    x, y = positions[point].tolist()
    in_window = (
        f"((r, x, y) => [r.x + x._offset + x.d2p({x}), r.y + y._offset + y.d2p({y})])"
        f"({one(PLOT)}.getBoundingClientRect(), {one(PLOT)}._fullLayout.xaxis, {one(PLOT)}._fullLayout.yaxis)"
    )
    return point, browser(in_window)


def test_every_chart_is_drawn_without_an_error_or_a_request(browser, file):
    browser.open(file)
    count = browser.show_all()
    marks = "document.querySelectorAll('.plot .trace, .plot .heatmaplayer image').length"
    assert browser(marks) >= count >= 13
    assert browser.errors() == []
    assert browser.requests() == []


def test_hovering_a_point_shows_its_image(browser, file):
    browser.open(file)
    browser.show(PLOT)
    point, (x, y) = isolated_point(browser)
    browser.mouse(x, y)
    browser.until(f"{one('#map .panel .tile')} !== null")
    data = browser(POINTS)
    row, name = data["rows"][point], data["names"][data["classes"][point]]
    assert f"image {row}, {name}" in browser(f"{one('#map .panel')}.textContent")
    ring = browser(f"{one(PLOT)}.data.at(-1)")
    assert [ring["x"][0], ring["y"][0]] == [axis[point] for axis in data["layouts"]["t-SNE"]]
    image = Digits().split("test").images[row].permute(1, 2, 0).numpy()
    tile = browser.pixels("#map .panel > .tile")
    centres = [int((i + 0.5) * len(tile) / 8) for i in range(8)]
    np.testing.assert_allclose(tile[centres][:, centres], image, atol=3)
    neighbours = browser(
        "[...document.querySelectorAll('#map .near .tile')].map(t => t.getAttribute('aria-label'))"
    )
    assert neighbours == [
        f"image {data['rows'][j]}, {data['names'][data['classes'][j]]}" for j in data["near"][point]
    ]
    assert browser.errors() == []


def test_click_selects_point_and_arrow_keys_select_others(browser, file):
    browser.open(file)
    browser.show(PLOT)
    _, (x, y) = isolated_point(browser)
    browser.mouse(x, y, *CLICK)
    browser(f"{one(PLOT)}.focus()")
    panel_text = f"{one('#map .panel')}.textContent"
    texts = {browser(panel_text)}
    for key in ("ArrowLeft", "ArrowUp", "ArrowRight", "ArrowDown", "ArrowDown"):
        browser.key(key)
        texts.add(browser(panel_text))
    assert len(texts) == 4


def test_click_on_a_class_in_the_legend_hides_its_points_and_no_others(browser, file):
    browser.open(file)
    browser.show(PLOT)
    data = browser(POINTS)
    sizes = [data["classes"].count(k) for k in range(len(data["names"]))]
    browser.until(f"{SHOWN}.slice(0, {len(sizes)}).join() === '{','.join(map(str, sizes))}'")
    box = "document.querySelectorAll('#map .legendtoggle')[3].getBoundingClientRect()"
    browser.mouse(*browser(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({box})"), *CLICK)
    remaining = [size for k, size in enumerate(sizes) if k != 3]
    browser.until(f"{SHOWN}.filter(n => n).join() === '{','.join(map(str, remaining))}'")
    browser("document.querySelector('#theme').click()")
    assert browser(f"{one(PLOT)}.data[3].visible") == "legendonly"


def test_layout_switch_moves_points(browser, file):
    browser.open(file)
    browser.show(PLOT)
    browser("document.querySelector('#map .layouts input[value=PCA]').click()")
    data = browser(POINTS)
    first = [x for x, k in zip(data["layouts"]["PCA"][0], data["classes"], strict=True) if k == 0]
    browser.until(f"{one(PLOT)}.data[0].x[0] === {first[0]}")
    assert browser(f"{one(PLOT)}.data[0].x") == first


def test_a_layer_is_switched_in_all_charts_of_its_section(browser, file):
    browser.open(file)
    plots = "[...document.querySelectorAll('#curves .plot')]"
    browser.until(f"{plots}.every(p => p.data)")
    browser("document.querySelector('#curves .switches input[value=hidden]').click()")
    visible = f"{plots}.flatMap(p => p.data.map(t => [t.name, t.visible]))"
    browser.until(f"{visible}.every(([name, on]) => on === (name !== 'hidden'))")


def test_dark_theme_follows_system_setting_and_button(browser, file):
    browser.open(file, dark=True)
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = browser(paper)
    ink = f"{one('#curves .plot')}._fullLayout.font.color"
    browser.until(f"{one('#curves .plot')}.data")
    dark_ink = browser(ink)
    browser("document.querySelector('#theme').click()")
    light = browser(paper)
    assert sum(map(int, light[4:-1].split(", "))) > 600 > 200 > sum(map(int, dark[4:-1].split(", ")))
    browser.until(f"{ink} !== '{dark_ink}'")
    browser.open(file, dark=False)
    assert browser(paper) == light


def test_charts_have_the_colours_of_the_page_and_follow_its_theme(browser, file):
    browser.open(file)
    browser.show_all()
    classes = f"{one(PLOT)}.data.map(trace => trace.marker.color)"
    themes = []
    for theme in css_variables():
        colours = [theme[f"c{place}"] for place in range(10)]
        themes.append([f"rgb({', '.join(str(int(c[i : i + 2], 16)) for i in (1, 3, 5))})" for c in colours])
        browser.until(f"{one('#curves .plot')}.data[0].line.color === '{themes[-1][0]}'")
        assert browser(classes)[:10] == themes[-1]
        marks = browser(
            "[...document.querySelectorAll('#curves .switches span')].map(m => getComputedStyle(m).color)"
        )
        assert marks == themes[-1][:3]
        browser("document.querySelector('#theme').click()")
    assert not set(themes[0]) & set(themes[1])


def test_summary_fits_in_one_screen_and_images_are_large(browser, file):
    browser.open(file, width=1400)
    assert browser(f"{one('.summary')}.getBoundingClientRect().bottom") < 900
    width = "getBoundingClientRect().width"
    assert browser(f"{one('#neighbours .tile')}.{width}") > 90
    assert browser(f"{one('#negatives .tile')}.{width}") > 90
    browser.open(file, width=390)
    assert browser(f"{one('#neighbours .tile')}.{width}") > 90


@pytest.mark.parametrize("dark", [False, True])
def test_sweep_page_has_charts_and_themes(browser, sweep_file, dark):
    browser.open(sweep_file, dark=dark)
    assert browser.show_all() == 4
    paper = browser("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(", "))) < 200) == dark
    assert browser.errors() == []
    assert browser.requests() == []


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_nothing_is_wider_than_the_window(browser, file, sweep_file, kind, width):
    browser.open(file if kind == "run" else sweep_file, width=width)
    browser.show_all()
    browser("document.querySelectorAll('details').forEach(d => d.open = true)")
    root = "document.documentElement"
    assert browser(f"{root}.scrollWidth <= {root}.clientWidth")


def test_controls_are_named_and_map_is_reachable_by_keyboard(browser, file):
    browser.open(file)
    controls = "button, input, summary, [role=img], [role=region], [role=application]"
    name = "e.ariaLabel || e.textContent.trim() || e.closest('label')?.textContent.trim()"
    assert browser(f"[...document.querySelectorAll('{controls}')].every(e => {name})")
    assert browser(f"{one(PLOT)}.tabIndex") == 0
    assert browser("[...document.querySelectorAll('th')].every(t => t.scope)")
    ids = browser("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
