"""What a cell costs before it works, in new processes and as a fork: `python -m benchmarks.startup --model FOLDER`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.common import python, save

CODE = """
import json, sys, time
from pathlib import Path
t = [time.process_time()]
started = time.perf_counter()
import kvatlas.cli.commands
t.append(time.process_time())
import torch
t.append(time.process_time())
import transformers
from kvatlas.experiments import prefill, recall
t.append(time.process_time())
from kvatlas.lm.loading import LanguageModel
lm = LanguageModel.load(Path(sys.argv[1]), "cpu", "fp32")
t.append(time.process_time())
start = {"start_seconds": round(time.perf_counter() - started, 2)}
from kvatlas.compression.apply import Compressor
from kvatlas.compression.budget import Budget
from kvatlas.compression.build import make_policy
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
print(json.dumps(start | {f"{n}_cpu_seconds": round(b - a, 2) for n, a, b in zip(names, t, t[1:])}), flush=True)
"""
# As the fork server does, one fork of it being the cell.
FORK = """
import os, sys
from kvatlas.pipeline import fork_server
fork_server.preload()
child = os.fork()
if child:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
PARTS = ("start_", "import_", "load_", "work_")
MANNERS = {"new process": CODE, "fork": FORK + CODE}


def main() -> None:
    """Measure a few starts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("resources/models/smollm2-135m"))
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    # As a cell has by default.
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = []
    for _ in range(args.repeats):
        for manner, code in MANNERS.items():
            measurement = python(code, str(args.model))
            # The rest of what was measured is of the process that was forked as well.
            rows.append(
                {"manner": manner} | {name: measurement[name] for name in measurement if name.startswith(PARTS)}
            )
    save("startup", rows, model=args.model.name, work="2 prompts of 256 tokens, SnapKV at 4x, 16 new tokens")


if __name__ == "__main__":
    main()
