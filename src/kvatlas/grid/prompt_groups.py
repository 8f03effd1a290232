"""Recall studies: groups of prompts that are prefilled once and answered by every arm.

Serves the studies whose answers are found in one prompt (needle, passkey); what a prompt is made of is their task's
business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvatlas.grid import policy_parameters
from kvatlas.grid.arms import Arm, arms_of, listed
from kvatlas.grid.cells import PREFILL, PROMPTS, Cell, Work
from kvatlas.grid.study import NO_CONTEXT, PROTECTION_KEYS, QUESTION_TOKENS, Spec, StudyContext, blocks_of, shards


@dataclass(frozen=True)
class Group:
    """Prompts that are prefilled and decoded as one batch."""

    mode: str
    context: int
    shard: int
    seeds: tuple[int, ...]
    depths: tuple[float, ...]
    haystack: str
    label: str = ""

    @property
    def id(self) -> str:
        """The group's name in paths: `aware-512-0`, `aware-noise-16384-0`."""
        return "-".join([self.mode, *([self.label] if self.label else []), str(self.context), str(self.shard)])

    @property
    def prompts(self) -> int:
        """Prompts of the group."""
        return len(self.seeds) * len(self.depths)

    @property
    def tokens(self) -> int:
        """Tokens of a prompt, for sizes."""
        return QUESTION_TOKENS if self.mode == NO_CONTEXT else self.context


def recall_keys(haystack: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a recall study in a configuration; `haystack` is the key that names what surrounds the answer."""
    return {
        "contexts": {
            "$ref": "#/$defs/counts",
            "description": "exact lengths of the prompts in tokens, chat template included",
        },
        "seeds": {"$ref": "#/$defs/seeds"},
        "seeds_per_shard": {
            "type": "integer",
            "minimum": 1,
            "description": "seeds in one cell, whose prompts are decoded as one batch; all of them when it is left out",
        },
        "depths": {"$ref": "#/$defs/depths"},
        **haystack,
        "task": {
            "type": "string",
            "description": "what prompts ask for: a module of `kvatlas.tasks`; the study's own by default",
        },
        "text": {"type": "string", "description": "the corpus, by its name in config/texts.yaml"},
        "new_tokens": {"type": "integer", "minimum": 1, "description": "the longest answer, in tokens"},
        **PROTECTION_KEYS,
        "block": {
            "type": "integer",
            "minimum": 0,
            "default": 0,
            "description": "queries per prefill chunk; 0 is the whole prompt",
        },
        "noise_batch": {
            "type": "integer",
            "minimum": 1,
            "description": "repeat the full cache on one mode and the first context with so many prompts in a batch, "
            "to measure the noise floor",
        },
        "protections": {"$ref": "#/$defs/protections"},
        "modes": {"$ref": "#/$defs/modes"},
    }


def recall_cells(context: StudyContext) -> Iterator[Cell]:
    """Yield the prompts and the prefill of every group, and a recall cell per arm."""
    task = context.study_config.get("task", context.record.task)
    for group, arms in prompt_groups(context):
        prompts, prefill = _prompts_cell(context, group, task), _prefill_cell(context, group)
        yield prompts
        yield prefill
        inputs = {"prompts": prompts.output, "prefill": prefill.output}
        shared = _shared_spec(context, group)
        specs = [arm.spec(context.config, context.study_config) | shared for arm in arms]
        for spec in specs + _repeat(context, shared, group):
            yield context.trial_cell(group.id, spec, inputs, _recall_work(group, spec))


def prompt_groups(context: StudyContext) -> Iterator[tuple[Group, list[Arm]]]:
    """Yield the groups of a prompt study with their arms; questions without their context have the full cache only."""
    study_config = context.study_config
    haystacks = study_config.get("haystacks", [study_config.get("haystack", "sentences")])
    modes = {**study_config["modes"], NO_CONTEXT: {"methods": [policy_parameters.FULL]}}
    for mode, entries in modes.items():
        for haystack in haystacks[:1] if mode == NO_CONTEXT else haystacks:
            label = haystack if "haystacks" in study_config and mode != NO_CONTEXT else ""
            for tokens in study_config["contexts"]:
                chosen = [
                    entry for entry in listed(entries) if tokens in entry.get("contexts", study_config["contexts"])
                ]
                seeds_by_shard = _seeds_by_shard(context, tokens) if chosen else []
                for shard, seeds in enumerate(seeds_by_shard):
                    group = Group(mode, tokens, shard, tuple(seeds), tuple(study_config["depths"]), haystack, label)
                    yield group, arms_of(chosen)


def _seeds_by_shard(context: StudyContext, tokens: int) -> list[list[int]]:
    """Return the seeds of each shard of a context; a map of seeds has models or contexts as its keys."""
    seeds = context.study_config["seeds"]
    if isinstance(seeds, Mapping):
        seeds = seeds[str(tokens)] if str(tokens) in seeds else seeds[context.model]
    return shards(int(seeds), context.study_config.get("seeds_per_shard", int(seeds)))


def _windows(context: StudyContext) -> list[int]:
    """The observation windows that a prefill must keep: those of all methods of the study, defaults included."""
    windows = {policy_parameters.window_of(policy) for policy in _policies(context)}
    return sorted(window for window in windows if window is not None)


def _policies(context: StudyContext) -> list[dict[str, Any]]:
    """The policies of all methods of the study."""
    modes = context.study_config.get("modes", {}).values()
    names = {arm.method for entries in modes for arm in arms_of(entries)} - {policy_parameters.FULL}
    return [policy_parameters.policy_of(context.config, name) for name in sorted(names)]


def _shared_spec(context: StudyContext, group: Group) -> Spec:
    new_tokens = context.study_config["new_tokens"]
    return {"mode": group.mode, "context": group.context, "shard": group.shard, "new_tokens": new_tokens}


def _prompts_cell(context: StudyContext, group: Group, task: str) -> Cell:
    spec = context.base_spec(PROMPTS) | {
        "task": task,
        "mode": group.mode,
        "context": group.context,
        "seeds": list(group.seeds),
        "depths": list(group.depths),
        "haystack": group.haystack,
    }
    corpus = context.text_input() if group.haystack == "corpus" and group.mode != NO_CONTEXT else {}
    output = context.paths.prompts(context.study, context.model, group.id)
    inputs = context.model_input() | corpus
    work = Work(group.prompts, group.tokens)
    return Cell(PROMPTS, context.study, context.model, "", group.id, spec, output, inputs, work)


def _prefill_cell(context: StudyContext, group: Group) -> Cell:
    block, new_tokens = context.study_config.get("block", 0), context.study_config["new_tokens"]
    spec = context.base_spec(PREFILL) | _shared_spec(context, group) | context.device_spec()
    spec |= {"block": block, "windows": _windows(context)}
    # The key is there only where it is needed, so that other prefills stay what they are.
    spec |= {"queries": True} if any(map(policy_parameters.reads_queries, _policies(context))) else {}
    inputs = context.model_input() | {"prompts": context.paths.prompts(context.study, context.model, group.id)}
    # Prompts go one by one; the reference is decoded as a batch.
    forwards = group.prompts * blocks_of(group.tokens, block) + new_tokens
    work = Work(group.prompts, group.tokens, forwards=forwards, tokens=group.prompts * (group.tokens + new_tokens))
    output = context.paths.prefill(context.study, context.model, group.id)
    return Cell(PREFILL, context.study, context.model, "", group.id, spec, output, inputs, work)


def _recall_work(group: Group, spec: Spec) -> Work:
    """The arm's output token by token, then the reference and the right answer, each at once."""
    return Work(
        group.prompts,
        group.tokens,
        batch=spec.get("batch", 0),
        scored_tokens=spec["new_tokens"],
        forwards=spec["new_tokens"] + 2,
        tokens=3 * group.prompts * spec["new_tokens"],
        splits=True,
    )


def _repeat(context: StudyContext, shared: Spec, group: Group) -> list[Spec]:
    """The full cache once more in another batch shape: the noise floor, on one mode and the study's first context."""
    study_config = context.study_config
    # The order of a mapping's keys carries no meaning, and is lost in a spec.
    first = (max(study_config["modes"]), study_config["contexts"][0])
    if "noise_batch" not in study_config or (group.mode, group.context) != first:
        return []
    batch = study_config["noise_batch"]
    repeat = {"arm": f"{policy_parameters.FULL}-batch{batch}", "batch": batch}
    return [Arm(policy_parameters.FULL).spec(context.config, study_config) | shared | repeat]
