"""The `kvatlas` command: a thin parser. A user's mistake ends in one line on stderr and exit code 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvatlas import terminal
from kvatlas.cli import commands, jobs, look, run
from kvatlas.errors import KvatlasError
from kvatlas.files import system_reason
from kvatlas.grid.config import DEFAULT_FILE
from kvatlas.pipeline import fork_server

Handler = Callable[[argparse.Namespace], int | None]
USER_ERROR = 2
MAIN = "kvatlas.cli.main:main"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; unexpected errors keep their traceback."""
    with terminal.visible_output():
        args = build_parser().parse_args(argv)
        try:
            return args.handler(args) or 0
        except KvatlasError as error:
            print(f"kvatlas: error: {error}", file=sys.stderr)
            return USER_ERROR
        except OSError as error:
            reason = system_reason(error)
            if reason is None or error.filename is None:
                raise
            print(f"kvatlas: error: {terminal.one_line(f'{error.filename}: {reason}')}", file=sys.stderr)
            return USER_ERROR


def entry() -> None:
    """Run the command of this process, and leave without tearing torch down: that takes up to a second per cell."""
    terminal.install()
    code = fork_server.run(sys.argv[1:], MAIN)
    if code is None:
        code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser with all commands."""
    top = argparse.ArgumentParser(prog="kvatlas", description="What it costs to shrink an LLM's KV cache, measured.")
    commands_of = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, handler: Handler, text: str) -> argparse.ArgumentParser:
        return _command(commands_of, name, handler, text)

    text = "Which method at this ratio, on this model, in a few minutes: a table that grows round by round."
    look.add_command(command("try", look.look, text))
    for name, handler, text in (
        ("validate", commands.validate, "Validate a configuration."),
        ("plan", commands.show_plan, "Print jobs, prefills, disk and tokens of a configuration."),
    ):
        _with_config(command(name, handler, text))
    check = command("check", commands.check, "Compare a run's stored cells with the current code and configuration.")
    check.add_argument("--accept", action="store_true", help="declare that edits of the code have changed no number")
    _with_config(check)
    why = command("why", commands.why, "List what would make a file of a run again, and because of what.")
    why.add_argument("path", help="a file of results/ or reports/")
    _with_config(why)
    prune = command("prune", commands.prune, "List the files of a run that its configuration no longer has.")
    prune.add_argument("--yes", action="store_true", help="delete them")
    _with_config(prune)
    _add_publish(command("publish", commands.publish, "Publish a report as a dataset repository on the Hub."))
    report = command("report", commands.report, "Print where the pages of a run are, or open them.")
    report.add_argument("--open", action="store_true", help="open the explorer in a browser")
    _with_config(report)
    _add_compare(command("compare", commands.compare, "Compare two reports: does one repeat the other?"))
    atlas = command("atlas", commands.atlas, "Put all finished reports side by side: claims by model, bytes, ranks.")
    atlas.add_argument(
        "reports", type=Path, nargs="*", metavar="REPORT", help="report folders (default: all of reports/)"
    )
    atlas.add_argument("--output", type=Path, default=Path("reports"), help="where README.md goes (default: reports)")
    run.add_commands(commands_of)
    command("docs", commands.docs, "Write docs/configuration.md from the schema, and the tables of docs/methods.md.")
    text = "What the jobs of the workflow run; nobody calls these by hand."
    jobs_of = commands_of.add_parser("job", help=text, description=text)
    steps = jobs_of.add_subparsers(title="jobs", required=True, metavar="JOB")
    _add_job_commands(lambda name, handler, about: _command(steps, name, handler, about))
    return top


def _command(commands_of: Any, name: str, handler: Handler, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands_of.add_parser(name, help=text, description=text)
    parser.set_defaults(handler=handler)
    return parser


def _with_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--configfile", default=DEFAULT_FILE, help=f"configuration (default: {DEFAULT_FILE})")


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Exit code 0: they agree; 1: they differ by more than chance; 2: they cannot be compared."
    parser.add_argument("report", help="a report's folder, or its Hub id NAME/REPOSITORY[@REVISION]")
    parser.add_argument("other", help="the repeat of it, a folder or Hub id")
    parser.add_argument(
        "--output", type=Path, default=Path("."), help="where comparison.md and comparison.json go (default: here)"
    )


def _add_publish(parser: argparse.ArgumentParser) -> None:
    _with_config(parser)
    parser.add_argument("--folder", type=Path, help="the report (default: that of the configuration's run)")
    parser.add_argument("--repo-id", help="NAME/REPOSITORY (default: publish.repo_id of the configuration)")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument("--dry-run", action="store_true", help="check the card and list the files, and send nothing")


def _add_job_commands(command: Callable[[str, Handler, str], argparse.ArgumentParser]) -> None:
    """The commands that the workflow's jobs run."""
    for name, handler, text in (
        ("fetch-model", jobs.fetch_model, "Fetch a model into resources/."),
        ("fetch-text", jobs.fetch_text, "Fetch a text into resources/."),
    ):
        parser = command(name, handler, text)
        parser.add_argument("--name", required=True)
        parser.add_argument("--entry", required=True, help="the catalog entry, JSON")
        parser.add_argument("--output", type=Path, required=True)
    cell = _job(command("cell", jobs.cell, "Run one cell of the grid."))
    cell.add_argument("--input", nargs="*", default=[], metavar="NAME=PATH")
    cell.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    _job(command("verify", jobs.verify, "Check the cells of a group and release its prefill."))
    aggregate = _job(command("aggregate", jobs.aggregate, "Aggregate the cells of a study."))
    aggregate.add_argument("--study", required=True)
    _job(command("results", jobs.results, "Write results.json and the other data of the report."))
    figure = _job(command("figure", jobs.figure, "Draw one figure of a report."), spec=False)
    figure.add_argument("--name", required=True)
    figure.add_argument("--results", type=Path, required=True)
    figure.add_argument("--trials", type=Path, required=True)
    _job(command("pages", jobs.pages, "Write the pages of a report."), spec=False)
    highlights = _job(command("highlights", jobs.highlights, "Put a run's highlights into a README."), spec=False)
    highlights.add_argument("--results", type=Path, required=True, help="results.json of the report")
    highlights.add_argument("--readme", type=Path, default=Path("README.md"), help="default: README.md")
    _job(command("explorer", jobs.explorer, "Write the explorer of a report."), spec=False)


def _job(parser: argparse.ArgumentParser, *, spec: bool = True) -> argparse.ArgumentParser:
    if spec:
        parser.add_argument("--spec", required=True, help="everything that decides the output, JSON")
    parser.add_argument("--code", help="the fingerprint that the code must have")
    parser.add_argument("--output", type=Path, required=True)
    return parser
