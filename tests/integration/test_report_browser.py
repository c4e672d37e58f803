"""The report in a real browser: it works, it says what the record says, it fits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.records import Shape, run_id, write_run
from labctl.analysis.causes.rules import judge_all
from labctl.analysis.explain import explain
from labctl.analysis.explained import Explained
from labctl.runs.data import load
from labctl.views.report.page import render

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # root has none
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--window-size=1280,900",
)


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Explained:
    folder = tmp_path_factory.mktemp("runs") / run_id(0)
    write_run(folder, Shape(steps=120, trace_records=300))
    return explain(load(folder))


@pytest.fixture(scope="module")
def page(explained: Explained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(render(explained, judge_all(explained), "ok"), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    missing = [str(each) for each in (CHROMIUM, DRIVER) if shutil.which(str(each)) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (make host-packages)")
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = Chrome(options=options, service=Service(executable_path=str(DRIVER)))
    chrome.set_page_load_timeout(20)
    yield chrome
    chrome.quit()


@pytest.fixture
def shown(browser: Chrome, page: Path) -> Chrome:
    """Return the browser with the page as it opens on a desk, in the light."""
    emulate(browser, width=1280, scheme="light")
    browser.get(page.as_uri())
    return browser


def emulate(browser: Chrome, *, width: int, scheme: str, media: str = "") -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def ask(browser: Chrome, script: str, *args: Any) -> Any:
    return browser.execute_script(script, *args)


def test_nothing_is_wrong_and_nothing_is_fetched(shown: Chrome) -> None:
    assert shown.get_log("browser") == []  # type: ignore[no-untyped-call]
    assert (
        ask(shown, "return performance.getEntriesByType('resource').map((each) => each.name)") == []
    )
    assert ask(shown, "return document.documentElement.classList.contains('with-js')")


def test_its_policy_lets_no_other_script_run(shown: Chrome) -> None:
    ask(
        shown,
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s);",
    )
    assert ask(shown, "return window.ran === undefined")
    assert "Content Security Policy" in json.dumps(shown.get_log("browser"))  # type: ignore[no-untyped-call]


BARS = """
return Object.fromEntries([...document.querySelectorAll('#chart-waterfall .track')].map((track) => {
  const box = track.getBoundingClientRect();
  return [track.dataset.lane, [...track.querySelectorAll('.bar')].map((bar) => {
    const drawn = bar.querySelector('rect').getBoundingClientRect();
    return {label: bar.dataset.label, start: +bar.dataset.start, length: +bar.dataset.length,
            left: (drawn.left - box.left) / box.width, width: drawn.width / box.width, pixels: drawn.width};
  })];
}));
"""
ROWS = """
return Object.fromEntries([...document.querySelectorAll('table[data-ledger]')].map((table) => [
  table.dataset.ledger, [...table.tBodies[0].rows].map((row) => ({
    label: row.dataset.label, start: +row.dataset.start, length: +row.dataset.length,
    shown_start: row.cells[2].textContent, shown_length: row.cells[3].textContent}))]));
"""


def test_the_bars_of_the_waterfall_are_the_rows_of_the_ledgers(
    shown: Chrome, explained: Explained
) -> None:
    bars, rows = ask(shown, BARS), ask(shown, ROWS)
    assert set(bars) == set(rows) == {"run", *(each.node for each in explained.nodes)}
    for name, drawn in bars.items():
        listed = rows[name]
        assert [(b["label"], b["start"], b["length"]) for b in drawn] == [
            (r["label"], r["start"], r["length"]) for r in listed
        ]
        assert [r["shown_length"].replace("\u202f", "") for r in listed] == [
            f"{r['length']:.3f}" for r in listed
        ]
        for bar in drawn:
            assert bar["left"] == pytest.approx(bar["start"] / explained.ledger.wall_s, abs=0.002)
            wide = bar["length"] / explained.ledger.wall_s
            assert bar["width"] == pytest.approx(wide, abs=0.002)
            assert bar["pixels"] >= 1
    spans = explained.ledger.rows
    assert [bar["length"] for bar in bars["run"]] == [round(each.duration_s, 6) for each in spans]


def test_the_rows_of_a_ledger_sum_to_its_wall_time(shown: Chrome) -> None:
    for name, rows in ask(shown, ROWS).items():
        foot = ask(
            shown,
            "return [...document.querySelector(`table[data-ledger=${arguments[0]}]`).tFoot.rows]"
            ".map((row) => +row.cells[3].dataset.v)",
            name,
        )
        total_s, unexplained_s, wall_s = foot
        assert sum(row["length"] for row in rows) == pytest.approx(total_s, abs=1e-4)
        assert total_s + unexplained_s == pytest.approx(wall_s, abs=1e-4)


def column(browser: Chrome, selector: str, index: int) -> list[str]:
    script = (
        "return [...document.querySelector(arguments[0]).tBodies[0].rows]"
        ".map((row) => row.cells[arguments[1]].textContent.trim())"
    )
    found: list[str] = ask(browser, script, selector, index)
    return found


def press(browser: Chrome, selector: str) -> None:
    ask(browser, "document.querySelector(arguments[0]).click()", selector)


def test_tables_sort_by_number_and_by_word(shown: Chrome) -> None:
    table = "table[data-ledger=run]"
    by_start = column(shown, table, 3)
    press(shown, f"{table} thead th:nth-child(4) button")
    down = [float(each.replace("\u202f", "")) for each in column(shown, table, 3)]
    assert down == sorted(down, reverse=True)
    assert sorted(column(shown, table, 3)) == sorted(by_start)
    head = "return document.querySelector(arguments[0]).getAttribute('aria-sort')"
    assert ask(shown, head, f"{table} thead th:nth-child(4)") == "descending"
    press(shown, f"{table} thead th:nth-child(4) button")
    up = [float(each.replace("\u202f", "")) for each in column(shown, table, 3)]
    assert up == sorted(up)
    press(shown, f"{table} thead th:nth-child(1) button")
    words = column(shown, table, 0)
    assert words == sorted(words)
    assert ask(shown, head, f"{table} thead th:nth-child(4)") is None


def test_all_steps_can_be_paged_through_and_sorted(shown: Chrome, explained: Explained) -> None:
    seen: list[str] = []
    for _ in range(-(-len(explained.steps) // 25)):
        seen += column(shown, "#steps-table", 0)
        press(shown, ".pager [data-page='1']")
    assert [int(each) for each in seen] == [step.index for step in explained.steps]
    press(shown, "#steps-table thead th:nth-child(4) button")
    longest = max(step.duration_ms for step in explained.steps)
    assert column(shown, "#steps-table", 3)[0].replace("\u202f", "") == f"{longest:.3f}"


def test_the_waterfall_zooms_by_button_key_and_drag(shown: Chrome) -> None:
    from selenium.webdriver import ActionChains, Keys
    from selenium.webdriver.common.by import By

    whole = ask(shown, BARS)["run"]
    press(shown, "#chart-waterfall [data-zoom=in]")
    near = ask(shown, BARS)["run"]
    assert near[5]["width"] == pytest.approx(2 * whole[5]["width"], rel=0.05)
    press(shown, "#chart-waterfall [data-zoom=all]")
    assert ask(shown, BARS)["run"] == whole
    track = shown.find_element(By.CSS_SELECTOR, "#chart-waterfall .track")
    ask(shown, "arguments[0].scrollIntoView({block: 'center'})", track)
    across = track.size["width"] // 4
    ActionChains(shown).move_to_element(track).click_and_hold().move_by_offset(
        across, 0
    ).release().perform()
    dragged = ask(shown, BARS)["run"]
    assert dragged[5]["left"] != pytest.approx(whole[5]["left"], abs=0.05)
    focused = "return [...document.querySelectorAll('.bar')].indexOf(document.activeElement)"
    ask(shown, "document.querySelector('#chart-waterfall .bar[tabindex=\"0\"]').focus()")
    before = ask(shown, focused)
    ActionChains(shown).send_keys("0").perform()
    assert ask(shown, BARS)["run"] == whole
    ActionChains(shown).send_keys(Keys.ARROW_RIGHT).perform()
    assert ask(shown, focused) == before + 1
    ActionChains(shown).send_keys(Keys.HOME).perform()
    assert ask(shown, focused) == 0


def test_a_bar_says_its_name_begin_length_and_source(shown: Chrome, explained: Explained) -> None:
    from selenium.webdriver.common.actions.action_builder import ActionBuilder
    from selenium.webdriver.common.by import By

    longest = max(explained.ledger.rows, key=lambda row: row.duration_s)
    number = explained.ledger.rows.index(longest)
    place = ask(
        shown,
        "const bar = document.querySelectorAll('#chart-waterfall [data-lane=run] .bar')[arguments[0]];"
        "bar.scrollIntoView({block: 'center'});"
        "const box = bar.getBoundingClientRect();"
        "return [box.left + box.width / 2, box.top + box.height / 2].map(Math.round)",
        number,
    )
    shown.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    pointer = ActionBuilder(shown)
    pointer.pointer_action.move_to_location(*place)  # type: ignore[no-untyped-call]
    pointer.perform()
    tip = shown.find_element(By.ID, "tip").text
    assert tip.startswith(longest.phase.replace("_", " "))
    assert f"begins at {longest.start_s:.2f}" in tip
    assert f"takes {longest.duration_s:.2f}" in tip
    assert f"by {longest.source}" in tip


@pytest.mark.parametrize("width", [320, 375, 768])
def test_a_narrow_page_does_not_scroll_sideways(browser: Chrome, page: Path, width: int) -> None:
    emulate(browser, width=width, scheme="light")
    browser.get(page.as_uri())
    ask(browser, "for (const each of document.querySelectorAll('details')) each.open = true")
    assert ask(browser, "return document.documentElement.scrollWidth") <= width
    cut = ask(
        browser,
        "return [...document.querySelectorAll('.scroll')].filter((each) => "
        "each.scrollWidth > each.clientWidth && getComputedStyle(each).overflowX !== 'auto').length",
    )
    assert cut == 0


def test_dark_and_paper_have_their_own_colours(browser: Chrome, page: Path) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    seen = []
    for scheme, media in (("light", ""), ("dark", ""), ("dark", "print")):
        emulate(browser, width=1280, scheme=scheme, media=media)
        browser.get(page.as_uri())
        seen.append(ask(browser, ground))
    assert seen == ["rgb(255, 255, 255)", "rgb(18, 22, 28)", "rgb(255, 255, 255)"]
    hidden = ask(browser, "return getComputedStyle(document.querySelector('nav')).display")
    assert hidden == "none"
