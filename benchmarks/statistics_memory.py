"""Peak memory of a prefill with and without H2O's statistics against the context, each in a fresh process.

`python -m benchmarks.statistics_memory [--contexts 1024 2048 4096]`. A random model of the embedded model's heads and
width, with 4 layers and a small vocabulary, so that the attention matters most. `whole matrices` is what H2O takes
where attention is computed eagerly and its weights `[B, H, T, T]` are kept.
"""

from __future__ import annotations

import argparse

from benchmarks.common import python, save

CODE = """
import json, resource, sys, time
import torch
from kvatlas.lm.cache import Observation
from kvatlas.lm.loading import LanguageModel
from tests.support.tiny_models import tiny_model
manner, tokens = sys.argv[1], int(sys.argv[2])
model = tiny_model("llama", layers=4, heads=9, kv_heads=3, head_dim=64, max_positions=tokens + 8)
ids = torch.randint(5, 400, (1, tokens), generator=torch.Generator().manual_seed(0))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
started = time.perf_counter()
with torch.inference_mode():
    if manner == "whole matrices":
        model.set_attn_implementation("eager")
        model(input_ids=ids, output_attentions=True, use_cache=True)
    else:
        lm = LanguageModel.wrap(model)
        lm.prefill(ids, lm.new_cache(Observation(cumulative=manner == "statistics")))
print(json.dumps({"extra_mib": round(peak() - before), "prefill_seconds": round(time.perf_counter() - started, 2)}))
"""


def main() -> None:
    """Measure every manner at every context."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 2048, 4096])
    args = parser.parse_args()
    rows = [
        {"context": context, "manner": manner} | python(CODE, manner, str(context))
        for context in args.contexts
        for manner in ("no statistics", "statistics", "whole matrices")
    ]
    save("statistics_memory", rows, model="4 layers, 9 heads, 3 KV heads, head size 64, fp32, one prompt")


if __name__ == "__main__":
    main()
