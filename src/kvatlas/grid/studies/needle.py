"""Needle in a haystack: one code hidden at a depth of a long prompt."""

from kvatlas.grid.cells import RECALL
from kvatlas.grid.prompt_groups import recall_cells, recall_keys
from kvatlas.grid.study import Study

STUDY = Study(
    name="needle",
    label="Needle in a haystack",
    order=10,
    question=(
        "Which needles does a model still find after its cache was compressed? One code hides at a depth of a "
        "long text, and every arm answers from what is left of the same cache."
    ),
    kind=RECALL,
    task="needle",
    keys=recall_keys(
        {
            "haystack": {
                "enum": ["sentences", "corpus", "noise"],
                "default": "sentences",
                "description": "what surrounds it: random sentences, an offset of a corpus, or one repeated paragraph",
            }
        }
    ),
    required=("contexts", "seeds", "depths", "new_tokens", "n_sinks", "n_recent", "modes"),
    unfold=recall_cells,
)
