"""What each `kvatlas` command that people use does, given its parsed arguments; heavy imports happen inside."""

from __future__ import annotations

import webbrowser
from argparse import Namespace
from pathlib import Path

from kvatlas.errors import KvatlasError
from kvatlas.grid import config, unfold
from kvatlas.paths import Paths
from kvatlas.pipeline import plan
from kvatlas.pipeline.workflow import Workflow
from kvatlas.tracking import acceptance, pruning, staleness


def publish(args: Namespace) -> None:
    """Check a report, list its files, and publish them unless it is a dry run."""
    from kvatlas.reporting.hub import publishing

    configuration = config.load(args.configfile)
    target = configuration.get("publish", {})
    repo_id = args.repo_id or target.get("repo_id")
    if not repo_id:
        raise KvatlasError("publish: no repository; give --repo-id NAME/REPOSITORY, or set publish.repo_id")
    folder = args.folder or Path(Paths(configuration["run"]).report)
    files = publishing.collect(folder)
    print(publishing.describe(files), flush=True)
    for name in publishing.strays(folder):
        print(f"left out, no file of a report: {name}")
    if args.dry_run:
        print(f"{repo_id}: dry run, nothing was sent")
    else:
        print(publishing.publish(files, repo_id, private=args.private or target.get("private", False)))


def report(args: Namespace) -> None:
    """Print where the pages of a run are; with `--open`, show the explorer in a browser."""
    folder = Path(unfold.grid(config.load(args.configfile)).paths.report)
    pages = [folder / name for name in ("README.md", "explorer.html")]
    missing = [path for path in pages if not path.is_file()]
    if missing:
        raise KvatlasError(f"{missing[0]}: no such page; build it with snakemake --configfile {args.configfile}")
    for path in pages:
        print(path)
    if args.open and not webbrowser.open(pages[-1].resolve().as_uri()):
        raise KvatlasError(f"{pages[-1]}: no browser was found here; open the file in one yourself")


def compare(args: Namespace) -> int:
    """Compare two reports, write the page and data of it, and return 0 where they agree, 1 where they differ."""
    from kvatlas.analysis.agreement import comparison
    from kvatlas.reporting import comparison as page
    from kvatlas.reporting.hub.download import read_report

    compared = comparison.compare(read_report(args.report), read_report(args.other))
    print("\n".join(page.summary(compared)))
    for path in page.write(compared, args.output):
        print(path)
    return 0 if compared["verdict"] == comparison.AGREE else 1


def atlas(args: Namespace) -> None:
    """Write the atlas of some reports, or of all finished ones. Raises KvatlasError when there is none."""
    from kvatlas.analysis import atlas as reading
    from kvatlas.reporting import atlas as page

    folders = args.reports or sorted(path.parent for path in Path("reports").glob("*/results.json"))
    if not folders:
        raise KvatlasError("reports: no finished report; build one with snakemake")
    for path in page.write([reading.read(folder) for folder in folders], args.output):
        print(path)


def docs(args: Namespace) -> None:
    """Write the pages of docs/ that are made: the configuration's keys, the tables of methods."""
    from kvatlas.reporting import docs as configuration_page
    from kvatlas.reporting import methods_page

    configuration_page.write_configuration()
    methods_page.write_methods()
    print(f"{configuration_page.PAGE} is what the schema says, {methods_page.PAGE} what the methods' files say")


def check(args: Namespace) -> None:
    """Compare every stored cell with what the configuration and code would make now; `--accept` takes code edits."""
    current = Workflow(config.load(args.configfile)).current
    if args.accept:
        accepted = acceptance.accept(current)
        print("\n".join([f"accepted: {path}" for path in accepted]))
        print(f"{len(accepted)} cells accepted as made by the current code; now run: snakemake --touch --cores 1")
    count = staleness.check(current, current.grid.trial_cells())
    print(f"{count} cells are what the current code and configuration make")


def prune(args: Namespace) -> None:
    """List the files of a run that its configuration no longer has; `--yes` deletes them."""
    left = pruning.left_over(unfold.grid(config.load(args.configfile)))
    for path in left:
        if args.yes:
            pruning.remove(path)
        print(f"deleted: {path}" if args.yes else path)
    print(
        f"{len(left)} files are of no cell of this configuration"
        + ("" if args.yes or not left else "; --yes deletes them")
    )


def validate(args: Namespace) -> None:
    """Validate a configuration."""
    grid = unfold.grid(config.load(args.configfile))
    print(f"{args.configfile}: valid; run '{grid.paths.run}' has {len(grid.trial_cells())} cells with trials")


def show_plan(args: Namespace) -> None:
    """Print how much work a configuration is."""
    print(plan.describe(Workflow(config.load(args.configfile))))


def why(args: Namespace) -> None:
    """Print what would rerun an output, and because of which file or key."""
    current = Workflow(config.load(args.configfile)).current
    reasons = staleness.explain_rerun(current, args.path)
    lines = [f"{args.path}: would be made again" if reasons else f"{args.path}: up to date"]
    print("\n".join(lines + [f"  {reason}" for reason in reasons]))
