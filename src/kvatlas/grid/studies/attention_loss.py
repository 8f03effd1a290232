"""Attention loss: one cell per method, over several prompts and queries."""

from __future__ import annotations

from collections.abc import Iterator

from kvatlas.grid import policy_parameters
from kvatlas.grid.cells import Cell
from kvatlas.grid.study import Study, StudyContext
from kvatlas.paths import MEASUREMENTS


def cells(context: StudyContext) -> Iterator[Cell]:
    """Yield a cell per method."""
    study_config = context.study_config
    sizes = {key: study_config[key] for key in ("text", "context", "prompts", "queries")}
    for method in study_config["methods"]:
        policy = policy_parameters.policy_of(context.config, method)
        spec = {"arm": method, "method": method, "policy": policy} | sizes
        yield context.trial_cell(f"loss-{study_config['context']}-0", spec, context.text_input(), context.text_work())


STUDY = Study(
    name="attention_loss",
    label="Attention loss",
    order=40,
    question=(
        "How much attention does a ranking of slots lose, layer by layer and head by head? Slots are dropped "
        "in a method's order and in the order that loses least."
    ),
    kind="attention_loss",
    unfold=cells,
    keys={
        "text": {"type": "string", "description": "where the prompts are cut from, by its name in config/texts.yaml"},
        "context": {"type": "integer", "minimum": 2, "description": "length of a prompt in tokens"},
        "prompts": {"type": "integer", "minimum": 1, "description": "number of prompts"},
        "queries": {"type": "integer", "minimum": 1, "description": "queries of each prompt whose attention is ranked"},
        "methods": {
            "$ref": "#/$defs/ids",
            "description": "method ids: policies, or names from the top-level `methods`",
        },
    },
    required=("text", "context", "prompts", "queries", "methods"),
    data_files=lambda study_config: (MEASUREMENTS,),
)
