"""Prefill files: built once per group, read by every arm, released when the group is done, rebuilt when needed again.

A prefill is a small manifest, which the workflow tracks, and its tensors beside it, which may be gone: releasing
them saves disk, and editing one policy later must not rerun the other arms just because a prefill is made again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.experiments import run_cell
from kvatlas.files import checksum, read_json, write_json
from kvatlas.lm.staging import locked
from kvatlas.paths import tensors_of

Spec = Mapping[str, Any]
Inputs = Mapping[str, Path]


def build(spec: Spec, inputs: Inputs, manifest: Path, *, fingerprint: str = "") -> None:
    """Prefill the prompts of `spec` (inputs `model`, `prompts`); write the tensors, then `manifest`."""
    with locked(tensors_of(manifest)):
        _run(spec, inputs, tensors_of(manifest))
        write_json(manifest, {"cell": dict(spec), "fingerprint": fingerprint})


def ensure(manifest: Path, inputs: Inputs) -> Path:
    """Return the tensors of `manifest`, built again when they were released or are broken.

    Only one process builds; others wait for it. Raises KvatlasError when the manifest is missing or broken.
    """
    record = read_json(manifest)
    if not isinstance(record, dict) or "cell" not in record:
        raise KvatlasError(f"{manifest}: not the manifest of a prefill; delete it and run the same command again")
    tensors = tensors_of(manifest)
    with locked(tensors):
        if not tensors.is_file():
            _say(f"{tensors} was released; prefilling again")
        elif not _is_intact(tensors):
            _say(f"{tensors} is broken; prefilling again")
        else:
            return tensors
        _run(record["cell"], {name: inputs[name] for name in ("model", "prompts")}, tensors)
    return tensors


def release(manifest: Path) -> None:
    """Delete the tensors of `manifest`; nothing to do when they are gone."""
    tensors = tensors_of(manifest)
    for path in (tensors, _sum_of(tensors), tensors.with_name(f".{tensors.name}.lock")):
        path.unlink(missing_ok=True)


def _run(spec: Spec, inputs: Inputs, tensors: Path) -> None:
    _sum_of(tensors).unlink(missing_ok=True)
    run_cell.run(spec, inputs, tensors)
    # Not in the manifest: a prefill made again on another processor may differ in the last bit, and the manifest
    # must not change with it.
    write_json(_sum_of(tensors), _measure(tensors))


def _is_intact(tensors: Path) -> bool:
    try:
        return bool(read_json(_sum_of(tensors)) == _measure(tensors))
    except KvatlasError:
        return False


def _measure(tensors: Path) -> dict[str, int | str]:
    return {"bytes": tensors.stat().st_size, "checksum": checksum(tensors)}


def _sum_of(tensors: Path) -> Path:
    return tensors.with_suffix(".checksum.json")


def _say(message: str) -> None:
    print(f"kvatlas: {message}", file=sys.stderr, flush=True)
