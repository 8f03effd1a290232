"""What a cell costs before it works, CPU seconds in fresh processes: `python -m benchmarks.startup --model FOLDER`."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.common import python, save

CODE = """
import json, sys, time
from pathlib import Path
t = [time.process_time()]
import kvatlas.commands
t.append(time.process_time())
import torch
t.append(time.process_time())
import transformers
from kvatlas.experiments import prefill, recall
t.append(time.process_time())
from kvatlas.lm.loading import LanguageModel
lm = LanguageModel.load(Path(sys.argv[1]), "cpu", "fp32")
t.append(time.process_time())
from kvatlas.compression.apply import Compressor
from kvatlas.compression.budget import Budget
from kvatlas.compression.registry import make_policy
from kvatlas.experiments.decoding import greedy
policy = make_policy({"name": "snapkv", "window": 16})
ids = torch.randint(5, 400, (2, 256), generator=torch.Generator().manual_seed(0))
with torch.inference_mode():
    cache = lm.new_cache(policy.observation())
    lm.prefill(ids, cache)
    Compressor(policy, Budget("4x", n_sinks=4, n_recent=32), 256, lm.rotary, [0, 1])(cache)
    cache.stop_observing()
    greedy(lm, cache, ids[:, -1:], 16)
t.append(time.process_time())
names = ("import_kvatlas", "import_torch", "import_transformers", "load_model", "work")
print(json.dumps({f"{n}_cpu_seconds": round(b - a, 2) for n, a, b in zip(names, t, t[1:])}))
"""


def main() -> None:
    """Measure a few starts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("resources/models/smollm2-135m"))
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    rows = [{"start": number} | python(CODE, str(args.model)) for number in range(1, args.repeats + 1)]
    save("startup", rows, model=args.model.name, work="2 prompts of 256 tokens, SnapKV at 4x, 16 new tokens")


if __name__ == "__main__":
    main()
