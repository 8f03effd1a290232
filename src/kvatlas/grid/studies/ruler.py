"""Ruler: long-context tasks, each with groups of prompts per mode, schedule and context, and one cell per arm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kvatlas.errors import KvatlasError
from kvatlas.grid import policy_parameters
from kvatlas.grid.arms import Arm, arms_of, listed
from kvatlas.grid.cells import PREFILL, PROMPTS, Cell, Work
from kvatlas.grid.study import (
    NO_CONTEXT,
    PROTECTION_KEYS,
    QUESTION_TOKENS,
    Spec,
    Study,
    StudyContext,
    blocks_of,
    shards,
)
from kvatlas.paths import TEXTS_FILE, text_file
from kvatlas.tasks.answer_scores import METRICS
from kvatlas.tasks.long_context import REUSED, SEVERAL
from kvatlas.tasks.ruler import all_tasks

RULER = "ruler"
AFTER_PREFILL, EVERY_BLOCK, EVERY_STEP = "after_prefill", "every_block", "every_step"
_IN_PATHS = {AFTER_PREFILL: [], EVERY_BLOCK: ["blocks"], EVERY_STEP: ["steps"]}
DEFAULT_STREAM_BLOCK = 128


@dataclass(frozen=True)
class Group:
    """Prompts of one task that all arms answer."""

    task: str
    mode: str
    schedule: str
    context: int
    shard: int
    seeds: tuple[int, ...]

    @property
    def id(self) -> str:
        """The group's name in paths: `aware-vt-1024-0`, `aware-blocks-vt-1024-0`."""
        return "-".join([self.mode, *_IN_PATHS[self.schedule], self.task, str(self.context), str(self.shard)])

    @property
    def tokens(self) -> int:
        """Tokens of a prompt, for sizes."""
        return QUESTION_TOKENS if self.mode == NO_CONTEXT else self.context

    @property
    def answers(self) -> int:
        """Answers to each prompt."""
        return REUSED if self.mode in SEVERAL else 1

    @property
    def new_tokens(self) -> int:
        """The longest answer, in tokens."""
        return all_tasks()[self.task].new_tokens


def cells(context: StudyContext) -> Iterator[Cell]:
    """Yield the prompts of every group, its prefill where the schedule reads one, and a cell per arm."""
    for group, arms in groups(context):
        prompts = _prompts_cell(context, group)
        yield prompts
        inputs = {"prompts": prompts.output}
        shared: Spec = {"task": group.task, "mode": group.mode, "context": group.context, "shard": group.shard}
        shared |= {"new_tokens": group.new_tokens, "schedule": group.schedule}
        if group.schedule != AFTER_PREFILL:
            shared["block"] = context.study_config.get("stream_block", DEFAULT_STREAM_BLOCK)
        else:
            prefill = _prefill_cell(context, group)
            yield prefill
            inputs["prefill"] = prefill.output
        for arm in arms:
            spec = arm.spec(context.config, context.study_config) | shared
            yield context.trial_cell(group.id, spec, inputs, _work(group, shared.get("block")))


def groups(context: StudyContext) -> Iterator[tuple[Group, list[Arm]]]:
    """Yield the groups with their arms; questions without their context have the full cache only."""
    config = context.study_config
    seeds = config["seeds"]
    n_seeds = int(seeds[context.model] if isinstance(seeds, Mapping) else seeds)
    by_shard = shards(n_seeds, config.get("seeds_per_shard", n_seeds))
    for mode, entries in {**config["modes"], NO_CONTEXT: {"methods": [policy_parameters.FULL]}}.items():
        schedules = [AFTER_PREFILL] if mode == NO_CONTEXT else config.get("schedules", [AFTER_PREFILL])
        for task in _tasks(config["tasks"], mode):
            for tokens in config["contexts"]:
                chosen = [entry for entry in listed(entries) if tokens in entry.get("contexts", config["contexts"])]
                for schedule in schedules if chosen else ():
                    for shard, part in enumerate(by_shard):
                        yield Group(task, mode, schedule, tokens, shard, tuple(part)), arms_of(chosen)


def _tasks(names: list[str], mode: str) -> list[str]:
    """The tasks that a mode asks: with several questions to one context, those that have them."""
    if mode not in SEVERAL:
        return names
    chosen = [name for name in names if all_tasks()[name].reuse]
    if not chosen:
        having = ", ".join(name for name, task in all_tasks().items() if task.reuse)
        raise KvatlasError(
            f"studies.ruler.modes.{mode}: no task has several questions per context; name one of {having}"
        )
    return chosen


def _prompts_cell(context: StudyContext, group: Group) -> Cell:
    spec = context.base_spec(PROMPTS) | {
        "task": f"ruler.{group.task}",
        "mode": group.mode,
        "context": group.context,
        "seeds": list(group.seeds),
    }
    if not all_tasks()[group.task].metric:
        spec["metric"] = _named(context, "metric", group.task, "is scored by it", METRICS)
    # A question's words must not stand in the text, so it is drawn with the text in mode no_context too.
    key = all_tasks()[group.task].reads
    text = (
        {"text": text_file(_named(context, key, group.task, "draws its contexts from it", [TEXTS_FILE]))} if key else {}
    )
    output = context.paths.prompts(context.study, context.model, group.id)
    work = Work(len(group.seeds), group.tokens)
    return Cell(PROMPTS, context.study, context.model, "", group.id, spec, output, context.model_input() | text, work)


def _named(context: StudyContext, key: str, task: str, reason: str, choices: Iterable[str]) -> str:
    if key not in context.study_config:
        known = ", ".join(choices)
        raise KvatlasError(f"studies.ruler.{key}: this key is missing; task {task} {reason}: name one of {known}")
    return str(context.study_config[key])


def _prefill_cell(context: StudyContext, group: Group) -> Cell:
    block = context.study_config.get("block", 0)
    spec = context.base_spec(PREFILL) | {"mode": group.mode, "context": group.context, "shard": group.shard}
    # The full cache answers as an arm; the reference that a prefill holds is not read.
    spec |= {"task": group.task, "new_tokens": 1, "block": block, "windows": _windows(context)} | context.device_spec()
    inputs = context.model_input() | {"prompts": context.paths.prompts(context.study, context.model, group.id)}
    prompts = len(group.seeds)
    forwards = prompts * blocks_of(group.tokens, block) + 1
    work = Work(prompts, group.tokens, forwards=forwards, tokens=prompts * (group.tokens + 1))
    output = context.paths.prefill(context.study, context.model, group.id)
    return Cell(PREFILL, context.study, context.model, "", group.id, spec, output, inputs, work)


def _windows(context: StudyContext) -> list[int]:
    """The observation windows that a prefill must keep: those of all methods of the study."""
    names = {arm.method for entries in context.study_config["modes"].values() for arm in arms_of(entries)}
    policies = (policy_parameters.policy_of(context.config, name) for name in names - {policy_parameters.FULL})
    windows = {policy_parameters.window_of(policy) for policy in policies}
    return sorted(window for window in windows if window is not None)


def _work(group: Group, block: int | None) -> Work:
    """The answers token by token, and the prompt where it is streamed."""
    prompts, decoded = len(group.seeds), group.answers * group.new_tokens
    streamed = blocks_of(group.tokens, block) if block else 0
    tokens = prompts * (decoded + (group.tokens if block else 0))
    return Work(prompts, group.tokens, forwards=decoded + streamed, tokens=tokens, splits=True)


STUDY = Study(
    name="ruler",
    label="Long-context tasks",
    order=33,
    question=(
        "Which long-context tasks does a model still do on a smaller cache, and how many questions does one compressed cache "
        "answer? RULER's tasks, made here, with scores from 0 to 100%."
    ),
    kind=RULER,
    task="ruler",
    unfold=cells,
    keys={
        "tasks": {
            "type": "array",
            "minItems": 1,
            "uniqueItems": True,
            "items": {"enum": list(all_tasks())},
            "description": "RULER's tasks, by their files in `kvatlas.tasks.ruler`",
        },
        "contexts": {
            "$ref": "#/$defs/counts",
            "description": "exact lengths of the prompts in tokens, chat template and answer prefix included",
        },
        "seeds": {"$ref": "#/$defs/seeds"},
        "seeds_per_shard": {
            "type": "integer",
            "minimum": 1,
            "description": "seeds in one cell, whose prompts are decoded as one batch; all of them when it is left out",
        },
        "text": {
            "type": "string",
            "description": "what needles are hidden in and words are drawn from, by its name in config/texts.yaml",
        },
        "documents": {
            "type": "string",
            "description": "texts with questions for tasks qa and dataset: a text of JSON lines with context, question "
            "and answers, by its name in config/texts.yaml",
        },
        "metric": {"enum": list(METRICS), "description": "how answers of task dataset are scored"},
        "schedules": {
            "type": "array",
            "minItems": 1,
            "uniqueItems": True,
            "items": {"enum": [AFTER_PREFILL, EVERY_BLOCK, EVERY_STEP]},
            "default": [AFTER_PREFILL],
            "description": "when the cache is brought to its budget: once, after every block of the prompt, "
            "or after every token of the answer too",
        },
        "stream_block": {
            "type": "integer",
            "minimum": 1,
            "default": DEFAULT_STREAM_BLOCK,
            "description": "tokens per block of the schedules every_block and every_step",
        },
        "block": {
            "type": "integer",
            "minimum": 0,
            "default": 0,
            "description": "queries per prefill chunk; 0 is the whole prompt",
        },
        **PROTECTION_KEYS,
        "protections": {"$ref": "#/$defs/protections"},
        "modes": {
            "type": "object",
            "additionalProperties": False,
            "minProperties": 1,
            "properties": {
                "aware": {"$ref": "#/$defs/arm_list", "description": "the question is part of what is compressed"},
                "agnostic": {"$ref": "#/$defs/arm_list", "description": "the question follows the compression"},
                "reuse": {
                    "$ref": "#/$defs/arm_list",
                    "description": f"{REUSED} questions, each to a fork of one compressed cache; of tasks that have them",
                },
                "turns": {
                    "$ref": "#/$defs/arm_list",
                    "description": f"{REUSED} questions one after the other, whose answers stay in the cache",
                },
            },
            "description": "question modes: aware, agnostic, reuse, turns",
        },
    },
    required=("tasks", "contexts", "seeds", "n_sinks", "n_recent", "modes"),
)
