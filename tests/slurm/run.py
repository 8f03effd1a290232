"""Run the smoke configuration through a real Slurm on this machine, and compare its results with a local run.

    sudo apt-get install --no-install-recommends slurm-wlm munge
    pip install -c constraints.txt -e '.[slurm,test]'
    snakemake --cores all --configfile config/smoke.yaml   # fetches the model, once
    sudo python -m tests.slurm.run

`tests.slurm.run tiny` takes tiny random models, made here, in place of the smoke configuration.

Needs root: it writes /etc/slurm/slurm.conf (refused when there is one), starts munged, slurmctld and slurmd, and stops
them by their process ids.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.checkout import Checkout, forget, make_real_run
from tests.support.places import ROOT
from tests.support.tiny_run import make_tiny_run

CONFIG = Path("/etc/slurm/slurm.conf")
MUNGE_FOLDERS = ("/run/munge", "/var/log/munge", "/var/lib/munge", "/etc/munge")
SNAKEMAKE = (
    "--profile profiles/slurm --jobs 4 --slurm-no-account --slurm-status-command squeue "
    "--slurm-init-seconds-before-status-checks 5 --latency-wait 10"
)
COMPARED = ("results.json", "trials.parquet", "samples.md")
TEMPLATE = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
MinJobAge=3600
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    make_run = {"smoke": make_real_run, "tiny": make_tiny_run}[sys.argv[1] if len(sys.argv) > 1 else "smoke"]
    checkout = make_run(folder / "repo")
    checkout.timeout = 3600.0
    local = timed("local", checkout.snakemake)
    expected = results(checkout)
    forget(checkout)
    with slurm(folder):
        say(sinfo=output("sinfo", "--noheader", "--format=%P %a %D %t %c CPUs"))
        remote = timed("slurm", lambda: checkout.snakemake(*SNAKEMAKE.split()))
        say(squeue=output("squeue", "--noheader", "--states=all", "--format=%T").split().count("COMPLETED"))
    files = results(checkout)
    differing = [name for name in COMPARED if files[name] != expected[name]]
    steps = re.findall(r"(\d+) of \d+ steps \(100%\) done", remote + local)
    say(slurm_jobs=len(re.findall(r"has been submitted with SLURM jobid", remote)), steps=steps, differing=differing)
    shutil.rmtree(folder)
    return 1 if differing else 0


@contextmanager
def slurm(folder: Path) -> Iterator[None]:
    """A single-node Slurm while the block runs."""
    if CONFIG.exists():
        raise SystemExit(f"{CONFIG} exists: this machine has a Slurm of its own")
    host = socket.gethostname().split(".")[0]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    for name in ("state", "spool"):
        (folder / name).mkdir()
    CONFIG.write_text(TEMPLATE.format(host=host, folder=folder, cpus=os.cpu_count(), memory=memory))
    for name in MUNGE_FOLDERS:
        Path(name).mkdir(parents=True, exist_ok=True)
        shutil.chown(name, "munge", "munge")
    Path("/run/munge").chmod(0o755)
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for name, command, user in (
            ("munged", ("munged", "--foreground"), "munge"),
            ("slurmctld", ("slurmctld", "-D"), None),
            ("slurmd", ("slurmd", "-D"), None),
        ):
            log = (folder / f"{name}.log").open("wb")
            daemons.append(subprocess.Popen(command, user=user, stdout=log, stderr=log))
            time.sleep(1)
        wait_until_it_answers(folder)
        yield
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(timeout=60)
        CONFIG.unlink()


def wait_until_it_answers(folder: Path) -> None:
    for _ in range(30):
        done = subprocess.run(["timeout", "10", "srun", "true"], capture_output=True, check=False)
        if done.returncode == 0:
            return
        time.sleep(2)
    logs = "\n".join(f"{path.name}: {path.read_text()[-500:]}" for path in folder.glob("*.log"))
    raise SystemExit(f"Slurm does not answer: {done.stderr.decode()}\n{logs}")


def timed(name: str, run) -> str:
    started = time.monotonic()
    done = run()
    say(run=name, seconds=round(time.monotonic() - started, 1))
    (ROOT / f"logs/slurm-test-{name}.log").write_text(done.stdout + done.stderr)
    return done.stdout + done.stderr


def results(checkout: Checkout) -> dict[str, bytes]:
    (report,) = (checkout.root / "reports").iterdir()
    return {name: (report / name).read_bytes() for name in COMPARED}


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def say(**record: object) -> None:
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    sys.exit(main())
