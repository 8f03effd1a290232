"""Quantizer error: the reconstruction error of each quantizer on the keys and values of real prompts."""

from __future__ import annotations

from collections.abc import Iterator

from kvatlas.grid import policy_parameters
from kvatlas.grid.arms import Arm
from kvatlas.grid.cells import Cell
from kvatlas.grid.study import Study, StudyContext
from kvatlas.paths import MEASUREMENTS


def cells(context: StudyContext) -> Iterator[Cell]:
    """Yield a cell per quantizer."""
    study_config = context.study_config
    sizes = {key: study_config[key] for key in ("text", "context", "prompts")}
    for quantizer in study_config["quantizers"]:
        arm = Arm(policy_parameters.FULL, quantizer=quantizer)
        spec = {"arm": arm.id, "quantizer": quantizer} | sizes
        yield context.trial_cell(f"error-{study_config['context']}-0", spec, context.text_input(), context.text_work())


STUDY = Study(
    name="quantizer_error",
    label="Quantizer reconstruction error",
    order=60,
    question=(
        "How far from the original are quantized keys and values? Real keys and values are quantized, read "
        "back and compared."
    ),
    kind="quantizer_error",
    unfold=cells,
    keys={
        "text": {"type": "string", "description": "where the prompts are cut from, by its name in config/texts.yaml"},
        "context": {"type": "integer", "minimum": 1, "description": "length of a prompt in tokens"},
        "prompts": {"type": "integer", "minimum": 1, "description": "number of prompts"},
        "quantizers": {"$ref": "#/$defs/ids", "description": "quantizers by name; `none` is the model's dtype"},
    },
    required=("text", "context", "prompts", "quantizers"),
    data_files=lambda study_config: (MEASUREMENTS,),
)
