"""The fingerprints of cells, tables and pages of a configuration; `python -m tests.support.fingerprints FILE` in a copy."""

from __future__ import annotations

import json
import sys

from kvatlas.grid import config
from kvatlas.paths import figure_names
from kvatlas.pipeline.workflow import Workflow
from kvatlas.tracking import dependencies
from kvatlas.tracking.fingerprint import combine


def fingerprints(file: str) -> dict[str, str]:
    """Output, `aggregate STUDY`, `figure NAME` or step -> fingerprint."""
    flow = Workflow(config.load(file))
    steps = [("aggregate", study) for study in flow.config["studies"]]
    steps += [("figure", name) for name in figure_names()]
    steps += [(step, "") for step in ("results", "pages", "highlights", "explorer")]
    cells = {cell.output: flow.current.code(cell.output) for cell in flow.grid.cells.values()}
    codes = {step: dependencies.step_code(*step, config=flow.config) for step in steps}
    return cells | {" ".join(step).strip(): combine(code) for step, code in codes.items()}


if __name__ == "__main__":
    print(json.dumps(fingerprints(sys.argv[1])))
