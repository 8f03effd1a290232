"""Stand-in: trials without a model; TOY_SECONDS makes it last, so that it can be killed."""

import os
import time
import zlib
from typing import TYPE_CHECKING

from kvatlas.experiments.cell_file import Measured
from kvatlas.files import read_jsonl

if TYPE_CHECKING:
    import kvatlas.compression.apply
    import kvatlas.compression.build
    import kvatlas.lm.cache  # noqa: F401


def measure(spec, inputs):
    time.sleep(float(os.environ.get("TOY_SECONDS", "0")))
    prompts = read_jsonl(inputs["prompts"])
    assert inputs["prefill"].read_text() == str(len(prompts))
    return Measured([trial(spec, prompt) for prompt in prompts], {"decode_tokens_per_s": 10.0})


def trial(spec, prompt):
    draw = zlib.crc32(f"{spec['arm']} {prompt['id']}".encode()) % 100 / 100
    hit = spec["mode"] != "no_context" and (spec["method"] == "full" or draw < 0.5)
    nlls = [0.1 + draw / 10, 0.2]
    kept = spec["context"] // (1 if spec["method"] == "full" else 4)
    identity = {key: spec[key] for key in ("study", "model", "arm", "method", "budget", "quantizer", "mode", "context")}
    return identity | {
        "policy": spec["policy"]["name"],
        **{key: prompt[key] for key in ("id", "seed", "depth")},
        "haystack": "sentences",
        "hit": hit,
        "answer": "QZT-4821",
        "output": f"It is {draw}.",
        "output_ids": [1, 2],
        "gold_nlls": nlls,
        "ref_nlls": nlls,
        "self_nlls": nlls,
        "ref_kls": [draw, 0.0],
        "ref_top1": [hit, True],
        "hidden_cosine": 0.9,
        "needle_retained": draw,
        "prompt_tokens": spec["context"],
        "slots": float(kept),
        "full_slots": spec["context"],
        "resident_bytes": kept * 8,
        "payload_bytes": kept * 8,
        "peak_bytes": kept * 8,
        "full_bf16_bytes": spec["context"] * 4,
        "tokens_written": spec["context"],
    }
