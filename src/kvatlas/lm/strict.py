"""Whether loaded weights are those that a configuration describes: no tensor missing, left over or of another shape.

transformers draws what is missing at random and drops what is left over, with a warning; here either is an error. Knows the
report of its loader, and nothing of folders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvatlas.errors import KvatlasError

_PROBLEMS = {
    "missing_keys": "its weights lack {count}, which would be drawn at random",
    "unexpected_keys": "its weights hold {count} that its configuration has no place for",
    "mismatched_keys": "its weights hold {count} of another shape than its configuration has",
}


def check_loaded(model: Any, report: Mapping[str, Any], label: str) -> None:
    """Raise KvatlasError, starting with `label`, unless `model` was loaded from exactly the tensors that it has.

    `report` is what `from_pretrained(..., output_loading_info=True)` returns beside the model. Tensors that transformers
    itself says are optional for an architecture are in none of its lists.
    """
    for kind, problem in _PROBLEMS.items():
        # An entry of mismatched_keys is a name with two shapes.
        names = sorted(key if isinstance(key, str) else str(key[0]) for key in report.get(kind, ()))
        if names:
            count = f"{len(names)} tensor{'s' * (len(names) > 1)}"
            raise KvatlasError(f"{label}: {problem.format(count=count)}; the first is {ascii(names[0])[1:-1]}")
    if report.get("error_msgs"):
        raise KvatlasError(f"{label}: its weights cannot be loaded ({ascii(str(report['error_msgs'][0]))[1:300]})")
    _check_tied(model, label)


def _check_tied(model: Any, label: str) -> None:
    """transformers unties a head that differs from the embeddings, whatever the configuration says."""
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    tied = bool(getattr(model.config, "tie_word_embeddings", False)) and bool(
        getattr(model, "_tied_weights_keys", None)
    )
    if tied and head is not None and head.weight is not embeddings.weight:
        raise KvatlasError(
            f"{label}: its configuration ties the head to the embeddings, but its weights hold another head; "
            "set `tie_word_embeddings` as it is meant"
        )
