"""A configuration that is wrong is refused in one line that names the key and the way out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvatlas.errors import KvatlasError
from kvatlas.grid import config, unfold
from tests.support.places import ROOT

GOOD: dict[str, Any] = {
    "run": "toy",
    "title": "Toy",
    "models": ["smollm2-135m"],
    "embedder": "all-minilm-l6-v2",
    "methods": {"snapkv_small": {"policy": "snapkv", "window": 16}},
    "studies": {
        "needle": {
            "contexts": [512],
            "seeds": 2,
            "depths": [10, 90],
            "new_tokens": 24,
            "n_sinks": 4,
            "n_recent": 32,
            "modes": {"aware": {"methods": ["random", "snapkv_small"], "budgets": ["4x"]}},
        }
    },
}

Edit = Callable[[dict[str, Any]], object]


def needle(edit: Edit) -> Edit:
    return lambda data: edit(data["studies"]["needle"])


def aware(edit: Edit) -> Edit:
    return lambda data: edit(data["studies"]["needle"]["modes"]["aware"])


def put(**values: Any) -> Edit:
    return lambda data: data.update(values)


def drop(key: str) -> Edit:
    return lambda data: data.pop(key)


BAD: dict[str, tuple[Edit, list[str]]] = {
    "unknown key": (needle(put(contxts=[1])), ["studies.needle.contxts: unknown key", "did you mean 'contexts'?"]),
    "unknown study": (lambda d: d["studies"].update(nedle={}), ["studies.nedle: unknown key", "'needle'"]),
    "missing key": (needle(drop("seeds")), ["studies.needle.seeds: this key is missing"]),
    "no studies": (put(studies={}), ["studies: must not be empty"]),
    "device": (put(device="gpu"), ["device: 'gpu' is not allowed", "cuda"]),
    "haystack": (needle(put(haystack="sentence")), ["studies.needle.haystack", "did you mean 'sentences'?"]),
    "wrong type": (needle(put(contexts="512")), ["studies.needle.contexts: '512' is not a list"]),
    "budget as number": (aware(put(budgets=[256])), ["studies.needle.modes.aware.budgets[0]", "quoted"]),
    "depth range": (needle(put(depths=[10, 110])), ["studies.needle.depths[1]: 110 is out of range", "100"]),
    "zero seeds": (needle(put(seeds=0)), ["studies.needle.seeds: 0 is out of range, it must be at least 1"]),
    "contexts twice": (needle(put(contexts=[512, 512])), ["studies.needle.contexts: 512 is listed twice"]),
    "unknown model": (put(models=["smollm"]), ["models[0]: ", "smollm2-135m"]),
    "embedder as model": (put(models=["all-minilm-l6-v2"]), ["models[0]: ", "embedder"]),
    "model as embedder": (put(embedder="smollm2-135m"), ["embedder: "]),
    "study's model": (needle(put(models=["qwen2.5-0.5b-instruct"])), ["studies.needle.models[0]", "smollm2-135m"]),
    "seeds of another model": (
        needle(put(seeds={"smollm2-135m": 2, "qwen2.5-0.5b-instruct": 2})),
        ["studies.needle.seeds.qwen2.5-0.5b-instruct: the study does not run this model"],
    ),
    "seeds of another context": (
        needle(put(seeds={"512": 2, "5120": 2})),
        ["studies.needle.seeds.5120: the study does not run this context", "did you mean '512'?"],
    ),
    "seeds of models and contexts": (
        needle(put(seeds={"512": 2, "smollm2-135m": 2})),
        ["studies.needle.seeds.smollm2-135m: the study does not run this context"],
    ),
    "seeds of a missing model": (needle(put(seeds={"smollm2": 2})), ["studies.needle.seeds"]),
    "unknown method": (aware(put(methods=["snapvk"])), ["studies.needle.modes.aware.methods", "did you mean 'snapkv"]),
    "unknown policy": (
        put(methods={"mine": {"policy": "snapvk"}}),
        ["methods.mine.policy: policy 'snapvk' is unknown", "did you mean 'snapkv'?"],
    ),
    "method named after another policy": (
        put(methods={"snapkv_sum": {"policy": "h2o"}}),
        ["methods.snapkv_sum: the name says policy 'snapkv'", "its policy is 'h2o'", "call it 'h2o_sum'"],
    ),
    "method id": (put(methods={"Snap-KV": {}}), ["methods", "'Snap-KV' is not valid", "small letters"]),
    "unknown parameter": (
        put(methods={"mine": {"policy": "snapkv", "windw": 8}}),
        ["methods.mine.windw: policy 'snapkv' has no such parameter", "did you mean 'window'?"],
    ),
    "parameter type": (
        put(methods={"mine": {"policy": "snapkv", "window": "16"}}),
        ["methods.mine.window: '16' is not a whole number"],
    ),
    "boolean as number": (
        put(methods={"mine": {"policy": "snapkv", "window": True}}),
        ["methods.mine.window: True is not a whole number"],
    ),
    "base that is no policy": (
        put(methods={"mine": {"policy": "merging", "base": {"policy": "snapkw"}}}),
        ["methods.mine.base.policy: policy 'snapkw' is unknown; did you mean 'snapkv'?"],
    ),
    "base that does not evict": (
        put(methods={"mine": {"policy": "merging", "base": {"policy": "emeans_pre_rope"}}}),
        ["methods.mine.base.policy: policy 'emeans_pre_rope'"],
    ),
    "base without a name": (
        put(methods={"mine": {"policy": "merging", "base": {"window": 8}}}),
        ["methods.mine.base: ", "write base: {policy: NAME}"],
    ),
    "parameter of a base": (
        put(methods={"mine": {"policy": "merging", "base": {"policy": "snapkv", "windows": 8}}}),
        ["methods.mine.base.windows: policy 'snapkv'", "did you mean 'window'?"],
    ),
    "parameter choice": (
        put(methods={"mine": {"policy": "snapkv", "pooling": "mean"}}),
        ["methods.mine.pooling: 'mean' is not allowed", "avg, max"],
    ),
    "unknown task": (
        needle(put(task="passkeys")),
        ["studies.needle.task: task 'passkeys' is unknown; did you mean 'passkey'?; known: needle, passkey"],
    ),
    "task of another kind": (needle(put(task="suite")), ["studies.needle.task: task 'suite' is unknown"]),
    "renamed key": (
        needle(put(settings={"fair": {}})),
        ["studies.needle.settings: unknown key; `settings` is called `protections` now"],
    ),
    "renamed key of arms": (aware(put(settings=["fair"])), ["aware.settings: unknown key; `settings` is called `prot"]),
    "renamed parameter": (
        put(methods={"mine": {"policy": "emeans_pre_rope", "mass_bias": True}}),
        ["methods.mine.mass_bias: policy 'emeans_pre_rope'", "`mass_bias` is called `proportional_attention` now"],
    ),
    "renamed parameter of layers": (
        put(methods={"mine": {"policy": "heavy_hitter_layers", "least": 0.1}}),
        ["methods.mine.least: ", "`least` is called `min_share` now"],
    ),
    "unknown quantizer": (aware(put(quantizers=["int9"])), ["aware.quantizers: quantizer 'int9' is unknown", "none"]),
    "unknown protection": (
        aware(put(protections=["bare"])),
        ["aware.protections: protection 'bare' is unknown", "base"],
    ),
    "ratio below 1": (aware(put(budgets=["0.5x"])), ["studies.needle.modes.aware.budgets: '0.5x'", "at least 1"]),
    "not a budget": (aware(put(budgets=["four"])), ["studies.needle.modes.aware.budgets: 'four'"]),
    "budget under the protected slots": (aware(put(budgets=["36"])), ["aware.budgets: '36'", "36 protected"]),
    "share under the protected slots": (aware(put(budgets=["5%"])), ["aware.budgets: '5%'"]),
    "nothing left of the middle": (needle(put(n_recent=508)), ["studies.needle.n_recent", "512-token context"]),
    "long window": (
        put(methods={"snapkv_small": {"policy": "snapkv", "window": 512}}),
        ["methods.snapkv_small.window: 512 queries are longer than the 512-token prompts"],
    ),
    "no window": (
        put(methods={"snapkv_small": {"policy": "snapkv", "window": 0}}),
        ["methods.snapkv_small.window: 0 queries cannot vote"],
    ),
    "context over the model": (
        needle(put(contexts=[8192])),
        ["studies.needle.contexts: 8192 tokens and 24 new tokens pass the 8192 positions of model 'smollm2-135m'"],
    ),
    "method twice": (aware(put(methods=["random", "random"])), ["aware.methods: 'random' is listed twice"]),
    "arm twice": (
        lambda d: d["studies"]["needle"]["modes"].update(aware=[{"methods": ["random"], "budgets": ["4x"]}] * 2),
        ["studies.needle.modes.aware: method 'random' at budget '4x' is listed twice"],
    ),
    "no budgets": (aware(drop("budgets")), ["studies.needle.modes.aware.budgets: this key is missing"]),
    "context of no study": (
        aware(put(contexts=[256])),
        ["aware.contexts: 256 is not one of the study's contexts: 512"],
    ),
    "corpus without a text": (needle(put(haystack="corpus")), ["studies.needle.text", "lee-news"]),
    "unknown text": (needle(put(text="lee")), ["studies.needle.text: ", "lee-news"]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_one_line_with_the_key_and_the_way_out(name: str) -> None:
    edit, expected = BAD[name]
    data = copy.deepcopy(GOOD)
    edit(data)
    with pytest.raises(KvatlasError) as caught:
        config.validate(data, ROOT)
    message = str(caught.value)
    assert "\n" not in message
    for part in expected:
        assert part in message


def test_a_good_configuration_comes_back_as_it_is() -> None:
    assert config.validate(GOOD, ROOT) == GOOD


def test_the_protected_slots_of_a_protection_are_checked_under_its_own_key() -> None:
    data = copy.deepcopy(GOOD)
    data["studies"]["needle"]["protections"] = {"wide": {"n_recent": 600}}
    data["studies"]["needle"]["modes"]["aware"]["protections"] = ["wide"]
    with pytest.raises(KvatlasError, match=r"studies\.needle\.protections\.wide\.n_recent"):
        config.validate(data, ROOT)


def test_the_configurations_of_the_repository_are_valid() -> None:
    loaded = {path: yaml.safe_load(path.read_text()) for path in (ROOT / "config").glob("*.yaml")}
    runs = {path: data for path, data in loaded.items() if "run" in data}
    assert {path.name for path in runs} >= {"config.yaml", "smoke.yaml", "paper.yaml"}
    for path, data in runs.items():
        assert config.load(path, ROOT) == data


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("run: a\ntitle: t\nrun: b\n")
    with pytest.raises(KvatlasError, match=r"c\.yaml.*key 'run' is given twice \(line 3\)"):
        config.load(tmp_path / "c.yaml", ROOT)


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: [", "not valid YAML"), ("- a", "a configuration is a map"), ("", "a configuration is a map")],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(KvatlasError, match=rf"c\.yaml: .*{message}"):
        config.load(tmp_path / "c.yaml", ROOT)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KvatlasError, match=r"nowhere\.yaml: no such configuration"):
        config.load(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("missing", ["device", "dtype"])
def test_a_portable_run_needs_what_makes_numbers_equal_everywhere(missing: str) -> None:
    portable = {"portable": True, "device": "cpu", "dtype": "fp32"}
    assert config.validate(GOOD | portable, ROOT)["portable"]
    del portable[missing]
    with pytest.raises(KvatlasError, match=f"portable: numbers are the same everywhere with {missing}: "):
        config.validate(GOOD | portable, ROOT)


def test_a_portable_run_has_one_thread_and_says_so_in_every_spec() -> None:
    portable = {"portable": True, "device": "cpu", "dtype": "fp32"}
    with pytest.raises(KvatlasError, match="threads: 1 alone"):
        config.validate(GOOD | portable | {"threads": 2}, ROOT)
    cells = unfold.grid(config.validate(GOOD | portable, ROOT)).trial_cells()
    assert all(cell.spec["portable"] is True for cell in cells)
    assert not any("portable" in cell.spec for cell in unfold.grid(config.validate(GOOD, ROOT)).trial_cells())


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda data: data.update(run="toy\n"), "run: 'toy.n' is not valid"),
        (lambda data: data.update(run="töy"), "run: 'töy' is not valid"),
        (lambda data: data.update(title="a\nb"), "title: 'a.nb' is not valid; title of the report, one line"),
        (lambda data: data.update(title="a\x1b[31m"), r"title: the text holds the character U\+001B"),
        (lambda data: data.update(title="a\ud800"), r"title: the text holds the character U\+D800"),
        (lambda data: data.update(publish={"private": True}), "publish.repo_id: this key is missing"),
        (lambda data: data.update(publish={"repo_id": "a/b\n"}), "publish.repo_id: 'a/b.n' is not valid"),
        (lambda data: data.update(memory_mb=10**30), "memory_mb: the number has more than 15 digits"),
        (needle(lambda data: data.update(depths=[float("nan")])), "studies.needle.depths.0: nan is no number"),
        (needle(lambda data: data["modes"]["aware"].update(budgets=[" 4x"])), "budgets: ' 4x' is not a ratio"),
        (needle(lambda data: data["modes"]["aware"].update(budgets=["４x"])), "budgets: '４x' is not a ratio"),
        (needle(lambda data: data["modes"]["aware"].update(budgets=["4x\n"])), "budgets: '4x.n' is not 4x, 50%"),
        (needle(lambda data: data["modes"]["aware"].update(budgets=["1e1x"])), "budgets: '1e1x' is not a ratio"),
        (needle(lambda data: data["modes"]["aware"].update(budgets=["infx"])), "budgets: 'infx' is not a ratio"),
    ],
)
def test_text_and_numbers_that_only_look_right_are_refused(edit: Edit, message: str) -> None:
    data = copy.deepcopy(GOOD)
    edit(data)
    with pytest.raises(KvatlasError, match=message) as caught:
        config.validate(data, ROOT)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([99], "model 'smollm2-135m' has no layer 99; its last one is 29"),
        ([0, 30], "model 'smollm2-135m' has no layer 30; its last one is 29"),
        (list(range(30)), "no layer of model 'smollm2-135m' is left to compress; skip fewer"),
    ],
)
def test_skipped_layers_are_layers_of_the_model_and_leave_some(layers: list[int], message: str) -> None:
    data = copy.deepcopy(GOOD)
    data["studies"]["needle"]["protections"] = {"skip": {"skip_layers": layers}}
    with pytest.raises(KvatlasError, match=f"studies.needle.protections.skip.skip_layers: {message}"):
        config.validate(data, ROOT)


def test_a_configuration_that_holds_itself_or_millions_of_values_is_refused() -> None:
    data: dict[str, Any] = copy.deepcopy(GOOD)
    data["models"].append(data["models"])
    with pytest.raises(KvatlasError, match=r"models.1: the value holds itself; remove the alias"):
        config.validate(data, ROOT)
    bomb: list[Any] = ["x"] * 10
    for _ in range(7):
        bomb = [bomb] * 10
    with pytest.raises(KvatlasError, match="more than 1,000,000 values"):
        config.validate(GOOD | {"models": bomb}, ROOT)
