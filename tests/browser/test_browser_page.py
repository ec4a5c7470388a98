"""The report's page in headless Chromium: it loads in silence, its controls work, it prints.

With UNITSPHERE_SCREENSHOTS=DIR it leaves screenshots there, to be looked at.
"""

import itertools
import json
import os
import threading
from pathlib import Path

import pytest
from browser.chromium import Chromium, wait
from report.made_up import NASTY, make_quickstart, make_run, record

from unitsphere.report.serve import server
from unitsphere.report.write import write_page

pytestmark = pytest.mark.browser
SHOTS = os.environ.get("UNITSPHERE_SCREENSHOTS")
FIRST = "#figure-val-bits-per-byte"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    """A quickstart's page, with hostile words wherever a user's may be."""
    folder = make_quickstart(tmp_path_factory.mktemp("browser") / "quickstart", nasty=NASTY)
    return write_page(folder).path.as_uri()


@pytest.fixture
def page(chromium, address):
    """The page, fresh; afterwards nothing has been complained of or asked for."""
    chromium.open(address)
    yield chromium
    assert chromium.errors() == []
    assert chromium.requests() == [address]


def pressed(page: Chromium, selector: str) -> bool:
    return page.run(f"document.querySelector('{selector}').getAttribute('aria-pressed')") == "true"


def ink(page: Chromium, selector: str = FIRST) -> int:
    """What a plot shows, as a number that changes with it."""
    return page.run(
        f"[...document.querySelector('{selector} canvas').toDataURL()]"
        ".reduce((a, c) => (a * 31 + c.charCodeAt(0)) | 0, 0)"
    )


def choose(page: Chromium, selector: str, value: str) -> None:
    page.run(
        f"(e => {{ e.value = {json.dumps(value)}; e.dispatchEvent(new Event('change')); "
        f"e.dispatchEvent(new Event('input')) }})(document.querySelector('{selector}'))"
    )
    page.settle()


def test_it_loads_in_silence_and_draws_every_figure(page):
    figures, plots = page.run(
        "[document.querySelectorAll('[data-figure]').length, "
        "document.querySelectorAll('[data-figure] canvas').length]"
    )
    assert figures == plots >= 5
    assert page.run("document.images.length && ![...document.images].some(i => !i.complete)")
    assert page.run("window.alerted === undefined && !document.querySelector('img[onerror]')")
    assert NASTY in page.run("document.body.textContent")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1440])
def test_it_fits_every_width_and_leaves_screenshots(chromium, address, tmp_path, width, dark):
    chromium.open(address, width, dark=dark)
    assert chromium.run("document.documentElement.scrollWidth") <= width
    ground = chromium.run("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(19, 22, 26)") is dark
    name = f"quickstart-{width}-{'dark' if dark else 'light'}.png"
    shot = chromium.picture((Path(SHOTS) if SHOTS else tmp_path) / name)
    assert shot.stat().st_size > 30_000


def test_the_axis_can_be_chosen_and_logarithmic_and_lines_smoothed(page):
    seen = [ink(page)]
    for key in ("tokens", "time", "flops"):
        choose(page, "#group-0-axis", key)
        seen.append(ink(page))
    page.click("#group-0-log-y")
    assert pressed(page, "#group-0-log-y")
    seen.append(ink(page))
    page.click("#group-0-log-x")
    seen.append(ink(page))
    assert len(set(seen)) == len(seen)
    before = ink(page, "#figure-loss")
    choose(page, "#group-0-smoothing", "0")
    assert ink(page, "#figure-loss") != before


def test_a_drag_zooms_all_plots_and_a_double_click_shows_all(page):
    whole = ink(page), ink(page, "#figure-loss")
    page.drag(f"{FIRST} .u-over", 0.3, 0.6)
    assert page.run(f"document.querySelector('{FIRST}').dataset.zoom") == "in"
    assert page.run("document.querySelector('#figure-loss').dataset.zoom") == "in"
    assert ink(page) != whole[0]
    x, y = page.middle(f"{FIRST} .u-over")
    for clicks in (1, 2):
        page.mouse("mousePressed", x, y, clicks)
        page.mouse("mouseReleased", x, y, clicks)
    page.settle()
    assert page.run(f"document.querySelector('{FIRST}').dataset.zoom") == "all"
    page.click("#group-0-in")
    assert page.run("document.querySelector('#figure-loss').dataset.zoom") == "in"
    page.click("#group-0-reset")
    assert page.run("document.querySelector('#figure-loss').dataset.zoom") == "all"


def test_the_pointer_reads_the_lines(page):
    x, y = page.middle(f"{FIRST} .u-over")
    page.mouse("mouseMoved", x, y)
    page.settle()
    said = page.run(f"document.querySelector('{FIRST} .tip').innerText")
    assert "100 optimizer steps" in said or "120 optimizer steps" in said
    assert "ngpt" in said


def test_a_keyboard_reads_zooms_and_hears(page):
    page.run(f"document.querySelector('{FIRST} .plot').focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    said = page.run(f"document.querySelector('{FIRST} [aria-live]').textContent")
    assert said.startswith("40 optimizer steps: ")
    assert "gpt-plus" in said
    page.press("+", "+")
    assert page.run(f"document.querySelector('{FIRST}').dataset.zoom") == "in"
    page.press("0", "0")
    assert page.run(f"document.querySelector('{FIRST}').dataset.zoom") == "all"


def test_a_line_can_be_hidden_in_all_plots(page):
    before = ink(page, "#figure-loss")
    page.click(f"{FIRST} .legend button[data-name=ngpt]")
    assert not pressed(page, "#figure-loss .legend button[data-name=ngpt]")
    assert ink(page, "#figure-loss") != before


def test_tables_sort_by_numbers_both_ways(page):
    head = "#results th:nth-child(2) button"
    first = "document.querySelector('#results tbody th').textContent"
    page.click(head)
    assert page.run(first) == "gpt-plus"
    page.click(head)
    assert page.run(first) == "ngpt"
    assert (
        page.run("document.querySelector('#results th[aria-sort]').getAttribute('aria-sort')")
        == "descending"
    )


def test_the_theme_can_be_switched_and_is_kept(page, address):
    ground = "getComputedStyle(document.body).backgroundColor"
    choose(page, "#theme", "dark")
    assert page.run(ground) == "rgb(19, 22, 26)"
    page.open(address)
    assert page.run(ground) == "rgb(19, 22, 26)"
    choose(page, "#theme", "auto")
    assert page.run(ground) == "rgb(251, 251, 249)"


def test_everything_has_a_name_for_a_screen_reader(page):
    page.call("Accessibility.enable")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "slider", "combobox", "region", "table", "link", "image", "navigation"}
    seen = set()
    for node in nodes:
        role = node.get("role", {}).get("value")
        if role in roles and not node["ignored"]:
            seen.add(role)
            assert node.get("name", {}).get("value"), node
    assert {"button", "slider", "combobox", "region", "table", "link", "navigation"} <= seen
    landmarks = {node.get("role", {}).get("value") for node in nodes}
    assert {"banner", "main", "navigation", "contentinfo"} <= landmarks
    levels = page.run("[...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    page.call("Accessibility.disable")


def test_it_prints_its_drawn_figures(page, tmp_path):
    page.call("Emulation.setEmulatedMedia", {"media": "print"})
    shown = "getComputedStyle(document.querySelector('{}')).display"
    assert page.run(shown.format(f"{FIRST} .still")) == "block"
    assert page.run(shown.format(f"{FIRST} .plot")) == "none"
    assert page.run(shown.format("nav")) == "none"
    page.call("Emulation.setEmulatedMedia", {"media": ""})
    pdf = page.pdf((Path(SHOTS) if SHOTS else tmp_path) / "quickstart.pdf")
    assert pdf.read_bytes()[:5] == b"%PDF-"


def test_a_served_page_follows_a_run_and_keeps_what_was_chosen(chromium, tmp_path):
    run = make_run(tmp_path / "run", "quickstart/ngpt", steps=400, until=100)
    with server(run, 0) as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.05,))
        thread.start()
        try:
            chromium.open(f"http://127.0.0.1:{serving.server_address[1]}/")
            assert "step 100 of 400" in chromium.run("document.body.innerText")
            choose(chromium, "#group-0-axis", "tokens")
            with (run / "metrics.jsonl").open("a") as file:
                file.writelines(json.dumps(record(s, 0.3)) + "\n" for s in range(101, 401))
            wait(lambda: "step 100 of 400" not in chromium.run("document.body.innerText"))
            assert "400 of 400" in chromium.run("document.body.innerText")
            chromium.settle()
            assert chromium.run("document.getElementById('group-0-axis').value") == "tokens"
            assert chromium.run("document.querySelectorAll('canvas').length") >= 5
            assert chromium.errors() == []
        finally:
            chromium.open("about:blank")  # or the page asks a server that is gone, in the next test
            serving.shutdown()
            thread.join()


@pytest.mark.parametrize("width", [360, 1440])
def test_more_than_six_runs_are_small_plots_that_zoom_together(chromium, tmp_path, width):
    for place in range(7):
        make_run(tmp_path / "runs" / f"run-{place}", "quickstart/ngpt", steps=40 + place)
    chromium.open(write_page(tmp_path / "runs").path.as_uri(), width)
    assert chromium.run("document.querySelectorAll('#figure-loss .panel canvas').length") == 7
    assert chromium.run("document.querySelectorAll('#figure-loss .legend button').length") == 0
    assert chromium.run("document.querySelector('#figure-loss .axis').textContent")
    assert chromium.run("document.documentElement.scrollWidth") <= width
    chromium.click("#group-0-in")
    assert chromium.run("document.querySelector('#figure-loss').dataset.zoom") == "in"
    assert chromium.errors() == []
