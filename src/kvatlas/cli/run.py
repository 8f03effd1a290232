"""One experiment without the workflow: `kvatlas run STUDY`, and `kvatlas plot`.

The command line becomes a small configuration, which is validated and unfolded into cells exactly as a file would be;
the cells then run one after another in this process. Imports neither torch nor a plotting library at its top.
"""

from __future__ import annotations

import sys
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvatlas.cli.experiments import EXPERIMENTS, add_common, described
from kvatlas.cli.local_models import opened
from kvatlas.cli.look import aligned
from kvatlas.errors import KvatlasError
from kvatlas.files import read_json, write_json
from kvatlas.grid import config, unfold
from kvatlas.lm.catalog import load_models, load_texts
from kvatlas.paths import MODELS_FILE, TEXTS_FILE

_CATALOGS = ((load_models, MODELS_FILE), (load_texts, TEXTS_FILE))
FIGURES = {"online-lm": ("f5_online_lm", "f7_perplexity_protocols"), "attention-loss": ("f8_attention_loss",)}
EMBEDDER = "all-minilm-l6-v2"  # a configuration names one; these commands never use it
RESULTS = "results.json"

_RUN_EPILOG = """\
The full cache is always run too. Files go to results/RUN/: one file of trials per arm, and results.json with the
aggregates, which `kvatlas plot` reads. Models and texts are named in config/models.yaml and config/texts.yaml and are
fetched on first use; run the command in the repository's folder.
"""


def add_commands(commands: Any) -> None:
    """Add `run` and `plot` with their experiments to `commands`, the subparsers of the `kvatlas` command."""
    run_text = "Run one experiment without the workflow."
    runs = commands.add_parser("run", help=run_text, description=run_text)
    experiments = runs.add_subparsers(title="experiments", required=True, metavar="EXPERIMENT")
    for name, experiment in EXPERIMENTS.items():
        parser = experiments.add_parser(
            name,
            help=experiment.text,
            description=experiment.text,
            epilog=f"{_RUN_EPILOG}\nexample:\n  kvatlas run {name} {experiment.example}",
            formatter_class=RawDescriptionHelpFormatter,
        )
        parser.set_defaults(handler=run, experiment=name)
        add_common(parser)
        experiment.add(parser)
    plot_text = "Draw the figures of an experiment from a results.json."
    plots = commands.add_parser("plot", help=plot_text, description=plot_text)
    experiments = plots.add_subparsers(title="experiments", required=True, metavar="EXPERIMENT")
    for name, names in FIGURES.items():
        text = f"Draw {', '.join(names)} as PNG and SVG from a results.json."
        parser = experiments.add_parser(
            name, help=text, description=f"{text} Both `kvatlas run` and the workflow write one."
        )
        parser.set_defaults(handler=plot, experiment=name)
        parser.add_argument(
            "--results", type=Path, default=Path("results/single") / RESULTS, help=described("the results")
        )
        parser.add_argument("--output", type=Path, help="folder of the pictures (default: that of the results)")


def configuration(args: Namespace) -> dict[str, Any]:
    """Return the configuration that the command line of an experiment stands for."""
    experiment = EXPERIMENTS[args.experiment]
    named: dict[str, dict[str, Any]] = dict(getattr(args, "methods", ()))
    block = experiment.block(args, {"methods": list(named), "budgets": getattr(args, "budgets", [])})
    return {
        "run": args.run,
        "title": f"One {args.experiment} experiment",
        "models": [args.model],
        "embedder": EMBEDDER,
        "device": args.device,
        "dtype": args.dtype,
        "methods": {name: entry for name, entry in named.items() if entry},
        "studies": {experiment.study: block},
    }


def run(args: Namespace) -> None:
    """Run an experiment, write its results.json and print its table; cells that are there already are kept."""
    study = EXPERIMENTS[args.experiment].study
    from kvatlas.lm.named_model import find
    from kvatlas.pipeline import tables
    from kvatlas.pipeline.local_run import LocalRun

    models, texts = (load(file) if Path(file).is_file() else {} for load, file in _CATALOGS)
    args.model, entry = find(args.model, models)
    grid = unfold.grid(_checked(configuration(args), {args.model: entry}, models))
    local = LocalRun(grid, {args.model: entry}, texts)
    with opened(local):
        left = local.left(grid.trial_cells())
        for number, cell in enumerate(left, 1):
            _say(f"cell {number} of {len(left)}: {cell.name}")
            local.run(cell)
    section = tables.aggregate(study, tables.load_trials(grid, study, embedded=False))
    target = Path(grid.paths.results) / RESULTS
    earlier = read_json(target)["studies"] if target.is_file() else {}
    write_json(target, {"schema": 1, "run": args.run, "studies": earlier | {study: section}})
    _say(f"wrote {target}")
    print(_table(study, section, grid.config))


def _checked(configured: dict[str, Any], named: Mapping[str, Any], models: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the configuration where the catalog has its model; elsewhere its cells refuse what they cannot do."""
    return config.validate(configured) if set(named) <= set(models) else configured


def _table(study: str, section: Mapping[str, Any], configured: Mapping[str, Any]) -> str:
    """The main table of a study as aligned text."""
    from kvatlas.reporting import sections

    results = {"studies": {study: section}}
    main_tables = sections.load(study).main_tables(results, configured["studies"][study])
    return "\n\n".join(aligned(table) for table in main_tables)


def plot(args: Namespace) -> None:
    """Draw the figures of an experiment into a folder. Raises KvatlasError when the results do not hold its data."""
    from kvatlas.reporting import figures

    results = read_json(args.results)
    folder = args.output or args.results.parent
    folder.mkdir(parents=True, exist_ok=True)
    written = [path for name in FIGURES[args.experiment] for path in figures.write(name, results, [], folder)]
    if not written:
        raise KvatlasError(f"{args.results}: it holds no {args.experiment} results; make some with `kvatlas run`")
    print("\n".join(str(path) for path in written))


def _say(message: str) -> None:
    print(f"kvatlas: {message}", file=sys.stderr, flush=True)
