"""Figures: every one draws from aggregates, survives many arms and missing sections, and is the same bytes
twice.
"""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from kvatlas.analysis.studies import needle
from kvatlas.errors import KvatlasError
from kvatlas.reporting import figures, labels, style
from kvatlas.reporting.figures import f3_forest, panels
from tests.support import synthetic

# Those of the needle study; the other studies' figures have tests beside their analysis.
NAMES = ("f1_pareto", "f2_depth_heatmap", "f3_forest", "f4_retention", "f6_perplexity")
MANY = tuple(
    synthetic.Arm(method, budget, strength, 0.2)
    for budget in ("4x", "8x")
    for strength, method in enumerate(
        [*(m for m in labels.METHOD_LABELS if m != "full"), "emeans_pre_rope_proportional", "h2o_raw", "brand_new"],
        start=-10,
    )
)


def study(**options: Any) -> dict[str, Any]:
    return {"studies": {"needle": needle.aggregate(synthetic.recall_trials(**options))}}


@pytest.fixture(scope="module")
def small() -> dict[str, Any]:
    return study()


@pytest.fixture(scope="module")
def crowded() -> dict[str, Any]:
    return study(arms=(synthetic.FULL, *MANY), modes=("aware",), seeds=2)


def inside(box: Bbox, page: Bbox) -> bool:
    """Say whether `box` lies within `page`, to a pixel."""
    return all((page.x0 - 1 <= box.x0, box.x1 <= page.x1 + 1, page.y0 - 1 <= box.y0, box.y1 <= page.y1 + 1))


def rendered(figure: Figure) -> Any:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas.get_renderer()


def test_the_needle_figures_are_registered_in_the_order_of_their_numbers() -> None:
    assert [name for name in figures.names() if name in NAMES] == list(NAMES)
    numbers = [int(name[1:].partition("_")[0]) for name in figures.names()]
    assert numbers == sorted(numbers)
    with pytest.raises(KvatlasError, match="figure 'f99_radar' does not exist"):
        figures.load("f99_radar")


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_drawn_exactly_when_it_is_available(name: str, small: dict[str, Any]) -> None:
    module = figures.load(name)
    assert module.available(small)
    assert module.draw(small, []) is not None
    for empty in ({"studies": {}}, {"studies": {"needle": {"rows": []}}}):
        assert not module.available(empty)
        assert module.draw(empty, []) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_the_full_cache_alone_makes_no_empty_panels(name: str) -> None:
    figure = figures.load(name).draw(study(arms=(synthetic.FULL,), modes=("aware",), seeds=2), [])
    assert figure is None or all(axes.has_data() for axes in figure.axes)


@pytest.mark.parametrize("name", NAMES)
def test_text_stays_inside_the_page_and_tick_labels_do_not_overlap_with_forty_arms(
    name: str, crowded: dict[str, Any]
) -> None:
    figure = figures.load(name).draw(crowded, [])
    assert figure is not None
    renderer = rendered(figure)
    page = figure.bbox
    for legend in figure.legends:
        box = legend.get_window_extent(renderer)
        assert inside(box, page)
        assert not any(box.overlaps(axes.get_tightbbox(renderer)) for axes in figure.axes)
    for axes in figure.axes:
        assert axes.has_data()
        box = axes.get_tightbbox(renderer)
        assert inside(box, page)
        for axis in (axes.xaxis, axes.yaxis):
            ticks = [label.get_window_extent(renderer) for label in axis.get_ticklabels() if label.get_text()]
            ticks = [tick for tick in ticks if tick.width > 0]
            assert not any(a.shrunk(0.9, 0.9).overlaps(b.shrunk(0.9, 0.9)) for a, b in pairwise(ticks))


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_prints_its_n(name: str, small: dict[str, Any]) -> None:
    figure = figures.load(name).draw(small, [])
    assert figure is not None
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert sum("n = " in text and "clusters" in text for text in texts) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_the_same_results_give_the_same_bytes(name: str, small: dict[str, Any], tmp_path: Path) -> None:
    first = figures.write(name, small, [], tmp_path / "a")
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red"}):
        second = figures.write(name, copy.deepcopy(small), [], tmp_path / "b")
    assert [path.suffix for path in first] == [".png", ".svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    svg = first[1].read_text()
    assert "<dc:date>" not in svg
    assert "<text" not in svg


def test_figures_show_neither_the_floor_nor_repeats_of_the_full_cache(small: dict[str, Any]) -> None:
    repeated = copy.deepcopy(small)
    row = next(r for r in repeated["studies"]["needle"]["rows"] if r["arm"] == "full" and r["mode"] == "aware")
    repeated["studies"]["needle"]["rows"].append({**row, "arm": "full-again"})
    shown = panels.needle(repeated, "rows")
    assert {r["mode"] for r in shown} == {"aware", "agnostic"}
    assert "full-again" not in {r["arm"] for r in shown}


def test_the_frontier_keeps_no_point_that_another_dominates() -> None:
    points = [(1.0, 0.2), (2.0, 0.1), (2.0, 0.5), (3.0, 0.5), (4.0, 0.9), (5.0, 0.3)]
    assert panels.frontier(points, larger_is_better=True) == [(1.0, 0.2), (2.0, 0.5), (4.0, 0.9)]
    assert panels.frontier(points, larger_is_better=False) == [(1.0, 0.2), (2.0, 0.1)]


def test_sizes_are_those_of_the_deployed_cache() -> None:
    assert panels.resident_mib({"kv_mib": 20.0, "resident_bf16_mib": 10.0}) == 10.0
    assert panels.resident_mib({"kv_mib": 5.0}) == 5.0
    assert panels.resident_mib({"kv_mib": None}) is None


def test_only_primary_contrasts_past_holm_are_marked() -> None:
    assert f3_forest.significant({"family": "primary", "p_holm": 0.01})
    assert not f3_forest.significant({"family": "primary", "p_holm": 0.06})
    assert not f3_forest.significant({"family": "other", "p_holm": 0.01})
    assert not f3_forest.significant({"family": "primary", "p_holm": None})


@pytest.mark.parametrize(("low", "high"), [(1.1, 1.3), (1.1, 9.0), (1.0, 300.0), (1.2, 90_000.0)])
def test_a_log_axis_has_few_but_at_least_two_ticks(low: float, high: float) -> None:
    ticks = panels.value_ticks(low, high)
    assert 2 <= len(ticks) <= 9
    assert all(low <= tick <= high for tick in ticks)


def test_known_methods_look_different_and_unknown_ones_look_the_same_every_time() -> None:
    looks = [style.method_style(method) for method in labels.METHOD_LABELS]
    assert len({(look.color, look.marker) for look in looks}) == len(looks)
    assert style.method_style("brand_new") == style.method_style("brand_new")
    assert style.method_style("snapkv_emeans_proportional").color == style.method_style("snapkv_emeans").color
    assert not style.method_style("snapkv_emeans_proportional").filled


def test_every_caption_and_alt_text_is_a_sentence(small: dict[str, Any]) -> None:
    for name in NAMES:
        module = figures.load(name)
        assert module.CAPTION.endswith(".")
        assert module.alt(small).endswith(".")
