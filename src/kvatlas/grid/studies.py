"""How each study unfolds into cells. Adding a study is one function and one line in `STUDIES`.

Pure functions of the configuration (already validated); no files, no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvatlas.grid import policy_parameters
from kvatlas.grid.arms import Arm, arms_of, listed
from kvatlas.grid.cells import PREFILL, PROMPTS, RECALL, Cell, Config, Grid
from kvatlas.paths import MEASUREMENTS, STREAMS, Paths, model_file, text_file

NO_CONTEXT = "no_context"
DEFAULT_BLOCK = 32
DEFAULT_SCHEDULE = "every_step"

Spec = dict[str, Any]


@dataclass(frozen=True)
class View:
    """One study of one configuration for one model."""

    config: Config
    study: str
    model: str

    @property
    def block(self) -> Config:
        """The study's part of the configuration."""
        block: Config = self.config["studies"][self.study]
        return block

    @property
    def paths(self) -> Paths:
        """The run's paths."""
        return Paths(self.config["run"])

    def head(self, kind: str) -> Spec:
        """The keys that begin every spec."""
        return {"kind": kind, "study": self.study, "model": self.model}

    def machine(self) -> Spec:
        """The keys that say where and in which numbers a model runs."""
        return {"device": self.config.get("device", "auto"), "dtype": self.config.get("dtype", "auto")}

    def model_input(self) -> dict[str, str]:
        """The input that every kind has."""
        return {"model": model_file(self.model)}

    def text_input(self) -> dict[str, str]:
        """The text of the study, if it names one."""
        return {"text": text_file(self.block["text"])} if "text" in self.block else {}


def shards(count: int, size: int) -> list[list[int]]:
    """The numbers 0 to count - 1 in consecutive parts of `size`."""
    return [list(range(start, min(start + size, count))) for start in range(0, count, size)]


def seeds_of(view: View) -> int:
    """How many seeds the study runs on the model."""
    seeds = view.block["seeds"]
    return int(seeds[view.model] if isinstance(seeds, Mapping) else seeds)


def windows_of(view: View) -> list[int]:
    """The observation windows that the prefill must keep: those of all methods of the study, defaults included."""
    modes = view.block.get("modes", {}).values()
    names = {arm.method for entries in modes for arm in arms_of(entries)} - {policy_parameters.FULL}
    windows = {policy_parameters.window_of(policy_parameters.policy_of(view.config, name)) for name in names}
    return sorted(window for window in windows if window is not None)


@dataclass(frozen=True)
class Group:
    """Prompts that are prefilled and decoded as one batch."""

    mode: str
    context: int
    shard: int
    seeds: tuple[int, ...]
    haystack: str
    label: str = ""

    @property
    def id(self) -> str:
        """The group's name in paths: `aware-512-0`, `aware-noise-16384-0`."""
        return "-".join([self.mode, *([self.label] if self.label else []), str(self.context), str(self.shard)])


def prompt_groups(view: View) -> Iterator[tuple[Group, list[Arm]]]:
    """The groups of a prompt study with their arms; the question without its context has the full cache only."""
    block = view.block
    haystacks = block.get("haystacks", [block.get("haystack", "sentences")])
    parts = shards(seeds_of(view), block.get("seeds_per_shard", seeds_of(view)))
    question_alone = {"methods": [policy_parameters.FULL]}
    for mode, entries in {**block["modes"], NO_CONTEXT: question_alone}.items():
        for haystack in haystacks[:1] if mode == NO_CONTEXT else haystacks:
            label = haystack if "haystacks" in block and mode != NO_CONTEXT else ""
            for context in block["contexts"]:
                chosen = [e for e in listed(entries) if context in e.get("contexts", block["contexts"])]
                for shard, seeds in enumerate(parts if chosen else ()):
                    yield Group(mode, context, shard, tuple(seeds), haystack, label), arms_of(chosen)


def recall_study(view: View) -> Iterator[Cell]:
    """Needle and passkey: prompts and a prefill per group, one recall cell per arm."""
    block, windows = view.block, windows_of(view)
    for group, arms in prompt_groups(view):
        place = {"mode": group.mode, "context": group.context}
        prompts = view.paths.prompts(view.study, view.model, group.id)
        prefill = view.paths.prefill(view.study, view.model, group.id)
        corpus = view.text_input() if group.haystack == "corpus" and group.mode != NO_CONTEXT else {}
        yield Cell(
            PROMPTS,
            view.study,
            view.model,
            "",
            group.id,
            view.head(PROMPTS)
            | place
            | {"task": view.study, "seeds": list(group.seeds), "depths": block["depths"], "haystack": group.haystack},
            prompts,
            view.model_input() | corpus,
        )
        shared = place | {"shard": group.shard, "new_tokens": block["new_tokens"]} | view.machine()
        yield Cell(
            PREFILL,
            view.study,
            view.model,
            "",
            group.id,
            view.head(PREFILL) | shared | {"block": block.get("block", 0), "windows": windows},
            prefill,
            view.model_input() | {"prompts": prompts},
        )
        inputs = view.model_input() | {"prompts": prompts, "prefill": prefill}
        for spec in [view.head(RECALL) | arm.spec(view.config, block) | shared for arm in arms] + _repeat(
            view, shared, group
        ):
            output = view.paths.cell(view.study, view.model, spec["arm"], group.id)
            yield Cell(RECALL, view.study, view.model, spec["arm"], group.id, spec, output, inputs)


def _repeat(view: View, shared: Spec, group: Group) -> list[Spec]:
    """The full cache once more in another batch shape: the noise floor, on one mode and the study's first context."""
    # The order of a mapping's keys carries no meaning, and is lost in a spec.
    first = (max(view.block["modes"]), view.block["contexts"][0])
    if "noise_batch" not in view.block or (group.mode, group.context) != first:
        return []
    batch = view.block["noise_batch"]
    again = {"arm": f"{policy_parameters.FULL}-batch{batch}", "batch": batch}
    return [view.head(RECALL) | Arm(policy_parameters.FULL).spec(view.config, view.block) | shared | again]


def _cell(view: View, kind: str, group: str, spec: Spec, inputs: Mapping[str, str]) -> Cell:
    """A cell without prompts and prefill files of its own."""
    output = view.paths.cell(view.study, view.model, spec["arm"], group)
    whole = view.head(kind) | spec | view.machine()
    return Cell(kind, view.study, view.model, spec["arm"], group, whole, output, {**view.model_input(), **inputs})


def online_lm(view: View) -> Iterator[Cell]:
    """Online language modelling: one cell per arm, protocol and block size over one token stream."""
    block = view.block
    usual = block.get("block", DEFAULT_BLOCK)
    for (protocol, size), entries in _streams(block, usual).items():
        label = protocol if size == usual else f"{protocol}-block"
        group = f"{label}-{block['tokens']}-{0 if size == usual else size}"
        stream = {"protocol": protocol, "text": block["text"], "tokens": block["tokens"], "block": size}
        if "passages" in block:
            stream["passages"] = block["passages"]
        for arm in arms_of(entries):
            spec = arm.spec(view.config, block) | stream
            spec["policy"] = _voting_block(spec["policy"], size)
            yield _cell(view, "online_lm", group, spec, view.text_input())


def _streams(block: Config, usual: int) -> dict[tuple[str, int], list[Config]]:
    """The entries of the arms under each (protocol, block size); an entry's own lists go before the study's."""
    found: dict[tuple[str, int], list[Config]] = {}
    for entry in listed(block["arms"]):
        for protocol in entry.get("protocols", block.get("protocols", ["online"])):
            for size in entry.get("blocks", [usual]):
                found.setdefault((protocol, size), []).append(entry)
    return found


def _voting_block(policy: Spec, size: int) -> Spec:
    """Make the newest block the observation window of a policy that pools a window's vote (TOVA's is the last query)."""
    pools = {"window", "kernel"} <= set(policy_parameters.policy_fields(policy["name"]))
    return policy | {"window": size} if pools else policy


def attention_loss(view: View) -> Iterator[Cell]:
    """Attention loss: one cell per method, over several prompts and queries."""
    block = view.block
    sizes = {key: block[key] for key in ("text", "context", "prompts", "queries")}
    for method in block["methods"]:
        spec = {"arm": method, "method": method, "policy": policy_parameters.policy_of(view.config, method)} | sizes
        yield _cell(view, "attention_loss", f"loss-{block['context']}-0", spec, view.text_input())


def task_suite(view: View) -> Iterator[Cell]:
    """The task suite: prompts per shard of instances and for the question_alone, one cell per arm, streamed on a schedule."""
    block = view.block
    parts = shards(block["instances"], block.get("instances_per_shard", block["instances"]))
    run = {
        "schedule": block.get("schedule", DEFAULT_SCHEDULE),
        "block": block.get("block", DEFAULT_BLOCK),
        "new_tokens": block["new_tokens"],
        "storage": block.get("storage", "packed"),
    }
    passage = {"passage": {"text": block["text"], "tokens": block["passage_tokens"]}} if "text" in block else {}
    for mode, arms in (("suite", arms_of(block["arms"])), (NO_CONTEXT, [Arm(policy_parameters.FULL)])):
        for shard, instances in enumerate(parts):
            group = f"{mode}-{block['context']}-{shard}"
            place = {"mode": mode, "context": block["context"]}
            prompts = view.paths.prompts(view.study, view.model, group)
            spec = view.head(PROMPTS) | place | {"task": "suite", "instances": instances}
            yield Cell(PROMPTS, view.study, view.model, "", group, spec, prompts, view.model_input())
            for arm in arms:
                # A passage is scored once per arm, beside its first shard of prompts.
                scored = passage if (mode, shard) == ("suite", 0) else {}
                spec = arm.spec(view.config, block) | place | {"shard": shard} | run | scored
                text = view.text_input() if scored else {}
                yield _cell(view, "task_suite", group, spec, {"prompts": prompts, **text})


def quantizer_error(view: View) -> Iterator[Cell]:
    """Reconstruction error of each quantizer on the keys and values of real prompts."""
    block = view.block
    sizes = {key: block[key] for key in ("text", "context", "prompts")}
    for quantizer in block["quantizers"]:
        spec = {"arm": Arm(policy_parameters.FULL, quantizer=quantizer).id, "quantizer": quantizer} | sizes
        yield _cell(view, "quantizer_error", f"error-{block['context']}-0", spec, view.text_input())


STUDIES: dict[str, Callable[[View], Iterator[Cell]]] = {
    "needle": recall_study,
    "passkey": recall_study,
    "online_lm": online_lm,
    "attention_loss": attention_loss,
    "task_suite": task_suite,
    "quantizer_error": quantizer_error,
}


def grid(config: Config) -> Grid:
    """Return all cells of a validated configuration."""
    return Grid(
        config,
        (
            cell
            for study, block in config["studies"].items()
            for model in block.get("models", config["models"])
            for cell in STUDIES[study](View(config, study, model))
        ),
    )


def data_files(config: Config) -> list[str]:
    """Return the names of the parquet files that a run has beside trials.parquet."""
    found = config["studies"]
    streams = "online_lm" in found or "text" in found.get("task_suite", {})
    measured = "attention_loss" in found or "quantizer_error" in found
    return [name for name, there in ((STREAMS, streams), (MEASUREMENTS, measured)) if there]


def part(config: Config, study: str) -> Spec:
    """Return the part of a configuration that one study's table depends on; it is a configuration itself."""
    keys = ("run", "models", "embedder", "device", "dtype", "methods")
    return {key: config[key] for key in keys if key in config} | {"studies": {study: config["studies"][study]}}
