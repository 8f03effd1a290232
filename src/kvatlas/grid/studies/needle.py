"""Needle in a haystack: one code hidden at a depth of a long prompt."""

from kvatlas.grid.cells import RECALL
from kvatlas.grid.prompt_groups import recall_cells
from kvatlas.grid.study import Study

STUDY = Study(
    name="needle",
    label="Needle in a haystack",
    order=10,
    kind=RECALL,
    task="needle",
    unfold=lambda context: recall_cells(context, "needle"),
)
