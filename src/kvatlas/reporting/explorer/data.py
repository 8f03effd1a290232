"""The data inside the explorer: rows, depths, looks and texts of a run as plain JSON values.

Pure functions of results and trials; it knows no HTML. Texts are stored once each and trials as columns, because one
prompt is answered by many arms. Every study whose arms have a size or a metric named here is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from kvatlas.analysis.studies.validity import is_repeat
from kvatlas.grid.studies import all_studies
from kvatlas.reporting import labels
from kvatlas.reporting.study_rows import Record, rows_of
from kvatlas.reporting.style import MethodStyle, method_style
from kvatlas.terminal import visible

DARK_PAGE = "#14181D"
BASE = "base"
_DARK_CONTRAST = 4.0
SYMBOLS = {
    "o": "circle",
    "s": "square",
    "D": "diamond",
    "d": "diamond-tall",
    "^": "triangle-up",
    "v": "triangle-down",
    "<": "triangle-left",
    ">": "triangle-right",
    "P": "cross",
    "X": "x",
    "p": "pentagon",
    "h": "hexagon",
    "H": "hexagon2",
    "*": "star",
}
DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}


class Metric(NamedTuple):
    """How a field of a row is shown: its label, its kind of axis, and which end of it is wanted."""

    key: str
    label: str
    kind: str  # share (0 to 100%), log or linear
    wanted: str  # max or min


METRICS = (
    Metric("recall", "Recall", "share", "max"),
    Metric("ppl", "Online PPL", "log", "min"),
    Metric("post_ppl", "Online PPL after the budget binds", "log", "min"),
    Metric("accuracy", "Accuracy", "share", "max"),
    Metric("post_accuracy", "Accuracy after the budget binds", "share", "max"),
    Metric("accuracy_needle", "Accuracy, needle tasks", "share", "max"),
    Metric("accuracy_instruction", "Accuracy, instruction tasks", "share", "max"),
    Metric("accuracy_multi_turn", "Accuracy, multi-turn tasks", "share", "max"),
    Metric("accuracy_summary", "Accuracy, summary tasks", "share", "max"),
    Metric("ref_ppl", "Reference PPL", "log", "min"),
    Metric("gold_ppl", "Gold PPL", "log", "min"),
    Metric("self_ppl", "Self PPL", "log", "min"),
    Metric("single_forward_ppl", "Passage PPL, single forward", "log", "min"),
    Metric("prefill_then_score_ppl", "Passage PPL, prefill then score", "log", "min"),
    Metric("online_ppl", "Passage PPL, online", "log", "min"),
    Metric("kl", "KL from the full cache (nats per token)", "linear", "min"),
    Metric("top1", "Top-1 agreement with the full cache", "share", "max"),
    Metric("embed_cosine", "Embedding cosine to the full cache's output", "linear", "max"),
    Metric("hidden_cosine", "Hidden-state cosine", "linear", "max"),
    Metric("needle_retained", "Needle slots kept", "share", "max"),
)
_METRIC_KEYS = [metric.key for metric in METRICS]
# The deployed cache is bf16; rows without a size in bytes may know their share of the full cache's.
SIZES = (
    ("resident_bf16_mib", "Resident KV cache per prompt (MiB, log axis)", "MiB"),
    ("kv_mib", "Resident KV cache per prompt (MiB, log axis)", "MiB"),
    ("kv_share", "Resident bytes over the full cache's (log axis)", "of full"),
)


def explorer_data(results: Record, trials: Sequence[Record], models: Sequence[str] = ()) -> dict[str, Any]:
    """Collect what the page shows, as plain values: labels, looks, studies, and the trials with their texts.

    `models` is their order, the one that the run is about first.
    """
    studies = [shown for name in all_studies() if (shown := study(results, name))]
    rows = [row for shown in studies for row in shown["rows"]]
    generated = [trial for trial in trials if trial.get("output") is not None]
    return {
        # Studies of one metric stand side by side, the first metric's first.
        "studies": sorted(studies, key=lambda shown: _METRIC_KEYS.index(shown["metrics"][0]["key"])),
        "models": _named(rows, "model", labels.model_label, models),
        "modes": _named(rows, "mode", labels.mode_label, list(labels.MODE_LABELS)),
        "methods": [look(method) for method in sorted({row["method"] for row in rows}, key=labels.method_key)],
        "budgets": [
            {"id": budget, "label": labels.budget_label(budget)}
            for budget in sorted({row["budget"] for row in rows}, key=labels.budget_key)
        ],
        "quantizers": [
            {"id": name, "label": "not quantized" if name == "none" else name}
            for name in sorted({row["quantizer"] for row in rows}, key=labels.quantizer_key)
        ],
        "protections": _named(rows, "protection", lambda name: "the study's own" if name == BASE else name, [BASE]),
        **texts(generated),
    }


def study(results: Record, name: str) -> dict[str, Any] | None:
    """Collect one study; None when it is not one of arms with metrics.

    Questions without their context and repeats of the full cache are no arms to compare and are left out.
    """
    rows = [row for row in rows_of(results, name) if "budget" in row and not _left_out(row)]
    metrics = [metric for metric in METRICS if any(labels.known(row.get(metric.key)) for row in rows)]
    if not metrics:
        return None
    size = next((entry for entry in SIZES if any(labels.known(row.get(entry[0])) for row in rows)), SIZES[0])
    arms = {(row.get("model"), row.get("mode"), row["arm"]) for row in rows}
    depths = [
        row for row in rows_of(results, name, "by_depth") if (row.get("model"), row.get("mode"), row["arm"]) in arms
    ]
    return {
        "id": name,
        "label": all_studies()[name].label,
        "size": {"label": size[1], "unit": size[2]},
        "metrics": [metric._asdict() for metric in metrics],
        "rows": [_row(row, size[0], metrics) for row in sorted(rows, key=labels.arm_key)],
        "depths": [_depth(row) for row in depths if row.get("n")],
        "gates": [_gate(row) for row in rows_of(results, name, "gates")],
    }


def _left_out(row: Record) -> bool:
    return row.get("mode") == "no_context" or is_repeat(row)


def _row(row: Record, size: str, metrics: Iterable[Metric]) -> dict[str, Any]:
    values = {}
    for metric in metrics:
        bounds = row.get(f"{metric.key}_ci") or (None, None)
        if labels.known(row.get(metric.key)):
            values[metric.key] = [number(row[metric.key]), *(number(bound) for bound in bounds)]
    return {
        **{key: str(row.get(key) or "") for key in ("model", "mode", "arm", "method", "budget")},
        "quantizer": str(row.get("quantizer") or "none"),
        "protection": str(row.get("protection") or BASE),
        "label": labels.arm_label(row),
        "size": number(row.get(size)),
        "ratio": number(row.get("actual_ratio")),
        "n": number(row.get("n")),
        "clusters": number(row.get("n_clusters")),
        "gated": row.get("gate_passed") is False,
        "values": values,
    }


def _depth(row: Record) -> dict[str, Any]:
    """Return one cell of the heatmap; a score between 0 and 1 stands in where answers are not right or wrong."""
    hits, n = row.get("hits"), row["n"]
    share = hits / n if labels.known(hits) else row.get("accuracy")
    arm = {key: str(row.get(key) or "") for key in ("model", "mode", "arm")}
    context = row.get("context", "all")
    return arm | {
        "context": context,
        "depth": number(row["depth"]),
        "share": number(share),
        "text": labels.hits(hits, n) if labels.known(hits) else labels.percent(share),
    }


def _gate(row: Record) -> dict[str, Any]:
    return {
        **{key: str(row.get(key) or "") for key in ("model", "mode")},
        "context": row.get("context"),
        "passed": bool(row.get("passed")),
        "reason": visible(str(row.get("reason") or "")),
    }


def _named(
    rows: Iterable[Record], key: str, label: Callable[[str], str], order: Sequence[str] = ()
) -> list[dict[str, str]]:
    ids = sorted(
        {row[key] for row in rows}, key=lambda name: (order.index(name) if name in order else len(order), name)
    )
    return [{"id": name, "label": label(name) if name else labels.DASH} for name in ids]


def look(method: str) -> dict[str, Any]:
    """Return a method's label, colours on a light and a dark page, marker and dashes, as every figure draws them."""
    style: MethodStyle = method_style(method)
    symbol = SYMBOLS[style.marker] + ("" if style.filled else "-open")
    return {
        "id": method,
        "label": labels.method_label(method),
        "light": style.color,
        "dark": on_dark(style.color),
        "symbol": symbol,
        "dash": DASHES[style.linestyle],
    }


def on_dark(color: str) -> str:
    """Mix a colour (#RRGGBB) with white until it stands out from the dark page; the full cache's black turns white."""
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    if red == green == blue == 0:
        return "#FFFFFF"
    for step in range(21):
        mixed = tuple(round(channel + (255 - channel) * step / 20) for channel in (red, green, blue))
        shown = "#{:02X}{:02X}{:02X}".format(*mixed)
        if contrast(shown, DARK_PAGE) >= _DARK_CONTRAST:
            return shown
    return "#FFFFFF"


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours (#RRGGBB), 1 to 21 (WCAG 2.2)."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    parts = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def texts(trials: Sequence[Record]) -> dict[str, Any]:
    """Store texts once, prompts once, and trials as columns of indices into them."""
    known: dict[str, int] = {}
    prompts: dict[tuple[str, ...], int] = {}
    listed: list[dict[str, Any]] = []
    columns: dict[str, list[Any]] = {name: [] for name in ("prompt", "arm", "hit", "output", "kept", "nll")}

    def index(text: Any) -> int | None:
        return None if text is None else known.setdefault(visible(str(text), newlines=True), len(known))

    for trial in sorted(trials, key=_trial_key):
        key = tuple(str(trial[name]) for name in ("study", "model", "mode", "id"))
        if key not in prompts:
            prompts[key] = len(prompts)
            position = {name: trial.get(name) for name in ("context", "depth", "seed", "haystack")}
            ids = dict(zip(("study", "model", "mode", "id"), key, strict=True))
            listed.append(
                ids | position | {"question": index(trial.get("question")), "answer": index(trial.get("answer"))}
            )
        columns["prompt"].append(prompts[key])
        columns["arm"].append(str(trial["arm"]))
        columns["hit"].append(int(bool(trial.get("hit"))))
        columns["output"].append(index(trial["output"]))
        columns["kept"].append(number(trial.get("needle_retained")))
        nlls = trial.get("ref_nlls")
        columns["nll"].append(number(sum(nlls) / len(nlls)) if nlls else None)
    return {"texts": list(known), "prompts": listed, "trials": columns}


def _trial_key(trial: Record) -> tuple[Any, ...]:
    ids = tuple(str(trial[key]) for key in ("study", "model", "mode"))
    order = (trial.get("context") or 0, trial.get("seed") or 0, trial.get("depth") or 0, str(trial["id"]))
    return (*ids, *order, str(trial["arm"]))


def number(value: Any) -> float | int | None:
    """Round a number to six significant digits; what is missing or not finite is None."""
    if isinstance(value, bool) or not labels.known(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.6g}")
