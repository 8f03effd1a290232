import os
import shlex
import sys
from pathlib import Path

from kvatlas.lm import portable
from kvatlas.pipeline import fork_server

FLOW = Workflow.open(config, workflow.configfiles, workflow.basedir)
# Before the server of cells is started and before any job: both inherit it.
if FLOW.config.get("portable"):
    portable.prepare(os.environ)
RUN = FLOW.paths.run
RESULTS = FLOW.paths.results
REPORT = FLOW.paths.report
# Jobs find `kvatlas` where this workflow's interpreter lives, unless an environment of theirs has its own.
shell.prefix(
    f'set -euo pipefail; PATH="$PATH":{shlex.quote(str(Path(sys.executable).parent))}; '
)


# Seconds of work without a model, or (fetching) work that needs the network: not worth a scheduler's job.
localrules:
    fetch_model,
    fetch_text,
    verify,
    aggregate,
    results,
    check,
    figure,
    pages,
    explorer,
    highlights,
    publish,


wildcard_constraints:
    study=r"[a-z0-9_]+",
    model=r"[A-Za-z0-9._-]+",
    text=r"[A-Za-z0-9._-]+",
    arm=r"[a-z0-9_.-]+",
    group=r"[a-z_]+(-[a-z0-9_]+)*-\d+-\d+",
    figure=r"f\d+_[a-z0-9_]+",


# What was damaged is there, and may have kept its time; what is missing Snakemake makes again.
if workflow.is_main_process:
    FLOW.set_damaged_aside()
    FLOW.bring_to_the_present()


# Cells of a local run without a GPU are forks of one process that has imported torch.
onstart:
    if workflow.is_main_process and workflow.local_exec and not FLOW.gpus():
        fork_server.start()
