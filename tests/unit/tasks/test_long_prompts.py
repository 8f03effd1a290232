"""A passkey prompt of 16,384 tokens is prefilled in chunks and answered without an attention matrix in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.places import ROOT
from tests.support.tiny_models import make_model_dir

CONTEXT = 16_384
HEADS = 4
# One layer's attention matrix, fp32, in MiB; the whole job, both its parts, must stay far under it.
MATRIX_MIB = HEADS * CONTEXT**2 * 4 / 2**20

JOB = """
import json, resource, sys
from pathlib import Path
from kvatlas.experiments import prefill, recall
from kvatlas.files import write_jsonl
from kvatlas.tasks import passkey
from tests.support.tiny_models import tiny_tokenizer

root, context = Path(sys.argv[1]), int(sys.argv[2])
rows = passkey.make_prompts(
    tiny_tokenizer(), mode="aware", context=context, seeds=[0], depths=[50], haystack="noise", corpus=None
)
write_jsonl(root / "prompts.jsonl", rows)
group = {"study": "passkey", "model": "tiny", "mode": "aware", "context": context, "shard": 0, "new_tokens": 4}
group |= {"device": "cpu", "dtype": "fp32"}
inputs = {"model": root / "model", "prompts": root / "prompts.jsonl", "prefill": root / "prefill.safetensors"}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
prefill.write({"kind": "prefill", "block": 1024, "windows": [1, 16], **group}, inputs, inputs["prefill"])
budget = {"budget": "1024", "n_sinks": 4, "n_recent": 32, "skip_layers": [], "quantizer": "none"}
spec = {"kind": "recall", "arm": "snapkv-1024slots", "method": "snapkv", "policy": {"name": "snapkv", "window": 16}}
measured = recall.measure(spec | group | budget, inputs)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
trial = measured.trials[0]
scale = 2**20 if sys.platform == "darwin" else 2**10
print(json.dumps({"grown_mib": (after - before) / scale, "slots": trial["slots"], "tokens": trial["prompt_tokens"]}))
"""


def test_sixteen_thousand_tokens_need_no_attention_matrix(tmp_path: Path) -> None:
    make_model_dir(tmp_path / "model", "qwen2", heads=HEADS, kv_heads=2, max_positions=CONTEXT + 64)
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(tmp_path), str(CONTEXT)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout.splitlines()[-1])
    assert job["tokens"] == CONTEXT
    assert job["slots"] == 1024
    assert job["grown_mib"] < MATRIX_MIB / 4, job
