"""The explorer's page and data: deterministic, closed to text that looks like code, and true to results and trials."""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from plotly.offline import get_plotlyjs

from kvatlas.analysis.studies import online_lm, task_suite
from kvatlas.analysis.trials import write_parquet
from kvatlas.compression import methods
from kvatlas.errors import KvatlasError
from kvatlas.reporting import labels, style
from kvatlas.reporting.explorer import document
from kvatlas.reporting.explorer.data import DARK_PAGE, METRICS, SYMBOLS, contrast, explorer_data, look, on_dark
from tests.support import streams, synthetic
from tests.support.suite import trials_of
from tests.support.wording import COMPARISONS

TRIALS = [
    trial | {"question": f"What is the code of {trial['id']}?"}
    for trial in synthetic.recall_trials(arms=synthetic.ARMS[:6], seeds=2)
]
RESULTS = synthetic.results_json(TRIALS)
CONFIG: dict[str, Any] = {"config": {"title": "Needles", "models": ["smollm2-135m"]}}


def write_report(folder: Path, results: Any = RESULTS, trials: Any = TRIALS, config: Any = CONFIG) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "config.json").write_text(json.dumps(config))
    write_parquet(trials, folder / "trials.parquet")
    return folder


def embedded(page: str) -> Any:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.S)
    return json.loads(text)


def test_the_page_is_a_pure_function_of_three_files(tmp_path: Path) -> None:
    first = document.write_explorer(write_report(tmp_path / "one"))
    other = tmp_path / "two"
    other.mkdir()
    for name in ("results.json", "config.json", "trials.parquet"):
        shutil.copy(first.parent / name, other / name)
    assert document.write_explorer(other).read_bytes() == first.read_bytes()


@pytest.mark.parametrize("name", ["results.json", "config.json", "trials.parquet"])
def test_a_missing_file_is_named_and_no_page_is_written(tmp_path: Path, name: str) -> None:
    folder = write_report(tmp_path)
    (folder / name).unlink()
    with pytest.raises(KvatlasError, match=re.escape(name)):
        document.write_explorer(folder)
    assert not (folder / "explorer.html").exists()


@pytest.mark.parametrize(
    "text", ["</script>", "<!-- <script>", "]]>", "{{ 7 * 7 }} {% if x %}", "\u2028\u2029", "'\"`\\", "é 漢 🙂"]
)
def test_text_in_the_data_cannot_end_its_script_and_comes_back_unchanged(text: str) -> None:
    written = document.script_json([text])
    assert not set(written) & set("<>&\u2028\u2029")
    assert json.loads(written) == [text]


def test_hostile_text_adds_no_tag_to_the_page() -> None:
    hostile = "</script></title><img src=x onerror=alert(1)>{{ 7 * 7 }}{% raw %}"
    trials = [trial | {"output": hostile, "question": hostile, "answer": hostile} for trial in TRIALS]
    page = document.render(RESULTS, trials, {"config": {"title": hostile}})
    plain = document.render(RESULTS, TRIALS, CONFIG)
    without = page.replace(get_plotlyjs(), ""), plain.replace(get_plotlyjs(), "")
    tags = [re.findall(r"</?[a-z]+", text) for text in without]
    assert tags[0] == tags[1]
    assert hostile in embedded(page)["texts"]


def test_the_policy_allows_the_page_s_two_scripts_and_no_address() -> None:
    page = document.render(RESULTS, TRIALS, CONFIG)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.count("'sha256-") == 2
    assert "http" not in policy
    assert "unsafe-eval" not in policy
    assert "script-src 'unsafe-inline'" not in policy


def test_the_page_s_own_words_compare_no_arms() -> None:
    words = document.asset("explorer.html.j2") + "".join(document.asset(name) for name in document.SCRIPTS)
    said = re.sub(r"<[^>]*>", " ", words)
    assert re.findall(rf"\b({COMPARISONS})\b", said, flags=re.I) == []


def test_data_never_becomes_html() -> None:
    program = "".join(document.asset(name) for name in document.SCRIPTS)
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", program) == []


def test_every_trial_is_there_with_its_texts() -> None:
    data = explorer_data(RESULTS, TRIALS)
    columns, prompts, texts = data["trials"], data["prompts"], data["texts"]
    assert {len(column) for column in columns.values()} == {len(TRIALS)}
    assert len(prompts) == len({(t["mode"], t["id"]) for t in TRIALS})
    stored = {
        (prompts[prompt]["mode"], prompts[prompt]["id"], arm): (texts[prompts[prompt]["question"]], texts[output], hit)
        for prompt, arm, output, hit in zip(
            columns["prompt"], columns["arm"], columns["output"], columns["hit"], strict=True
        )
    }
    for trial in TRIALS:
        expected = (trial["question"], trial["output"], int(trial["hit"]))
        assert stored[trial["mode"], trial["id"], trial["arm"]] == expected


def test_arms_carry_the_numbers_of_the_results_and_the_floor_is_no_arm() -> None:
    (study,) = explorer_data(RESULTS, TRIALS)["studies"]
    rows = {(row["model"], row["mode"], row["arm"]): row for row in study["rows"]}
    source = [row for row in RESULTS["studies"]["needle"]["rows"] if row["mode"] != "no_context"]
    assert len(rows) == len(source)
    for row in source:
        shown = rows[row["model"], row["mode"], row["arm"]]
        assert shown["label"] == labels.arm_label(row)
        assert shown["size"] == pytest.approx(row["resident_bf16_mib"], rel=1e-5)
        assert shown["values"]["recall"] == pytest.approx([row["recall"], *row["recall_ci"]], rel=1e-5)
    assert {(cell["mode"], cell["depth"]) for cell in study["depths"]} == {
        (mode, depth) for mode in ("aware", "agnostic") for depth in (10, 30, 50, 70, 90)
    }


def test_the_online_study_is_shown_without_prompts_modes_or_depths() -> None:
    section = online_lm.aggregate(streams.online_trials(tokens=640))
    data = explorer_data({"studies": {"online_lm": section, "attention_loss": {"rows": [{"model": "m"}]}}}, [])
    (study,) = data["studies"]
    assert (study["id"], study["depths"], data["prompts"]) == ("online_lm", [], [])
    assert [metric["key"] for metric in study["metrics"]] == ["ppl", "post_ppl", "accuracy", "post_accuracy"]
    assert [protection["id"] for protection in data["protections"]] == ["base", "fair"]
    assert {row["label"] for row in study["rows"]} >= {"Full cache", "SnapKV 256 slots", "SnapKV 256 slots, fair"}
    assert all(row["size"] and row["values"]["ppl"] for row in study["rows"])


def test_the_task_suite_is_shown_with_its_depths_and_quantizers() -> None:
    hits = {"full": lambda *prompt: True, "full-int4": lambda *prompt: prompt[1] != 35}
    trials = [trial for arm, rule in hits.items() for trial in trials_of(arm, rule)]
    data = explorer_data({"studies": {"task_suite": task_suite.aggregate(trials)}}, [])
    (study,) = data["studies"]
    assert study["metrics"][0]["key"] == "accuracy"
    assert [item["id"] for item in data["quantizers"]] == ["none", "int4"]
    cells = {(cell["arm"], cell["depth"]): cell["text"] for cell in study["depths"]}
    assert (cells["full-int4", 5], cells["full-int4", 35]) == ("12/12", "0/12")


def test_studies_with_the_same_metric_stand_side_by_side_under_the_names_of_their_sections(
    results: dict[str, Any],
) -> None:
    studies = explorer_data(results, [])["studies"]
    assert [(study["id"], study["label"]) for study in studies] == [
        ("needle", "Needle in a haystack"),
        ("passkey", "Passkey"),
        ("online_lm", "Online language modelling"),
        ("task_suite", "Task suite"),
        ("ruler", "Long-context tasks"),
    ]


def test_a_run_without_studies_has_a_page() -> None:
    assert embedded(document.render({"run": "bare", "studies": {}}, [], {}))["studies"] == []


def test_a_task_that_failed_its_gate_is_marked() -> None:
    results = copy.deepcopy(RESULTS)
    for row in results["studies"]["needle"]["rows"]:
        row["gate_passed"] = row["mode"] != "aware"
    (study,) = explorer_data(results, TRIALS)["studies"]
    assert {row["mode"] for row in study["rows"] if row["gated"]} == {"aware"}


def test_models_keep_the_order_of_the_configuration() -> None:
    rows = [row | {"model": model} for row in RESULTS["studies"]["needle"]["rows"] for model in ("b", "a", "z")]
    data = explorer_data({"studies": {"needle": {"rows": rows}}}, [], ["z", "b", "a"])
    assert [model["id"] for model in data["models"]] == ["z", "b", "a"]


@pytest.mark.parametrize(
    "method", ["full", *methods.policies(), "emeans_pre_rope_proportional", "streaming_llm_reindexed", "new_one"]
)
def test_every_method_has_its_figure_s_colour_and_a_marker_and_can_be_seen_on_dark(method: str) -> None:
    shown = look(method)
    assert shown["light"] == style.method_style(method).color
    assert shown["symbol"].endswith("-open") != style.method_style(method).filled
    assert contrast(shown["dark"], DARK_PAGE) >= 4


def test_every_marker_of_the_figures_has_a_shape_in_the_legend() -> None:
    shapes = re.search(r"const SHAPES = \{(.*?)\n\};", document.asset("page.js"), flags=re.S)
    assert shapes is not None
    named = set(re.findall(r'^  "([a-z0-9-]+)":', shapes[1], flags=re.M))
    markers = {looks.marker for looks in style._STYLES.values()} | set(style._SPARE_MARKERS)
    assert {SYMBOLS[marker] for marker in markers} <= named


def test_contrast_is_that_of_wcag() -> None:
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)
    assert on_dark("#000000") == "#FFFFFF"
    assert on_dark("#E69F00") == "#E69F00"


def test_metrics_are_named_once() -> None:
    assert len({metric.key for metric in METRICS}) == len(METRICS) == len({metric.label for metric in METRICS})
