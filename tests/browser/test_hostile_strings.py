"""The corpus of hostile texts in the explorer, in a headless chromium: nothing of it runs, all of it is shown as text."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from kvatlas.reporting.explorer.document import render
from kvatlas.terminal import visible
from tests.support import hostile_strings, synthetic
from tests.support.chromium import MISSING, chromium, console, programs, screen

pytestmark = pytest.mark.skipif(programs() is None, reason=MISSING)

SHOWN = (*hostile_strings.SHORT, *(text[:2_000] for text in hostile_strings.LONG[1:]), hostile_strings.LONG[0])
# Every arm's outputs, with all of their cards; the charts are given the time to follow.
READ_ALL = """
    const [done] = arguments, found = new Set(), more = document.querySelector('#more');
    const select = document.querySelector('#arm'), options = [...select.options];
    const next = () => {
        if (!options.length) return done([...found]);
        select.value = options.shift().value;
        select.dispatchEvent(new Event('change', {bubbles: true}));
        for (let turn = 0; turn < 50 && !more.hidden; turn++) more.click();
        document.querySelectorAll('.answer .text, #outputs dd').forEach((e) => found.add(e.textContent));
        setTimeout(next, 100);
    };
    next();
"""
ELEMENTS = """
    const names = ['script', 'img', 'iframe', 'a', 'object', 'form', 'base', 'meta', 'link', 'style'];
    return names.map((name) => document.getElementsByTagName(name).length);
"""


def write_page(path: Path, texts: tuple[str, ...]) -> Path:
    """Write the explorer of a small run; its title, question, answer, outputs and reasons hold `texts`."""
    draw = itertools.cycle(texts)
    shape: dict[str, Any] = {"contexts": (512, 1024), "seeds": 4, "modes": ("aware",), "no_context": False}
    trials = synthetic.recall_trials(arms=synthetic.ARMS[:12], **shape)
    results = synthetic.results_json(trials)
    for gate in results["studies"]["needle"]["gates"]:
        gate.update(passed=False, reason=" ".join(texts[:60]))
    trials = [trial | {"question": texts[0], "answer": texts[1 % len(texts)], "output": next(draw)} for trial in trials]
    config = {"config": {"title": " ".join(texts[:60]), "models": ["smollm2-135m"]}}
    path.write_text(render(results, trials, config), encoding="utf-8")
    return path


def test_nothing_of_the_corpus_runs_and_all_of_it_is_shown(tmp_path: Path) -> None:
    hostile, plain = write_page(tmp_path / "hostile.html", SHOWN), write_page(tmp_path / "plain.html", ("words",))
    with chromium(tmp_path / "profile") as browser:
        screen(browser, 1280, 900)
        browser.set_script_timeout(300)
        browser.get(hostile.as_uri())
        found = set(browser.execute_async_script(READ_ALL))
        assert console(browser) == []
        assert browser.execute_script("return window.hurt ?? ({}).hurt ?? null") is None
        assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
        elements = browser.execute_script(ELEMENTS)
        browser.get(plain.as_uri())
        assert elements == browser.execute_script(ELEMENTS)
    assert [text[:80] for text in SHOWN if visible(text, newlines=True) not in found] == []
