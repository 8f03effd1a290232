"""The explorer in a headless chromium: it starts clean, filters, opens outputs, fits a phone, and keeps text inert."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvatlas.analysis.studies import online_lm
from kvatlas.analysis.trials import write_parquet
from kvatlas.reporting.explorer.document import write_explorer
from kvatlas.terminal import visible
from tests.support import streams, synthetic
from tests.support.chromium import MISSING, chromium, console, programs, screen

pytest.importorskip("selenium", reason="selenium is not installed (pip install '.[test]')")
pytestmark = pytest.mark.skipif(programs() is None, reason=MISSING)

from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

HOSTILE = (
    "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 2'> | a | `b` ```\n"
    "[link](javascript:window.hurt=3) {{ 7 * 7 }} {% raw %} ${window.hurt = 4} <!-- \u2028 \u202e &lt; 'x' \"y\""
)
MODELS = ("smollm2-135m", "qwen2.5-0.5b")


def report(folder: Path, *, title: str = "Needles", hostile: bool = False) -> Path:
    """Write the explorer of a synthetic run with two studies and two models."""
    folder.mkdir()
    arms = synthetic.ARMS[:9] + synthetic.ARMS[-3:]
    trials = [
        {**trial, "question": HOSTILE if hostile else f"What is the code of {trial['id']}?"}
        for study, contexts in (("needle", (512, 1024)), ("passkey", (2048,)))
        for trial in synthetic.recall_trials(study=study, models=MODELS, arms=arms, contexts=contexts, seeds=2)
    ]
    if hostile:
        trials = [trial | {"output": HOSTILE, "answer": HOSTILE} for trial in trials]
    results = synthetic.results_json([trial for trial in trials if trial["study"] == "needle"])
    passkey = synthetic.results_json([trial for trial in trials if trial["study"] == "passkey"])
    results["studies"] |= passkey["studies"]
    for gate in results["studies"]["needle"]["gates"] if hostile else []:
        gate.update(passed=False, reason=HOSTILE)
    config = {"config": {"title": title, "models": list(MODELS)}}
    for name, value in (("results", results), ("config", config)):
        (folder / f"{name}.json").write_text(json.dumps(value))
    write_parquet(trials, folder / "trials.parquet")
    return write_explorer(folder)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(tmp_path_factory.mktemp("explorer") / "report")


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(tmp_path_factory.mktemp("hostile") / "report", title=HOSTILE, hostile=True)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def opened(browser: Any, page: Path) -> Any:
    """The page on a desktop screen, freshly opened, with nothing remembered."""
    return open_page(browser, page)


def open_page(browser: Any, page: Path, **of_screen: Any) -> Any:
    screen(browser, **({"width": 1280, "height": 900} | of_screen))
    browser.get(page.as_uri())
    browser.execute_script("localStorage.clear()")
    browser.get(page.as_uri())
    return browser


def find(browser: Any, css: str) -> Any:
    return browser.find_element(By.CSS_SELECTOR, css)


def texts(browser: Any, css: str) -> list[str]:
    return [element.text for element in browser.find_elements(By.CSS_SELECTOR, css)]


def arms(browser: Any) -> list[str]:
    return texts(browser, "#arms .arm")


def drawn(browser: Any) -> list[str]:
    """The arms that are points of the charts, as model|mode|arm."""
    script = "return [...document.querySelectorAll('.plot')].flatMap(p => p.data.flatMap(t => t.customdata ?? []))"
    return browser.execute_script(script)


def tick(browser: Any, kind: str, value: str) -> None:
    box = find(browser, f"input[name='{kind}'][value='{value}']")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", box)
    box.click()


def test_the_page_opens_from_disk_without_network_and_without_a_word_on_the_console(opened: Any) -> None:
    assert console(opened) == []
    assert opened.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert opened.title == "Needles · explorer"
    # The first model of the run, both question modes, one heatmap and one chart for each.
    heads = ["SmolLM2-135M-Instruct, question-aware", "SmolLM2-135M-Instruct, question-agnostic"]
    assert texts(opened, "#pareto h3") == texts(opened, "#heat h3") == texts(opened, "#arms .group") == heads
    assert len(opened.find_elements(By.CSS_SELECTOR, "#pareto .plot .main-svg")) >= 2
    assert len(drawn(opened)) == len(arms(opened)) == len(opened.find_elements(By.CSS_SELECTOR, "#heat tbody tr"))


def test_filters_change_the_charts_the_heatmaps_and_the_table(opened: Any) -> None:
    before = len(arms(opened))
    tick(opened, "budgets", "4x")
    assert len(arms(opened)) < before
    assert not [name for name in [*arms(opened), *texts(opened, "#heat tbody th")] if "4x" in name]
    assert not [key for key in drawn(opened) if "-4x" in key]
    assert f"{len(arms(opened))} of" in find(opened, "#status").text
    tick(opened, "methods", "snapkv")
    assert not [name for name in arms(opened) if name.startswith("SnapKV 8x")]
    tick(opened, "quantizers", "int4")
    assert "Full cache, int4" not in arms(opened)
    tick(opened, "modes", "agnostic")
    assert texts(opened, "#pareto h3") == ["SmolLM2-135M-Instruct, question-aware"]
    tick(opened, "models", "qwen2.5-0.5b")
    assert texts(opened, "#pareto h3") == ["SmolLM2-135M-Instruct, question-aware", "qwen2.5-0.5b, question-aware"]
    find(opened, "[aria-label='Methods: none']").click()
    assert arms(opened) == drawn(opened) == []
    assert "No arm" in find(opened, "#pareto").text
    find(opened, "[aria-label='Methods: all']").click()
    assert arms(opened)
    assert console(opened) == []


def test_another_study_brings_its_own_arms_depths_and_prompts(opened: Any) -> None:
    Select(find(opened, "#study")).select_by_visible_text("Passkey")
    assert arms(opened)
    assert texts(opened, "#outputs h3")
    assert all(name.startswith("passkey-2048-") for name in texts(opened, "#outputs h3"))
    assert console(opened) == []


def test_a_study_without_generated_text_shows_its_charts_and_says_so(browser: Any, tmp_path: Path) -> None:
    section = online_lm.aggregate(streams.online_trials(tokens=640))
    for name, value in (("results", {"run": "online", "studies": {"online_lm": section}}), ("config", {})):
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    write_parquet([], tmp_path / "trials.parquet")
    open_page(browser, write_explorer(tmp_path))
    assert len(drawn(browser)) == len(arms(browser)) == len(section["rows"])
    assert not find(browser, "#depth-section").is_displayed()
    assert not find(browser, "#output-controls").is_displayed()
    assert find(browser, "#output-status").text == "No generated text is stored for this choice."
    find(browser, "#arms .arm").click()
    assert find(browser, "#arms [aria-current]").text == "Full cache"
    assert console(browser) == []


def test_an_address_shows_what_was_chosen_when_it_was_copied(opened: Any, page: Path) -> None:
    Select(opened.find_element(By.ID, "study")).select_by_value("passkey")
    Select(opened.find_element(By.ID, "metric")).select_by_index(1)
    opened.find_element(By.CSS_SELECTOR, "fieldset[data-kind=methods] input[value=h2o]").click()
    status, address = opened.find_element(By.ID, "status").text, opened.current_url
    assert "#study=passkey&" in address
    opened.get("about:blank")
    opened.get(address)
    assert opened.find_element(By.ID, "status").text == status
    assert Select(opened.find_element(By.ID, "study")).first_selected_option.get_attribute("value") == "passkey"
    assert not opened.find_element(By.CSS_SELECTOR, "fieldset[data-kind=methods] input[value=h2o]").is_selected()
    metric = opened.find_element(By.ID, "metric").get_attribute("value")
    opened.get("about:blank")
    opened.get(f"{page.as_uri()}#study=nothing&metric=<img>&methods=zebra&arm=x")
    assert opened.find_element(By.ID, "metric").get_attribute("value") != metric
    assert opened.find_element(By.ID, "status").text.startswith("0 of ")


def test_arms_of_one_size_are_drawn_where_they_are(opened: Any) -> None:
    sizes = "DATA.studies[0].rows.map((row) => row.size)"
    drawn = (
        "document.querySelector('#pareto .plot').data.filter((trace) => trace.customdata).flatMap((trace) => trace.x)"
    )
    known = set(opened.execute_script(f"return {sizes};"))
    assert set(opened.execute_script(f"return {drawn};")) <= known


def test_another_metric_changes_the_axis_and_the_numbers(opened: Any) -> None:
    before = texts(opened, "#arms tbody .number")
    Select(find(opened, "#metric")).select_by_visible_text("Reference PPL")
    assert texts(opened, "#arms tbody .number") != before
    assert "Reference PPL" in texts(opened, "#arms thead th")
    assert "Reference PPL" in opened.execute_script("return document.querySelector('.plot').layout.yaxis.title.text")
    assert console(opened) == []


def point(browser: Any, key: str) -> tuple[int, int]:
    """Where an arm's marker of the first chart is in the window."""
    script = """
        const plot = document.querySelector('.plot');
        plot.scrollIntoView({block: 'center'});
        const trace = plot.data.find((t) => (t.customdata ?? []).includes(arguments[0]));
        const index = trace.customdata.indexOf(arguments[0]);
        const {xaxis, yaxis} = plot._fullLayout, box = plot.getBoundingClientRect();
        return [box.x + xaxis._offset + xaxis.d2p(trace.x[index]), box.y + yaxis._offset + yaxis.d2p(trace.y[index])];
    """
    x, y = browser.execute_script(script, key)
    return round(x), round(y)


def test_a_click_on_a_point_shows_the_questions_and_outputs_behind_it(opened: Any) -> None:
    key = "smollm2-135m|aware|full-int8"
    assert "int8" not in find(opened, "#output-status").text
    x, y = point(opened, key)
    actions = ActionChains(opened)
    actions.w3c_actions.pointer_action.move_to_location(x, y)
    actions.w3c_actions.pointer_action.click()
    actions.perform()
    assert find(opened, "#output-status").text.startswith(
        "Full cache, int8, SmolLM2-135M-Instruct, question-aware: 20 of 20"
    )
    assert find(opened, "#arms [aria-current]").text == "Full cache, int8"
    assert opened.execute_script("return document.activeElement.id") == "outputs-title"
    first = find(opened, "#outputs li")
    assert "What is the code of needle-512-s0-d10?" in first.text
    assert [name.text for name in first.find_elements(By.CSS_SELECTOR, "strong")] == ["Full cache, int8", "Full cache"]
    shown = len(texts(opened, "#outputs li"))
    find(opened, "#more").click()
    assert len(texts(opened, "#outputs li")) == 2 * shown
    assert console(opened) == []


def test_outputs_are_those_of_the_trials_and_can_be_filtered(opened: Any) -> None:
    Select(find(opened, "#arm")).select_by_value("smollm2-135m|aware|full")
    Select(find(opened, "#context")).select_by_visible_text("1024 tokens")
    Select(find(opened, "#depth")).select_by_visible_text("30%")
    assert texts(opened, "#outputs h3") == ["needle-1024-s0-d30", "needle-1024-s1-d30"]
    Select(find(opened, "#outcome")).select_by_visible_text("misses")
    misses = len(texts(opened, "#outputs h3"))
    Select(find(opened, "#outcome")).select_by_visible_text("hits")
    assert misses + len(texts(opened, "#outputs h3")) == 2
    assert set(texts(opened, "#outputs .hit")) <= {"hit"}


def test_a_heatmap_is_one_tab_stop_and_its_cells_open_their_depth(opened: Any) -> None:
    stops = opened.find_elements(By.CSS_SELECTOR, "#heat table:first-of-type button[tabindex='0']")
    assert len(stops) == 2
    stops[0].send_keys(Keys.ARROW_RIGHT)
    opened.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    focused = opened.switch_to.active_element
    arm, _, rest = focused.get_attribute("aria-label").partition(", depth ")
    assert rest.startswith("30%: ")
    focused.send_keys(Keys.ENTER)
    assert find(opened, "#output-status").text.startswith(f"{arm}, SmolLM2-135M")
    assert texts(opened, "#outputs h3")
    assert all(name.endswith("-d30") for name in texts(opened, "#outputs h3"))


def test_every_control_has_a_name_and_can_be_reached_by_keyboard(opened: Any) -> None:
    script = """
        const named = (e) => e.labels?.length || e.textContent.trim() || e.getAttribute('aria-label');
        return [...document.querySelectorAll('button, select, input')].filter((e) => !named(e)).map((e) => e.outerHTML);
    """
    assert opened.execute_script(script) == []
    seen = set()
    find(opened, "body").send_keys(Keys.TAB)
    for _ in range(120):
        focused = opened.switch_to.active_element
        seen.add(focused.get_attribute("id") or focused.get_attribute("class") or focused.tag_name)
        focused.send_keys(Keys.TAB)
    assert {"theme", "study", "metric", "arm", "depth", "outcome"} <= seen


def luminance(browser: Any) -> float:
    color = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    red, green, blue = (int(part) for part in color.removeprefix("rgb(").removesuffix(")").split(","))
    return (red + green + blue) / 3


def full_cache_color(browser: Any) -> str:
    script = "return document.querySelector('.plot').data.find(t => t.customdata?.[0].endsWith('|full')).line.color"
    return browser.execute_script(script)


def becomes(browser: Any, holds: Any) -> None:
    """Wait until `holds` does; the browser tells pages of a new colour scheme a moment later. Fails after 20 seconds."""
    WebDriverWait(browser, 20).until(lambda _: holds())


def test_dark_and_light_follow_the_system_until_the_reader_chooses(browser: Any, page: Path) -> None:
    open_page(browser, page, theme="dark")
    becomes(browser, lambda: luminance(browser) < 40)
    becomes(browser, lambda: full_cache_color(browser) == "#FFFFFF")
    screen(browser, 1280, 900, theme="light")
    becomes(browser, lambda: luminance(browser) > 240)
    becomes(browser, lambda: full_cache_color(browser) == "#000000")
    find(browser, "#theme").click()
    becomes(browser, lambda: luminance(browser) < 40)
    becomes(browser, lambda: full_cache_color(browser) == "#FFFFFF")
    browser.get(page.as_uri())
    becomes(browser, lambda: luminance(browser) < 40)
    assert find(browser, "#theme").text == "Light theme"
    assert console(browser) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_its_background_in_both_themes(browser: Any, page: Path, theme: str) -> None:
    open_page(browser, page, theme=theme)
    script = """
        const parts = (color) => color.match(/[\\d.]+/g).map(Number);
        const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
        const behind = (e) => {
            const color = parts(getComputedStyle(e).backgroundColor);
            return color.length < 4 || color[3] ? color : behind(e.parentElement);
        };
        const ratio = (e) => {
            const [a, b] = [light(parts(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
            return (a + 0.05) / (b + 0.05);
        };
        const said = (e) => [...e.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
        return [...document.querySelectorAll('main *, header *')].filter((e) => !e.closest('svg, option') && said(e))
            .map((e) => [ratio(e), e.textContent.slice(0, 40)]).filter(([value]) => value < 4.5);
    """
    assert browser.execute_script(script) == []


def test_the_page_fits_a_phone(browser: Any, page: Path) -> None:
    open_page(browser, page, width=360, height=740, mobile=True)
    assert browser.execute_script("return [innerWidth, document.documentElement.scrollWidth]") == [360, 360]
    assert not find(browser, "#form").is_displayed()
    find(browser, "#filters summary").click()
    tick(browser, "methods", "snapkv")
    assert arms(browser)
    assert "SnapKV 8x" not in arms(browser)
    tick(browser, "models", "qwen2.5-0.5b")
    assert browser.execute_script("return [innerWidth, document.documentElement.scrollWidth]") == [360, 360]
    wide = browser.execute_script("return [...document.querySelectorAll('.plot')].map(p => p._fullLayout.width)")
    assert len(wide) == 4
    assert max(wide) <= 340
    assert console(browser) == []


def test_hostile_text_is_shown_as_the_text_it_is(browser: Any, hostile_page: Path, page: Path) -> None:
    open_page(browser, hostile_page)
    assert console(browser) == []
    assert browser.execute_script("return window.hurt ?? null") is None
    expected = visible(HOSTILE, newlines=True)
    assert browser.execute_script("return document.querySelector('#outputs dd').textContent") == expected
    answers = browser.execute_script("return [...document.querySelectorAll('.answer .text')].map(e => e.textContent)")
    assert answers
    assert set(answers) == {expected}
    assert find(browser, "h1").text == " ".join(visible(HOSTILE).split())
    assert "window.hurt = 1" in find(browser, "#pareto .panel p").text
    script = """
        const elements = [...document.querySelectorAll('img, iframe, a, script')];
        return elements.map((e) => e.tagName + (e.getAttribute('href') ?? ''));
    """
    elements = browser.execute_script(script)
    open_page(browser, page)
    assert elements == browser.execute_script(script)


def test_a_script_that_is_not_the_page_s_own_does_not_run(opened: Any) -> None:
    opened.execute_script("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hurt = 1\">')")
    opened.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.hurt = 2'; document.body.append(s)"
    )
    assert opened.execute_script("return window.hurt ?? null") is None
    assert any("Content Security Policy" in line for line in console(opened))
