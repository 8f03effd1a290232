"""The task suite: prompts per shard of instances, with and without what they are about; one cell per arm."""

from __future__ import annotations

from collections.abc import Iterator

from kvatlas.grid import policy_parameters
from kvatlas.grid.arms import Arm, arms_of
from kvatlas.grid.cells import PROMPTS, Cell, Work
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
from kvatlas.paths import STREAMS

SUITE = "suite"
DEFAULT_BLOCK = 32
DEFAULT_SCHEDULE = "every_step"
# The first instance of a suite has nine tasks, the others seven.
TASKS_PER_INSTANCE = 9


def cells(context: StudyContext) -> Iterator[Cell]:
    """Yield the prompts of every shard and mode, and a cell per arm."""
    study_config = context.study_config
    instances_by_shard = shards(
        study_config["instances"], study_config.get("instances_per_shard", study_config["instances"])
    )
    passage = (
        {"passage": {"text": study_config["text"], "tokens": study_config["passage_tokens"]}}
        if "text" in study_config
        else {}
    )
    for mode, arms in ((SUITE, arms_of(study_config["arms"])), (NO_CONTEXT, [Arm(policy_parameters.FULL)])):
        for shard, instances in enumerate(instances_by_shard):
            group = f"{mode}-{study_config['context']}-{shard}"
            shared = {"mode": mode, "context": study_config["context"]}
            prompts = context.paths.prompts(context.study, context.model, group)
            spec = context.base_spec(PROMPTS) | {"task": context.record.task} | shared | {"instances": instances}
            yield Cell(
                PROMPTS, context.study, context.model, "", group, spec, prompts, context.model_input(), _prompts(spec)
            )
            for arm in arms:
                # A passage is scored once per arm, beside its first shard of prompts.
                scored = passage if (mode, shard) == (SUITE, 0) else {}
                spec = arm.spec(context.config, study_config) | shared | {"shard": shard} | _run_spec(context) | scored
                text = context.text_input() if scored else {}
                work = _work(spec, len(instances))
                yield context.trial_cell(group, spec, {"prompts": prompts, **text}, work)


def _run_spec(context: StudyContext) -> Spec:
    study_config = context.study_config
    return {
        "schedule": study_config.get("schedule", DEFAULT_SCHEDULE),
        "block": study_config.get("block", DEFAULT_BLOCK),
        "new_tokens": study_config["new_tokens"],
        "storage": study_config.get("storage", "packed"),
    }


def _prompts(spec: Spec) -> Work:
    return Work(len(spec["instances"]), spec["context"])


def _work(spec: Spec, instances: int) -> Work:
    """The prompts are streamed in blocks and the answer is decoded token by token."""
    prompts, new_tokens = TASKS_PER_INSTANCE * instances, spec["new_tokens"]
    context = QUESTION_TOKENS if spec["mode"] == NO_CONTEXT else spec["context"]
    forwards = new_tokens + 2 + blocks_of(context, spec["block"])
    return Work(prompts, context, forwards=forwards, tokens=3 * prompts * new_tokens + prompts * context)


STUDY = Study(
    name="task_suite",
    label="Task suite",
    order=50,
    question=(
        "What do precision and eviction cost together, on short chat tasks? Prompts are streamed, so that the "
        "peak is bounded and not only the end, and quantizers work on write."
    ),
    kind="task_suite",
    task="suite",
    unfold=cells,
    keys={
        "context": {"type": "integer", "minimum": 1, "description": "length of a prompt in tokens"},
        "instances": {"type": "integer", "minimum": 1, "description": "instances of each task family"},
        "instances_per_shard": {
            "type": "integer",
            "minimum": 1,
            "description": "instances in one cell; all of them when it is left out",
        },
        "schedule": {
            "enum": ["after_prefill", "every_block", "every_step"],
            "default": DEFAULT_SCHEDULE,
            "description": "when the cache is brought back to its budget",
        },
        "block": {
            "type": "integer",
            "minimum": 1,
            "default": DEFAULT_BLOCK,
            "description": "tokens per block while the prompt streams in",
        },
        "storage": {
            "enum": ["packed", "simulated"],
            "default": "packed",
            "description": "hold packed codes, or rounded floats that read the same bits and report the same bytes",
        },
        "text": {
            "type": "string",
            "description": "a passage that every arm also scores three ways, by its name in config/texts.yaml",
        },
        "passage_tokens": {"type": "integer", "minimum": 128, "description": "length of the passage in tokens"},
        "new_tokens": {"type": "integer", "minimum": 1, "description": "the longest answer, in tokens"},
        **PROTECTION_KEYS,
        "protections": {"$ref": "#/$defs/protections"},
        "arms": {"$ref": "#/$defs/arm_list"},
    },
    required=("context", "instances", "new_tokens", "n_sinks", "n_recent", "arms"),
    rules={"dependentRequired": {"text": ["passage_tokens"], "passage_tokens": ["text"]}},
    data_files=lambda study_config: (STREAMS,) if "text" in study_config else (),
)
