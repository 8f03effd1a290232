"""What every figure must be: there exactly when it has data, inside its page, and the same bytes for the same results."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg

from kvatlas.reporting import figures


def check_availability(name: str, results: Mapping[str, Any]) -> None:
    """The figure is drawn exactly when it says that it is available, and describes itself in sentences."""
    module = figures.load(name)
    assert module.available(results)
    assert not module.available({"studies": {}})
    assert module.draw({"studies": {}}, []) is None
    assert module.CAPTION.endswith(".")
    assert module.alt(results).endswith(".")


def check_page(name: str, results: Mapping[str, Any]) -> None:
    """Every panel has data, its text stays inside the page, and the panels tell their n."""
    figure = figures.load(name).draw(results, [])
    assert figure is not None
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for axes in figure.axes:
        assert axes.has_data()
        box = axes.get_tightbbox(canvas.get_renderer())
        assert box is not None
        assert figure.bbox.x0 - 1 <= box.x0
        assert box.x1 <= figure.bbox.x1 + 1
    assert any("n = " in text.get_text() for axes in figure.axes for text in axes.texts)


def check_bytes(name: str, results: Mapping[str, Any], folder: Path) -> None:
    """Drawing twice gives the same PNG and SVG."""
    first = figures.write(name, results, [], folder)
    before = [path.read_bytes() for path in first]
    assert [path.suffix for path in first] == [".png", ".svg"]
    assert [path.read_bytes() for path in figures.write(name, copy.deepcopy(dict(results)), [], folder)] == before
