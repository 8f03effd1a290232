"""From a run's report folder to explorer.html: one page that opens from disk, without network, with the data inside.

A pure function of results.json, trials.parquet and config.json. It must not know how the page looks or behaves
(templates/explorer does). Text that a model wrote travels as JSON that cannot end its script element, and the page
only ever shows it as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup
from plotly.offline import get_plotlyjs

from kvatlas.analysis.trials import read_parquet
from kvatlas.files import read_json, write_text
from kvatlas.paths import EXPLORER
from kvatlas.reporting import environment
from kvatlas.reporting.explorer.data import explorer_data
from kvatlas.terminal import visible

SCRIPTS = ("page.js", "filters.js", "charts.js", "outputs.js", "main.js")
# Characters that could end a script element or a line of a script; JSON may always write them as escapes.
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def write_explorer(report_dir: Path | str) -> Path:
    """Write explorer.html of `report_dir` and return its path.

    Raises KvatlasError when one of the files it is made of is missing or broken.
    """
    folder = Path(report_dir)
    results, config = (read_json(folder / f"{name}.json") for name in ("results", "config"))
    page = folder / EXPLORER
    write_text(page, render(results, read_parquet(folder / "trials.parquet"), config))
    return page


def render(results: Mapping[str, Any], trials: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> str:
    """Make the page's HTML; equal arguments give equal text."""
    resolved = config.get("config") or {}
    title = visible(str(resolved.get("title") or results["run"]))
    run = visible(str(results["run"]))
    library, program = get_plotlyjs(), "\n".join(asset(name) for name in SCRIPTS)
    template = environment.html("templates/explorer").get_template("explorer.html.j2")
    return template.render(
        title=title,
        run=run,
        policy=Markup(content_policy(library, program)),
        style=Markup(asset("explorer.css")),
        library=Markup(library),
        program=Markup(program),
        data=Markup(script_json(explorer_data(results, trials, resolved.get("models") or ()))),
    )


def asset(name: str) -> str:
    """Read one of the page's own files."""
    return resources.files("kvatlas.reporting").joinpath("templates", "explorer", name).read_text(encoding="utf-8")


def script_json(value: Any) -> str:
    """Write JSON that is inert inside a script element, whatever its strings hold."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


def content_policy(*scripts: str) -> str:
    """Make a content security policy under which exactly these scripts run and nothing is loaded from anywhere."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    # Plotly sets styles from its script and hands pictures out as data.
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
