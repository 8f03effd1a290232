import shlex
import sys

from kvatlas.workflow import Workflow

FLOW = Workflow.open(config, workflow.configfiles, workflow.basedir)
RUN = FLOW.paths.run
RESULTS = FLOW.paths.results
REPORT = FLOW.paths.report
# The interpreter of this workflow, so that jobs do not depend on what PATH says.
KVATLAS = f"{shlex.quote(sys.executable)} -m kvatlas"


wildcard_constraints:
    study=r"[a-z_]+",
    model=r"[A-Za-z0-9._-]+",
    text=r"[A-Za-z0-9._-]+",
    arm=r"[a-z0-9_.-]+",
    group=r"[a-z]+(-[a-z]+)?-\d+-\d+",
    figure=r"f\d+_[a-z0-9_]+",
