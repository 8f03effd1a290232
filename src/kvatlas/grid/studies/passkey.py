"""Passkey: a number hidden in filler, up to the longest contexts that a model takes."""

from kvatlas.grid.cells import RECALL
from kvatlas.grid.prompt_groups import recall_cells
from kvatlas.grid.study import Study

STUDY = Study(
    name="passkey",
    label="Passkey",
    order=30,
    kind=RECALL,
    task="passkey",
    unfold=lambda context: recall_cells(context, "passkey"),
)
