"""Every figure: drawn exactly when its data is there, inside its page with forty arms, and the same bytes twice."""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.transforms import Bbox

from kvatlas.compression import methods
from kvatlas.errors import KvatlasError
from kvatlas.paths import figure_names
from kvatlas.reporting import figures
from tests.support import all_studies, synthetic

MANY = tuple(
    synthetic.Arm(method, budget, strength, 0.2)
    for budget in ("4x", "8x")
    for strength, method in enumerate(
        [*methods.policies(), "emeans_pre_rope_proportional", "h2o_raw", "brand_new"],
        start=-10,
    )
)

every_figure = pytest.mark.parametrize("name", figure_names())


@pytest.fixture(scope="module")
def crowded() -> dict[str, Any]:
    return all_studies.results(arms=(synthetic.FULL, *MANY), modes=("aware",), seeds=2)


@pytest.fixture(scope="module")
def full_cache_alone(results: dict[str, Any]) -> dict[str, Any]:
    """The same run, of every study only what the full cache did."""
    alone = copy.deepcopy(results)
    for study in alone["studies"].values():
        for table, rows in study.items():
            if isinstance(rows, list):
                study[table] = [row for row in rows if row.get("arm", "full") == "full"]
    return alone


def inside(box: Bbox, page: Bbox) -> bool:
    """Return whether `box` lies within `page`, to a pixel."""
    return all((page.x0 - 1 <= box.x0, box.x1 <= page.x1 + 1, page.y0 - 1 <= box.y0, box.y1 <= page.y1 + 1))


def test_figures_are_listed_by_their_numbers_and_an_unknown_one_is_named() -> None:
    numbers = [int(name[1:].partition("_")[0]) for name in figure_names()]
    assert numbers == sorted(numbers)
    assert len(numbers) >= 12
    with pytest.raises(KvatlasError, match="figure 'f99_radar' does not exist; the figures are f1_pareto, f1_studies"):
        figures.load("f99_radar")


@every_figure
def test_a_figure_is_drawn_exactly_when_it_is_available(name: str, results: dict[str, Any]) -> None:
    module = figures.load(name)
    assert module.available(results)
    assert figures.draw(name, results, []) is not None
    for empty in ({"studies": {}}, {"studies": {study: {"rows": []} for study in results["studies"]}}):
        assert not module.available(empty)
        assert figures.draw(name, empty, []) is None


@every_figure
def test_captions_and_alt_texts_are_sentences(name: str, results: dict[str, Any]) -> None:
    module = figures.load(name)
    assert module.CAPTION.endswith(".")
    assert module.alt(results).endswith(".")


@every_figure
def test_a_run_of_the_full_cache_alone_makes_no_empty_panels(name: str, full_cache_alone: dict[str, Any]) -> None:
    figure = figures.draw(name, full_cache_alone, [])
    assert figure is None or all(axes.has_data() for axes in figure.axes)


@every_figure
def test_text_stays_inside_the_page_and_tick_labels_do_not_overlap_with_forty_arms(
    name: str, crowded: dict[str, Any]
) -> None:
    figure = figures.draw(name, crowded, [])
    assert figure is not None
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    for legend in figure.legends:
        box = legend.get_window_extent(renderer)
        assert inside(box, figure.bbox)
        assert not any(box.overlaps(axes.get_tightbbox(renderer)) for axes in figure.axes)
    for axes in figure.axes:
        assert axes.has_data()
        assert inside(axes.get_tightbbox(renderer), figure.bbox)
        for axis in (axes.xaxis, axes.yaxis):
            ticks = [label.get_window_extent(renderer) for label in axis.get_ticklabels() if label.get_text()]
            ticks = [tick for tick in ticks if tick.width > 0]
            assert not any(a.shrunk(0.9, 0.9).overlaps(b.shrunk(0.9, 0.9)) for a, b in pairwise(ticks))


@every_figure
def test_panels_print_their_n(name: str, results: dict[str, Any]) -> None:
    figure = figures.draw(name, results, [])
    assert figure is not None
    assert any("n = " in text.get_text() for axes in figure.axes for text in axes.texts)


@every_figure
def test_the_same_results_give_the_same_bytes(name: str, results: dict[str, Any], tmp_path: Path) -> None:
    first = figures.write(name, results, [], tmp_path / "a")
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red"}):
        second = figures.write(name, copy.deepcopy(results), [], tmp_path / "b")
    assert [path.suffix for path in first] == [".png", ".svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    svg = first[1].read_text()
    assert "<dc:date>" not in svg
    assert "<text" not in svg
