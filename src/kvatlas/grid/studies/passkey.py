"""Passkey: a number hidden in filler, up to the longest contexts that a model takes."""

from kvatlas.grid.cells import RECALL
from kvatlas.grid.prompt_groups import recall_cells, recall_keys
from kvatlas.grid.study import Study

STUDY = Study(
    name="passkey",
    label="Passkey",
    order=30,
    question=(
        "Does a five-digit number survive in long filler? Repeated noise flatters methods that look at keys, "
        "so each haystack is reported apart."
    ),
    kind=RECALL,
    task="passkey",
    keys=recall_keys(
        {
            "haystacks": {
                "type": "array",
                "minItems": 1,
                "uniqueItems": True,
                "items": {"enum": ["noise", "sentences", "corpus"]},
                "description": "a list of haystacks",
            }
        }
    ),
    required=("contexts", "seeds", "depths", "haystacks", "new_tokens", "n_sinks", "n_recent", "modes"),
    unfold=recall_cells,
)
