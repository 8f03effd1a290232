"""How figures look: one colour and marker per method id, one set of matplotlib settings, deterministic
files.

It must not know what a figure shows. Colours come from the Okabe-Ito and Tol palettes, which stay apart
for readers with the common kinds of colour blindness; the marker repeats what the colour says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib
from matplotlib.figure import Figure

from kvatlas.compression import methods
from kvatlas.files import atomic_path

PAGE_WIDTH = 7.4  # inches: a page column at 300 dpi, with text of 7 to 8 points readable when shown at column width
INK, SOFT, FAINT = "#222222", "#767676", "#D9D9D9"
GATE = "#B00020"

RC: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "lines.markersize": 5.5,
    "figure.dpi": 100,
    "savefig.dpi": 300,
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "kvatlas",
    "text.parse_math": False,
}


@dataclass(frozen=True)
class MethodStyle:
    """Colour, marker, marker fill and line style of one method, the same in every figure."""

    color: str
    marker: str
    filled: bool = True
    linestyle: str = "-"

    @property
    def face(self) -> str:
        """Colour of the marker's inside; white for declared variants of a method."""
        return self.color if self.filled else "white"


_STYLES: dict[str, MethodStyle] = {
    "full": MethodStyle("#000000", "D"),
    "snapkv": MethodStyle("#0072B2", "o"),
    "h2o": MethodStyle("#56B4E9", "s"),
    "tova": MethodStyle("#332288", "^"),
    "heavy_hitter": MethodStyle("#5E7BC4", "v"),
    "streaming_llm": MethodStyle("#E69F00", "v"),
    "sink_recent": MethodStyle("#A6761D", "<"),
    "attention_sink": MethodStyle("#C9A227", "P"),
    "sliding_window": MethodStyle("#8C6D31", ">"),
    "naive_drop": MethodStyle("#6E6E6E", "X"),
    "random": MethodStyle("#A0A0A0", "P"),
    "emeans_post_rope": MethodStyle("#CC79A7", "s"),
    "emeans_pre_rope": MethodStyle("#AA4499", "d"),
    "pinned_emeans": MethodStyle("#D55E00", "^"),
    "snapkv_emeans": MethodStyle("#009E73", "p"),
    "l2norm": MethodStyle("#999933", "h"),
    "high_l2": MethodStyle("#661100", "H"),
    "keydiff": MethodStyle("#117733", "*"),
}
_SPARE_COLORS = ("#882255", "#44AA99", "#6699CC", "#997700", "#994455", "#004488", "#7A4FA3", "#BB5566")
_SPARE_MARKERS = ("o", "s", "^", "v", "<", ">", "p", "h", "d", "P")


def method_style(method: str) -> MethodStyle:
    """Look up the style of a method id; a method without one gets the same spare style in every run and figure."""
    base, variant = methods.split_variant(method)
    style = _STYLES.get(base) or _spare_style(base)
    if variant == "proportional":
        return replace(style, filled=False, linestyle="--")
    if variant == "reindexed":
        return replace(style, filled=False, linestyle=":")
    if variant:
        marker = _SPARE_MARKERS[_number(method) % len(_SPARE_MARKERS)]
        return replace(style, marker=marker, filled=False, linestyle="-.")
    return style


def _spare_style(method: str) -> MethodStyle:
    number = _number(method)
    marker = _SPARE_MARKERS[number // len(_SPARE_COLORS) % len(_SPARE_MARKERS)]
    return MethodStyle(_SPARE_COLORS[number % len(_SPARE_COLORS)], marker)


def _number(method: str) -> int:
    return int.from_bytes(hashlib.sha256(method.encode()).digest()[:4], "big")


P = ParamSpec("P")
R = TypeVar("R")


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Decorate a drawing function so that it runs under the project's matplotlib settings."""

    @wraps(draw)
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        settings: Any = dict(matplotlib.rcParamsDefault) | {"backend": "agg"} | RC
        with matplotlib.rc_context(settings):
            return draw(*args, **kwargs)

    return inner


@styled
def save(figure: Figure, stem: Path | str) -> list[Path]:
    """Write `stem`.png (300 dpi) and `stem`.svg; the same figure gives the same bytes, without dates or
    versions.
    """
    stem = Path(stem)
    png, svg = stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".svg")
    with atomic_path(png) as part:
        figure.savefig(part, format="png", metadata={"Software": None})
    with atomic_path(svg) as part:
        figure.savefig(part, format="svg", metadata={"Date": None, "Creator": None})
    return [png, svg]
