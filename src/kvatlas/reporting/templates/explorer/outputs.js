// The prompts behind an arm: the question, the expected answer, and what one or two arms wrote.
const PAGE_SIZE = 6;
const TRIALS = new Map(); // arm's key -> list of trials of one study

function loadTrials() {
  const columns = DATA.trials;
  columns.prompt.forEach((prompt, index) => {
    const about = DATA.prompts[prompt];
    const key = `${about.study}|${about.model}|${about.mode}|${columns.arm[index]}`;
    if (!TRIALS.has(key)) TRIALS.set(key, []);
    TRIALS.get(key).push({ prompt, about, hit: columns.hit[index] === 1, output: columns.output[index], kept: columns.kept[index], nll: columns.nll[index] });
  });
}

const trialsOf = (key) => TRIALS.get(`${state.study.id}|${key}`) ?? [];
const textOf = (index) => (index === null ? DASH : DATA.texts[index]);

function armItems(rows) {
  const several = new Set(rows.map(panelKey)).size > 1;
  return rows.map((row) => ({ id: rowKey(row), label: several ? `${row.label} · ${panelTitle(row)}` : row.label }));
}

// Keep the selection while it is shown, else take the first compressed arm.
function settleArm(rows) {
  if (!rows.some((row) => rowKey(row) === state.arm)) {
    const first = rows.find((row) => row.method !== "full") ?? rows[0];
    state.arm = first ? rowKey(first) : null;
  }
}

function fillOutputControls(rows) {
  options(byId("arm"), armItems(rows), state.arm ?? "");
  const row = rows.find((candidate) => rowKey(candidate) === state.arm);
  const same = row ? state.study.rows.filter((other) => panelKey(other) === panelKey(row) && other !== row) : [];
  const full = same.find((other) => other.arm === "full");
  const kept = byId("beside").value;
  const items = [{ id: "", label: "nothing" }, ...same.map((other) => ({ id: rowKey(other), label: other.label }))];
  options(byId("beside"), items, items.some((item) => item.id === kept) && kept ? kept : full ? rowKey(full) : "");
  const trials = state.arm ? trialsOf(state.arm) : [];
  const values = (field) => [...new Set(trials.map((trial) => trial.about[field]))].filter((value) => value !== null).sort((a, b) => a - b);
  options(byId("context"), [{ id: "all", label: "all" }, ...values("context").map((value) => ({ id: value, label: `${value} tokens` }))], byId("context").value);
  options(byId("depth"), [{ id: "all", label: "all" }, ...values("depth").map((value) => ({ id: value, label: `${value}%` }))], byId("depth").value);
  for (const id of ["output-controls", "back"]) byId(id).hidden = !trials.length;
}

function drawOutputs(more = false) {
  const trials = state.arm ? trialsOf(state.arm) : [];
  const wanted = (id, value) => byId(id).value === "all" || byId(id).value === String(value);
  const matches = trials.filter((trial) => wanted("context", trial.about.context) && wanted("depth", trial.about.depth) && wanted("outcome", Number(trial.hit)));
  const row = state.study.rows.find((candidate) => rowKey(candidate) === state.arm);
  const beside = byId("beside").value;
  const other = beside ? state.study.rows.find((candidate) => rowKey(candidate) === beside) : null;
  const matching = new Map((other ? trialsOf(beside) : []).map((trial) => [trial.about.id, trial]));
  const from = more ? state.shown : 0;
  state.shown = Math.min(from + PAGE_SIZE, matches.length);
  const cards = matches.slice(from, state.shown).map((trial) => outputCard(trial, row, other, matching.get(trial.about.id)));
  if (more) byId("outputs").append(...cards);
  else byId("outputs").replaceChildren(...cards);
  byId("more").hidden = state.shown >= matches.length;
  const hits = matches.filter((trial) => trial.hit).length;
  byId("output-status").textContent = trials.length
    ? `${row.label}, ${panelTitle(row)}: ${matches.length} of ${trials.length} prompts match, ${hits} of them hits; ${state.shown} shown.`
    : "No generated text is stored for this choice.";
}

function outputCard(trial, row, other, matching) {
  const { about } = trial;
  const facts = [about.context === null ? "" : `${about.context} tokens`, about.depth === null ? "" : `depth ${about.depth}%`, about.seed === null ? "" : `seed ${about.seed}`];
  const line = (name, index) => [element("dt", {}, name), element("dd", { className: "text" }, textOf(index))];
  return element("li", { "data-prompt": about.id },
    element("h3", {}, about.id), element("p", { className: "soft" }, facts.filter((fact) => fact).join(", ")),
    element("dl", {}, ...(about.question === null ? [] : line("Question", about.question)), ...line("Expected", about.answer)),
    element("div", { className: "answers" }, answer(row, trial), other && matching ? answer(other, matching) : null));
}

function answer(row, trial) {
  const kept = trial.kept === null ? null : element("span", { className: "soft" }, `${(100 * trial.kept).toFixed(0)}% of the needle's slots kept`);
  return element("div", { className: "answer" },
    element("div", { className: "who" }, element("strong", {}, row.label), element("span", { className: trial.hit ? "hit" : "miss" }, trial.hit ? "hit" : "miss"), kept),
    element("p", { className: "text" }, textOf(trial.output)));
}
