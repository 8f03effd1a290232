"""Visitor: a number in a long prompt, once more."""

from kvatlas.grid.cells import RECALL
from kvatlas.grid.prompt_groups import recall_cells, recall_keys
from kvatlas.grid.study import Study

STUDY = Study(
    name="visitor",
    label="Visitor",
    order=35,
    question="Where does a visitor sit? A number hides in a long prompt, once more.",
    kind=RECALL,
    analysis="needle",
    task="needle",
    keys=recall_keys({"visitors": {"type": "integer", "minimum": 1, "description": "how many visitors"}}),
    required=("contexts", "seeds", "depths", "new_tokens", "n_sinks", "n_recent", "modes"),
    unfold=recall_cells,
)
