"""What the values of a configuration must mean together, once its shape is valid.

Every mistake is one KvatlasError that begins with the key's path. Imports neither torch nor transformers: policies'
parameters are read from their source text.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from kvatlas.compression import methods
from kvatlas.compression.budget import Budget
from kvatlas.errors import KvatlasError
from kvatlas.grid import policy_parameters
from kvatlas.grid.studies import known_tasks
from kvatlas.lm.catalog import find_model, find_text, load_models, load_texts
from kvatlas.paths import MODELS_FILE, TEXTS_FILE
from kvatlas.schemas.messages import closest
from kvatlas.tasks.ruler import all_tasks

Config = Mapping[str, Any]
_TYPES = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false"}


def check(config: Config, root: Path) -> None:
    """Check models, methods and studies; `root` holds config/models.yaml. Raises KvatlasError for the first mistake."""
    models, texts = load_models(root / MODELS_FILE), load_texts(root / TEXTS_FILE)
    for index, name in enumerate(config["models"]):
        _require(f"models[{index}]", find_model, models, name, "lm")
    _require("embedder", find_model, models, config["embedder"], "embedder")
    _check_portable(config)
    for method in config.get("methods", {}):
        _check_method(config, method)
    for study, block in config["studies"].items():
        _StudyCheck(config, f"studies.{study}", study, block, models).run(texts)


def _check_portable(config: Config) -> None:
    """Refuse keys with which numbers depend on the machine after all."""
    for key, value in (("device", "cpu"), ("dtype", "fp32"), ("threads", 1)):
        default = 1 if key == "threads" else "auto"
        if config.get("portable") and config.get(key, default) != value:
            raise KvatlasError(f"portable: numbers are the same everywhere with {key}: {value} alone; set it")


def _require(path: str, find: Any, *arguments: Any) -> None:
    try:
        find(*arguments)
    except KvatlasError as error:
        raise KvatlasError(f"{path}: {error}") from error


def _check_method(config: Config, method: str) -> None:
    path = f"methods.{method}"
    policy = policy_parameters.policy_of(config, method)
    if policy["name"] not in policy_parameters.known_policies():
        where = f"{path}.policy" if "policy" in config["methods"][method] else path
        raise KvatlasError(f"{where}: {_unknown('policy', policy['name'], policy_parameters.known_policies())}")
    _check_method_name(path, method, policy["name"])
    _check_parameters(path, policy)


def _check_parameters(path: str, policy: Mapping[str, Any]) -> None:
    fields = policy_parameters.policy_fields(policy["name"])
    for key, value in policy.items():
        if key == "name":
            continue
        if key == "base" and key in fields:
            _check_base(f"{path}.base", policy)
            continue
        if key not in fields:
            has = ", ".join(fields) or "none"
            hint = closest(key, fields)
            raise KvatlasError(f"{path}.{key}: policy '{policy['name']}' has no such parameter{hint}; it has: {has}")
        _check_type(f"{path}.{key}", value, fields[key].annotation)


def _check_base(path: str, policy: Mapping[str, Any]) -> None:
    """Refuse a base that is not `{policy: NAME, ...}` of a policy that evicts."""
    if not isinstance(policy["base"], Mapping) or "policy" not in policy["base"]:
        raise KvatlasError(f"{path}: {policy['base']!r} names no policy; write base: {{policy: NAME}}")
    base = policy_parameters.base_of(policy) or {}
    evicting = sorted(name for name, known in methods.policies().items() if known.kind == "eviction")
    if base["name"] not in evicting:
        raise KvatlasError(f"{path}.policy: {_unknown('policy', base['name'], evicting)}")
    _check_parameters(path, base)


def _check_method_name(path: str, method: str, policy: str) -> None:
    """Refuse a name that pages would spell as another policy: they label "snapkv_wide" as a variant of SnapKV."""
    named, variant = methods.split_variant(method)
    if named != policy and named in (policy_parameters.FULL, *policy_parameters.known_policies()):
        better = f"{policy}_{variant or 'variant'}"
        raise KvatlasError(
            f"{path}: the name says policy '{named}', which pages would show, but its policy is '{policy}'; "
            f"call it '{better}'"
        )


def _unknown(kind: str, name: str, known: Sequence[str]) -> str:
    return f"{kind} '{name}' is unknown{closest(name, known)}; known: {', '.join(known)}"


def _check_type(path: str, value: Any, annotation: str) -> None:
    if annotation.startswith("Literal["):
        allowed = ast.literal_eval(f"({annotation[len('Literal[') : -1]},)")
        if value not in allowed:
            choices = ", ".join(map(str, allowed))
            raise KvatlasError(
                f"{path}: {value!r} is not allowed{closest(value, map(str, allowed))}; choose from {choices}"
            )
        return
    fits = {
        "int": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, int | float) and not isinstance(value, bool),
        "str": isinstance(value, str),
        "bool": isinstance(value, bool),
    }
    if not fits.get(annotation, True):
        raise KvatlasError(f"{path}: {value!r} is not {_TYPES[annotation]}")


class _StudyCheck:
    """The checks of one study's block; `path` begins every message."""

    def __init__(
        self, config: Config, path: str, study: str, block: Config, models: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.config, self.path, self.study, self.block, self.catalog = config, path, study, block, models
        self.models: list[str] = block.get("models", config["models"])
        self.contexts: list[int] = block.get("contexts", [block.get("context", block.get("tokens", 0))])

    def run(self, texts: Mapping[str, Mapping[str, Any]]) -> None:
        """Run all checks."""
        for index, model in enumerate(self.models):
            if model not in self.config["models"]:
                known = ", ".join(self.config["models"])
                raise KvatlasError(f"{self.path}.models[{index}]: '{model}' is not one of this run's models: {known}")
        if "task" in self.block and self.block["task"] not in known_tasks(self.study):
            raise KvatlasError(f"{self.path}.task: {_unknown('task', self.block['task'], known_tasks(self.study))}")
        self._check_seeds()
        self._check_skipped_layers()
        self._check_text(texts)
        self._check_lengths()
        for path, entries in self._arm_lists():
            self._check_arms(path, entries)
        self._check_methods(f"{self.path}.methods", self.block.get("methods", []))
        self._check_quantizers(f"{self.path}.quantizers", self.block.get("quantizers", []))

    def _check_skipped_layers(self) -> None:
        """Refuse layers that a model does not have, and protections that leave it none to compress."""
        for name, protection in self.block.get("protections", {}).items():
            path, skipped = f"{self.path}.protections.{name}.skip_layers", protection.get("skip_layers", [])
            for model in self.models:
                layers = self.catalog[model].get("shape", {}).get("layers")
                if layers is None or not skipped:
                    continue
                if max(skipped) >= layers:
                    raise KvatlasError(
                        f"{path}: model '{model}' has no layer {max(skipped)}; its last one is {layers - 1}"
                    )
                if len(skipped) >= layers:
                    raise KvatlasError(f"{path}: no layer of model '{model}' is left to compress; skip fewer")

    def _check_seeds(self) -> None:
        seeds = self.block.get("seeds")
        if not isinstance(seeds, dict):
            return
        contexts = [str(tokens) for tokens in self.block["contexts"]]
        kind, named = ("context", contexts) if set(seeds) & set(contexts) else ("model", self.models)
        for name in seeds:
            if name not in named:
                hint = closest(name, named)
                raise KvatlasError(f"{self.path}.seeds.{name}: the study does not run this {kind}{hint}")
        for name in named:
            if name not in seeds:
                raise KvatlasError(f"{self.path}.seeds: no number of seeds for {kind} '{name}'")

    def _check_text(self, texts: Mapping[str, Mapping[str, Any]]) -> None:
        haystacks = self.block.get("haystacks", [self.block.get("haystack", "sentences")])
        if "corpus" in haystacks and "text" not in self.block:
            raise KvatlasError(
                f"{self.path}.text: a corpus haystack needs a text of {TEXTS_FILE}; known: {', '.join(texts)}"
            )
        for key in ("text", "documents"):
            if key in self.block:
                _require(f"{self.path}.{key}", find_text, texts, self.block[key])

    def _check_lengths(self) -> None:
        key = "contexts" if "contexts" in self.block else "tokens" if "tokens" in self.block else "context"
        answers = [all_tasks()[task].new_tokens for task in self.block.get("tasks", ())]
        extra = self.block.get("new_tokens", max(answers, default=0))
        for model in self.models:
            limit = self.catalog[model].get("max_positions", math.inf)
            for context in self.contexts:
                if context + extra > limit:
                    also = f" and {extra} new tokens" if extra else ""
                    raise KvatlasError(
                        f"{self.path}.{key}: {context} tokens{also} pass the {limit} positions of model '{model}'; "
                        "use a shorter context or another model"
                    )

    def _arm_lists(self) -> list[tuple[str, list[Config]]]:
        lists = [(f"{self.path}.modes.{mode}", value) for mode, value in self.block.get("modes", {}).items()]
        if "arms" in self.block:
            lists.append((f"{self.path}.arms", self.block["arms"]))
        return [(path, [value] if isinstance(value, dict) else value) for path, value in lists]

    def _check_arms(self, path: str, entries: list[Config]) -> None:
        arms: Counter[tuple[Any, ...]] = Counter()
        for index, entry in enumerate(entries):
            self._check_entry(path if len(entries) == 1 else f"{path}[{index}]", entry)
            arms.update(self._crossed(entry))
        for (method, budget, *_), count in arms.items():
            if count > 1:
                raise KvatlasError(f"{path}: method '{method}' at budget '{budget}' is listed twice")

    def _check_entry(self, path: str, entry: Config) -> None:
        if "budgets" not in entry and entry["methods"] != [policy_parameters.FULL]:
            raise KvatlasError(f'{path}.budgets: this key is missing; methods need budgets such as "4x"')
        self._check_methods(f"{path}.methods", entry["methods"])
        self._check_quantizers(f"{path}.quantizers", entry.get("quantizers", []))
        for name in entry.get("protections", []):
            known = ["base", *self.block.get("protections", {})]
            if name not in known:
                raise KvatlasError(f"{path}.protections: {_unknown('protection', name, known)}")
        self._check_contexts(f"{path}.contexts", entry)
        self._check_budgets(f"{path}.budgets", entry)

    def _crossed(self, entry: Config) -> Iterator[tuple[Any, ...]]:
        """What an entry's lists cross into; the full cache is in every mode, so it is not counted."""
        return product(
            [method for method in entry["methods"] if method != policy_parameters.FULL],
            entry.get("budgets", []),
            entry.get("quantizers", [policy_parameters.NO_QUANTIZER]),
            entry.get("protections", ["base"]),
            entry.get("contexts", self.contexts),
            entry.get("protocols", self.block.get("protocols", ["online"])),
            entry.get("blocks", [0]),
        )

    def _check_contexts(self, path: str, entry: Config) -> None:
        for context in entry.get("contexts", []):
            if context not in self.contexts or "contexts" not in self.block:
                known = ", ".join(map(str, self.contexts))
                raise KvatlasError(f"{path}: {context} is not one of the study's contexts: {known}")

    def _check_methods(self, path: str, names: Sequence[str]) -> None:
        known = [*policy_parameters.known_policies(), *self.config.get("methods", {})]
        for name in names:
            if name != policy_parameters.FULL and name not in known:
                raise KvatlasError(f"{path}: {_unknown('method', name, sorted(set(known)))}")
            self._check_window(name)

    def _check_window(self, method: str) -> None:
        window = policy_parameters.window_of(policy_parameters.policy_of(self.config, method))
        if window is None:
            return
        if window < 1:
            raise KvatlasError(f"methods.{method}.window: {window} queries cannot vote; use at least 1")
        shortest = min(self.contexts)
        if window >= shortest:
            raise KvatlasError(
                f"methods.{method}.window: {window} queries are longer than the {shortest}-token prompts of "
                f"{self.path}; use a smaller window"
            )

    def _check_quantizers(self, path: str, names: Sequence[str]) -> None:
        for name in names:
            if name not in policy_parameters.known_quantizers():
                raise KvatlasError(f"{path}: {_unknown('quantizer', name, policy_parameters.known_quantizers())}")

    def _check_budgets(self, path: str, entry: Config) -> None:
        named = {"base": {}, **self.block.get("protections", {})}
        for protection in entry.get("protections", ["base"]):
            values = {"n_sinks": self.block["n_sinks"], "n_recent": self.block["n_recent"]} | dict(named[protection])
            protected = values["n_sinks"] + values["n_recent"]
            where = (
                f"{self.path}.n_recent" if protection == "base" else f"{self.path}.protections.{protection}.n_recent"
            )
            for context in entry.get("contexts", self.contexts):
                if protected >= context:
                    raise KvatlasError(
                        f"{where}: n_sinks {values['n_sinks']} + n_recent {values['n_recent']} leave nothing to "
                        f"compress of a {context}-token context; lower them"
                    )
                for text in entry.get("budgets", []):
                    self._check_budget(path, text, values, context)

    def _check_budget(self, path: str, text: str, values: Mapping[str, Any], context: int) -> None:
        budget = Budget(text, values["n_sinks"], values["n_recent"])
        try:
            budget.resolve(context)
        except KvatlasError as error:
            raise KvatlasError(f"{path}: {re.sub(r'^budgets: ', '', str(error))}") from error
