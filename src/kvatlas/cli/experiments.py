"""The studies as commands of `kvatlas run`: the arguments of each, and the part of a configuration that they stand for.

Knows configurations, not cells; imports neither torch nor a plotting library.
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

_METHODS_HELP = (
    "methods, each NAME or NAME:KEY=VALUE,...; NAME is a policy (docs/methods.md), KEY one of its parameters: "
    "snapkv:window=32,kernel=1"
)


@dataclass(frozen=True)
class Experiment:
    """One study as a command.

    Args:
        study: its name in a configuration. text, example: of the help. add: adds its arguments to a parser.
        block: from the arguments and their arms to the study's part of a configuration.
    """

    study: str
    text: str
    example: str
    add: Callable[[ArgumentParser], None]
    block: Callable[[Namespace, dict[str, Any]], dict[str, Any]]


def described(text: str) -> str:
    """Return a help text that tells the default."""
    return f"{text} (default: %(default)s)"


def add_common(parser: ArgumentParser) -> None:
    """Add the arguments that every experiment has."""
    parser.add_argument("--run", default="single", help=described("name of the folder in results/"))
    parser.add_argument(
        "--model", default="smollm2-135m", help=described("a name of config/models.yaml, a folder or a Hub id")
    )
    parser.add_argument("--text", default="lee-news", help=described("text, by its name in config/texts.yaml"))
    parser.add_argument(
        "--device", default="auto", choices=("auto", "cpu", "cuda", "mps"), help=described("where to run")
    )
    parser.add_argument("--dtype", default="auto", choices=("auto", "fp32", "bf16", "fp16"), help=described("numbers"))


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
    parser.add_argument("--n-sinks", type=int, default=4, help=described("protected slots at the start"))
    parser.add_argument("--n-recent", type=int, default=32, help=described("protected slots at the end"))
    parser.add_argument("--skip-layers", type=int, nargs="*", default=[], metavar="LAYER", help="layers that stay full")


def _add_online(parser: ArgumentParser) -> None:
    _add_arms(parser, "256")
    parser.add_argument("--tokens", type=int, default=2048, help=described("length of the stream"))
    parser.add_argument("--block", type=int, default=32, help=described("tokens per block; also SnapKV's window"))
    parser.add_argument(
        "--protocols",
        nargs="+",
        default=["online"],
        choices=("online", "prefill", "single"),
        help="ways to score: online, prefill (compress once, score the second half), single (one forward pass)",
    )


def _add_prompts(parser: ArgumentParser, context: int, new_tokens: int) -> None:
    parser.add_argument("--context", type=int, default=context, help=described("tokens of a prompt"))
    parser.add_argument("--seeds", type=int, default=1, help=described("haystacks"))
    parser.add_argument("--depths", type=float, nargs="+", default=[10, 50, 90], help="where the answer hides, percent")
    parser.add_argument(
        "--mode", default="aware", choices=("aware", "agnostic", "reuse"), help=described("question mode")
    )
    parser.add_argument("--new-tokens", type=int, default=new_tokens, help=described("longest answer"))
    parser.add_argument("--block", type=int, default=0, help=described("queries per prefill chunk, 0 for all at once"))


def _add_needle(parser: ArgumentParser) -> None:
    _add_arms(parser, "4x")
    _add_prompts(parser, 512, 20)
    parser.add_argument(
        "--haystack", default="sentences", choices=("sentences", "corpus", "noise"), help=described("filler")
    )


def _add_passkey(parser: ArgumentParser) -> None:
    _add_arms(parser, "25%")
    _add_prompts(parser, 1024, 16)
    parser.add_argument(
        "--haystack", nargs="+", default=["noise"], choices=("noise", "sentences", "corpus"), help=described("filler")
    )


def _add_loss(parser: ArgumentParser) -> None:
    _add_methods(parser, "l2norm keydiff snapkv random")
    _add_chunks(parser, 512)
    parser.add_argument("--queries", type=int, default=8, help=described("queries behind the context"))


def _add_suite(parser: ArgumentParser) -> None:
    _add_arms(parser, "50%")
    _add_quantizers(parser, "none")
    parser.add_argument("--context", type=int, default=192, help=described("tokens of a prompt"))
    parser.add_argument("--instances", type=int, default=2, help=described("instances of each task family"))
    parser.add_argument("--new-tokens", type=int, default=17, help=described("longest answer"))
    parser.add_argument("--block", type=int, default=32, help=described("tokens per block while the prompt streams in"))


def _add_error(parser: ArgumentParser) -> None:
    _add_quantizers(parser, "fp8 int8 int4 int2 kivi4")
    _add_chunks(parser, 192)


def _add_chunks(parser: ArgumentParser, context: int) -> None:
    parser.add_argument("--context", type=int, default=context, help=described("slots of each prompt"))
    parser.add_argument("--prompts", type=int, default=4, help=described("prompts, cut from the text"))


def _add_quantizers(parser: ArgumentParser, quantizers: str) -> None:
    text = f"quantizers (docs/methods.md); `none` is the model's own numbers (default: {quantizers})"
    parser.add_argument("--quantizers", nargs="+", default=quantizers.split(), metavar="QUANTIZER", help=text)


def _protected(args: Namespace) -> dict[str, Any]:
    return {"n_sinks": args.n_sinks, "n_recent": args.n_recent, "skip_layers": args.skip_layers}


def _online(args: Namespace, arms: dict[str, Any]) -> dict[str, Any]:
    stream = {"text": args.text, "tokens": args.tokens, "block": args.block, "protocols": args.protocols}
    return _protected(args) | stream | {"arms": arms}


def _recall(args: Namespace, arms: dict[str, Any]) -> dict[str, Any]:
    haystack = {"haystack": args.haystack} if isinstance(args.haystack, str) else {"haystacks": args.haystack}
    prompts = {"contexts": [args.context], "seeds": args.seeds, "depths": args.depths, "new_tokens": args.new_tokens}
    text = {"text": args.text} if "corpus" in args.haystack else {}
    return _protected(args) | prompts | haystack | text | {"block": args.block, "modes": {args.mode: arms}}


def _loss(args: Namespace, arms: dict[str, Any]) -> dict[str, Any]:
    chunks = {"text": args.text, "context": args.context, "prompts": args.prompts}
    return chunks | {"queries": args.queries, "methods": arms["methods"]}


def _suite(args: Namespace, arms: dict[str, Any]) -> dict[str, Any]:
    prompts = {"context": args.context, "instances": args.instances, "new_tokens": args.new_tokens, "block": args.block}
    return _protected(args) | prompts | {"arms": arms | {"quantizers": args.quantizers}}


def _error(args: Namespace, arms: dict[str, Any]) -> dict[str, Any]:
    chunks = {"text": args.text, "context": args.context, "prompts": args.prompts}
    return chunks | {"quantizers": args.quantizers}


EXPERIMENTS = {
    "needle": Experiment(
        "needle",
        "Find a code in a haystack after the prompt's KV cache was compressed.",
        "--context 512 --seeds 2 --budgets 4x 8x --methods snapkv tova sink_recent",
        _add_needle,
        _recall,
    ),
    "passkey": Experiment(
        "passkey",
        "Retrieve a number from filler after the prompt's KV cache was compressed.",
        "--context 1024 --haystack noise --budgets 25% --methods snapkv keydiff l2norm",
        _add_passkey,
        _recall,
    ),
    "online-lm": Experiment(
        "online_lm",
        "Score a token stream online while the KV cache is kept at a budget.",
        "--tokens 1024 --budgets 128 256 --methods snapkv keydiff l2norm sink_recent",
        _add_online,
        _online,
    ),
    "attention-loss": Experiment(
        "attention_loss",
        "Measure how much attention a method's order of eviction loses (ALR).",
        "--context 512 --prompts 4 --methods l2norm keydiff random",
        _add_loss,
        _loss,
    ),
    "task-suite": Experiment(
        "task_suite",
        "Answer short chat tasks while the prompt streams into an evicted, quantized cache.",
        "--methods sink_recent snapkv --quantizers none int8 int4",
        _add_suite,
        _suite,
    ),
    "quantizer-error": Experiment(
        "quantizer_error",
        "Quantize real keys and values, read them back and compare.",
        "--quantizers int8 int4 kivi4 --prompts 4",
        _add_error,
        _error,
    ),
}


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
