"""One experiment without the workflow: `kvatlas run online-lm | passkey | attention-loss`, and `kvatlas plot`.

The command line becomes a small configuration, which is validated and unfolded into cells exactly as a file would be;
the cells then run one after another in this process. Imports neither torch nor a plotting library at its top.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from kvatlas.errors import KvatlasError
from kvatlas.files import read_json, write_json
from kvatlas.grid import config, unfold
from kvatlas.grid.cells import Grid
from kvatlas.lm.catalog import load_models, load_texts
from kvatlas.paths import MODELS_FILE, TEXTS_FILE, model_file, text_file
from kvatlas.pipeline import cell_jobs

STUDY_OF = {"online-lm": "online_lm", "passkey": "passkey", "attention-loss": "attention_loss"}
FIGURES = {"online-lm": ("f5_online_lm", "f7_perplexity_protocols"), "attention-loss": ("f8_attention_loss",)}
EMBEDDER = "all-minilm-l6-v2"  # a configuration names one; these commands never use it
RESULTS = "results.json"

_METHODS_HELP = (
    "methods, each NAME or NAME:KEY=VALUE,...; NAME is a policy (docs/methods.md), KEY one of its parameters: "
    "snapkv:window=32,kernel=1"
)
_RUN_EPILOG = """\
The full cache is always run too. Files go to results/RUN/: one file of trials per arm, and results.json with the
aggregates, which `kvatlas plot` reads. Models and texts are named in config/models.yaml and config/texts.yaml and are
fetched on first use; run the command in the repository's folder.
"""
_EXAMPLES = {
    "online-lm": "kvatlas run online-lm --tokens 1024 --budgets 128 256 --methods snapkv keydiff l2norm sink_recent",
    "passkey": "kvatlas run passkey --context 1024 --haystack noise --budgets 25% --methods snapkv keydiff l2norm",
    "attention-loss": "kvatlas run attention-loss --context 512 --prompts 4 --methods l2norm keydiff random",
}


def add_commands(commands: Any) -> None:
    """Add `run` and `plot` with their experiments to `commands`, the subparsers of the `kvatlas` command."""
    run_text = "Run one experiment without the workflow."
    runs = commands.add_parser("run", help=run_text, description=run_text)
    experiments = runs.add_subparsers(title="experiments", required=True, metavar="EXPERIMENT")
    for name, add, text in (
        ("online-lm", _add_online, "Score a token stream online while the KV cache is kept at a budget."),
        ("passkey", _add_passkey, "Retrieve a number from filler after the prompt's KV cache was compressed."),
        ("attention-loss", _add_loss, "Measure how much attention a method's order of eviction loses (ALR)."),
    ):
        parser = experiments.add_parser(
            name,
            help=text,
            description=text,
            epilog=f"{_RUN_EPILOG}\nexample:\n  {_EXAMPLES[name]}",
            formatter_class=RawDescriptionHelpFormatter,
        )
        parser.set_defaults(handler=run, experiment=name)
        _add_common(parser)
        add(parser)
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
            "--results", type=Path, default=Path("results/single") / RESULTS, help=_default("the results")
        )
        parser.add_argument("--output", type=Path, help="folder of the pictures (default: that of the results)")


def _default(text: str) -> str:
    return f"{text} (default: %(default)s)"


def _add_common(parser: ArgumentParser) -> None:
    parser.add_argument("--run", default="single", help=_default("name of the folder in results/"))
    parser.add_argument("--model", default="smollm2-135m", help=_default("model, by its name in config/models.yaml"))
    parser.add_argument("--text", default="lee-news", help=_default("text, by its name in config/texts.yaml"))
    parser.add_argument(
        "--device", default="auto", choices=("auto", "cpu", "cuda", "mps"), help=_default("where to run")
    )
    parser.add_argument("--dtype", default="auto", choices=("auto", "fp32", "bf16", "fp16"), help=_default("numbers"))


def _add_methods(parser: ArgumentParser, methods: str) -> None:
    parser.add_argument(
        "--methods",
        nargs="+",
        type=method,
        default=[method(name) for name in methods.split()],
        metavar="METHOD",
        help=f"{_METHODS_HELP} (default: {methods})",
    )


def _add_arms(parser: ArgumentParser, budget: str) -> None:
    _add_methods(parser, "sink_recent snapkv keydiff l2norm random")
    shown = budget.replace("%", "%%")
    text = f'"256" is slots, "50%%" a share of all tokens, "4x" a ratio of the middle (default: {shown})'
    parser.add_argument("--budgets", nargs="+", default=[budget], metavar="BUDGET", help=text)
    parser.add_argument("--n-sinks", type=int, default=4, help=_default("protected slots at the start"))
    parser.add_argument("--n-recent", type=int, default=32, help=_default("protected slots at the end"))
    parser.add_argument("--skip-layers", type=int, nargs="*", default=[], metavar="LAYER", help="layers that stay full")


def _add_online(parser: ArgumentParser) -> None:
    _add_arms(parser, "256")
    parser.add_argument("--tokens", type=int, default=2048, help=_default("length of the stream"))
    parser.add_argument("--block", type=int, default=32, help=_default("tokens per block; also SnapKV's window"))
    parser.add_argument(
        "--protocols",
        nargs="+",
        default=["online"],
        choices=("online", "prefill", "single"),
        help="ways to score: online, prefill (compress once, score the second half), single (one forward pass)",
    )


def _add_passkey(parser: ArgumentParser) -> None:
    _add_arms(parser, "25%")
    parser.add_argument("--context", type=int, default=1024, help=_default("tokens of a prompt"))
    parser.add_argument("--seeds", type=int, default=1, help=_default("haystacks"))
    parser.add_argument("--depths", type=float, nargs="+", default=[10, 50, 90], help="where the number hides, percent")
    parser.add_argument(
        "--haystack", nargs="+", default=["noise"], choices=("noise", "sentences", "corpus"), help=_default("filler")
    )
    parser.add_argument(
        "--mode", default="aware", choices=("aware", "agnostic", "reuse"), help=_default("question mode")
    )
    parser.add_argument("--new-tokens", type=int, default=16, help=_default("longest answer"))
    parser.add_argument("--block", type=int, default=0, help=_default("queries per prefill chunk, 0 for all at once"))


def _add_loss(parser: ArgumentParser) -> None:
    _add_methods(parser, "l2norm keydiff snapkv random")
    parser.add_argument("--context", type=int, default=512, help=_default("slots of each prompt"))
    parser.add_argument("--prompts", type=int, default=4, help=_default("prompts, cut from the text"))
    parser.add_argument("--queries", type=int, default=8, help=_default("queries behind the context"))


def method(text: str) -> tuple[str, dict[str, Any]]:
    """Read `NAME` or `NAME:KEY=VALUE,...` as (method id, its entry in a configuration)."""
    name, _, rest = text.partition(":")
    entry: dict[str, Any] = {}
    for part in rest.split(",") if rest else ():
        key, sign, value = part.partition("=")
        if not sign or not key:
            raise ArgumentTypeError(f"'{text}' is not NAME or NAME:KEY=VALUE,...")
        entry[key] = yaml.safe_load(value)
    if not entry:
        return name, {}
    label = "_".join([name, *(f"{key}_{value}" for key, value in entry.items())])
    return "".join(c if c.isalnum() else "_" for c in label.lower()), {"policy": name, **entry}


def configuration(args: Namespace) -> dict[str, Any]:
    """Return the configuration that the command line of an experiment stands for."""
    study = STUDY_OF[args.experiment]
    named = dict(args.methods)
    arms = {"methods": list(named), "budgets": getattr(args, "budgets", [])}
    if study == "attention_loss":
        block: dict[str, Any] = {"text": args.text, "context": args.context, "prompts": args.prompts}
        block |= {"queries": args.queries, "methods": list(named)}
    else:
        block = {
            "n_sinks": args.n_sinks,
            "n_recent": args.n_recent,
            "skip_layers": args.skip_layers,
            "block": args.block,
        }
    if study == "online_lm":
        block |= {"text": args.text, "tokens": args.tokens, "protocols": args.protocols, "arms": arms}
    if study == "passkey":
        block |= {"contexts": [args.context], "seeds": args.seeds, "depths": args.depths, "haystacks": args.haystack}
        block |= {"new_tokens": args.new_tokens, "modes": {args.mode: arms}}
        block |= {"text": args.text} if "corpus" in args.haystack else {}
    return {
        "run": args.run,
        "title": f"One {args.experiment} experiment",
        "models": [args.model],
        "embedder": EMBEDDER,
        "device": args.device,
        "dtype": args.dtype,
        "methods": {name: entry for name, entry in named.items() if entry},
        "studies": {study: block},
    }


def run(args: Namespace) -> None:
    """Run an experiment, write its results.json and print its table."""
    study = STUDY_OF[args.experiment]
    from kvatlas.pipeline import tables

    grid = unfold.grid(config.validate(configuration(args)))
    _fetch(grid)
    for cell in grid.cells.values():
        _say(f"{cell.name}")
        inputs = {name: Path(path) for name, path in cell.inputs.items()}
        cell_jobs.run(cell.spec, inputs, Path(cell.output), fingerprint="")
    section = tables.aggregate(study, tables.load_trials(grid, study, embedded=False))
    target = Path(grid.paths.results) / RESULTS
    earlier = read_json(target)["studies"] if target.is_file() else {}
    write_json(target, {"schema": 1, "run": args.run, "studies": earlier | {study: section}})
    _say(f"wrote {target}")
    print(_table(study, section, grid.config))


def _fetch(grid: Grid) -> None:
    """Fetch the model and the text that the cells read."""
    from kvatlas.lm.sources import fetch_model
    from kvatlas.lm.texts import fetch_text

    inputs = {path for cell in grid.cells.values() for path in cell.inputs.values()}
    for name, entry in load_models(Path(MODELS_FILE)).items():
        if model_file(name) in inputs:
            fetch_model(name, entry, Path(model_file(name)).parent)
    for name, entry in load_texts(Path(TEXTS_FILE)).items():
        if text_file(name) in inputs:
            fetch_text(name, entry, Path(text_file(name)))


def _table(study: str, section: Mapping[str, Any], configured: Mapping[str, Any]) -> str:
    """The main table of a study as aligned text."""
    from kvatlas.reporting import sections

    results = {"studies": {study: section}}
    main_tables = sections.load(study).main_tables(results, configured["studies"][study])
    return "\n\n".join(_aligned(table) for table in main_tables)


def _aligned(table: Any) -> str:
    lines = [table.columns, *(row.cells for row in table.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.columns))]
    adjust: Callable[[int, str], str] = lambda column, text: (  # noqa: E731
        text.rjust(widths[column]) if column in table.numeric else text.ljust(widths[column])
    )
    return "\n".join("  ".join(adjust(column, text) for column, text in enumerate(line)).rstrip() for line in lines)


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
