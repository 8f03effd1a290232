"""Online language modelling: one cell per arm, protocol and block size over one token stream."""

from __future__ import annotations

from collections.abc import Iterator

from kvatlas.grid import policy_parameters
from kvatlas.grid.arms import arms_of, listed
from kvatlas.grid.cells import Cell, Config, Work
from kvatlas.grid.study import PROTECTION_KEYS, Spec, Study, StudyContext, blocks_of
from kvatlas.paths import STREAMS

DEFAULT_BLOCK = 32


def cells(context: StudyContext) -> Iterator[Cell]:
    """Yield a cell per arm, protocol and block size."""
    study_config = context.study_config
    usual = study_config.get("block", DEFAULT_BLOCK)
    passages, tokens = study_config.get("passages", 1), study_config["tokens"]
    for (protocol, size), entries in _streams(study_config, usual).items():
        label = protocol if size == usual else f"{protocol}-block"
        group = f"{label}-{tokens}-{0 if size == usual else size}"
        stream = {"protocol": protocol, "text": study_config["text"], "tokens": tokens, "block": size}
        if "passages" in study_config:
            stream["passages"] = passages
        work = Work(1, tokens, forwards=passages * blocks_of(tokens, size), tokens=passages * tokens)
        for arm in arms_of(entries):
            spec = arm.spec(context.config, study_config) | stream
            spec["policy"] = _voting_block(spec["policy"], size)
            yield context.trial_cell(group, spec, context.text_input(), work)


def _streams(study_config: Config, usual: int) -> dict[tuple[str, int], list[Config]]:
    """The entries of the arms under each (protocol, block size); an entry's own lists go before the study's."""
    streams: dict[tuple[str, int], list[Config]] = {}
    for entry in listed(study_config["arms"]):
        for protocol in entry.get("protocols", study_config.get("protocols", ["online"])):
            for size in entry.get("blocks", [usual]):
                streams.setdefault((protocol, size), []).append(entry)
    return streams


def _voting_block(policy: Spec, size: int) -> Spec:
    """Make the newest block the observation window of a policy that pools a window's vote (TOVA's is the last query)."""
    pools = {"window", "kernel"} <= set(policy_parameters.policy_fields(policy["name"]))
    return policy | {"window": size} if pools else policy


STUDY = Study(
    name="online_lm",
    label="Online language modelling",
    order=20,
    question=(
        "What does a fixed budget cost when a text is read as a stream? After each block the cache is brought "
        "back to its budget, and the perplexity of the same tokens is compared."
    ),
    kind="online_lm",
    unfold=cells,
    keys={
        "text": {"type": "string", "description": "the stream, by its name in config/texts.yaml"},
        "tokens": {"type": "integer", "minimum": 2, "description": "length of the stream"},
        "passages": {
            "type": "integer",
            "minimum": 1,
            "default": 1,
            "description": "passages of the text of this length, each read as a stream of its own",
        },
        "block": {"type": "integer", "minimum": 1, "default": DEFAULT_BLOCK, "description": "tokens per causal block"},
        "protocols": {"$ref": "#/$defs/protocols", "default": ["online"]},
        **PROTECTION_KEYS,
        "protections": {"$ref": "#/$defs/protections"},
        "arms": {"$ref": "#/$defs/stream_arm_list"},
    },
    required=("text", "tokens", "n_sinks", "n_recent", "arms"),
    data_files=lambda study_config: (STREAMS,),
)
