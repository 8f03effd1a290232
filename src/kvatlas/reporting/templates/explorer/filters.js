// What is shown: the chosen study, models, modes, methods, budgets, quantizers and protections.
const GROUPS = [
  { kind: "models", field: "model", title: "Models" },
  { kind: "modes", field: "mode", title: "Question modes" },
  { kind: "methods", field: "method", title: "Methods" },
  { kind: "budgets", field: "budget", title: "Budgets" },
  { kind: "quantizers", field: "quantizer", title: "Precision" },
  { kind: "protections", field: "protection", title: "Protected slots" },
];
const state = { study: null, metric: null, chosen: {}, arm: null, shown: 0 };

const rowKey = (row) => `${row.model}|${row.mode}|${row.arm}`;
const panelKey = (row) => `${row.model}|${row.mode}`;

function visibleRows() {
  return state.study.rows.filter((row) => GROUPS.every(({ kind, field }) => state.chosen[kind].has(row[field])));
}

function panelsOf(rows) {
  const panels = new Map();
  for (const row of rows) {
    if (!panels.has(panelKey(row))) panels.set(panelKey(row), { key: panelKey(row), model: row.model, mode: row.mode, rows: [] });
    panels.get(panelKey(row)).rows.push(row);
  }
  const order = (list, id) => DATA[list].findIndex((item) => item.id === id);
  return [...panels.values()].sort((a, b) => order("models", a.model) - order("models", b.model) || order("modes", a.mode) - order("modes", b.mode));
}

function panelTitle(panel) {
  const several = state.study.rows.some((row) => row.mode !== "");
  return labelOf("models", panel.model) + (several && panel.mode ? `, ${labelOf("modes", panel.mode)}` : "");
}

function chooseStudy(id, changed) {
  state.study = DATA.studies.find((study) => study.id === id);
  state.metric = state.study.metrics[0];
  for (const { kind, field } of GROUPS) {
    const present = DATA[kind].map((item) => item.id).filter((value) => state.study.rows.some((row) => row[field] === value));
    // Charts of many models are long; the page opens with the first one.
    state.chosen[kind] = new Set(kind === "models" ? present.slice(0, 1) : present);
  }
  options(byId("metric"), state.study.metrics.map((metric) => ({ id: metric.key, label: metric.label })), state.metric.key);
  buildFilters(changed);
}

// What is chosen, in the address: a link to the page shows the same. Whatever an address names that the page lacks is left out.
function writeAddress() {
  const said = new URLSearchParams({ study: state.study.id, metric: state.metric.key });
  for (const { kind } of GROUPS) said.set(kind, [...state.chosen[kind]].join(","));
  if (state.arm) said.set("arm", state.arm);
  try { history.replaceState(null, "", `#${said}`); } catch { /* some browsers keep the address of a file as it is */ }
}

function readAddress(changed) {
  const said = new URLSearchParams(location.hash.slice(1));
  const study = DATA.studies.find((item) => item.id === said.get("study")) ?? DATA.studies[0];
  chooseStudy(study.id, changed);
  state.metric = study.metrics.find((metric) => metric.key === said.get("metric")) ?? state.metric;
  byId("metric").value = state.metric.key;
  for (const { kind, field } of GROUPS) {
    const wanted = (said.get(kind) ?? "").split(",").filter((value) => study.rows.some((row) => row[field] === value));
    if (said.has(kind)) state.chosen[kind] = new Set(wanted);
  }
  if (study.rows.some((row) => rowKey(row) === said.get("arm"))) state.arm = said.get("arm");
  buildFilters(changed);
}

function buildFilters(changed) {
  const select = element("select", { id: "study" });
  options(select, DATA.studies, state.study.id);
  select.addEventListener("change", () => { chooseStudy(select.value, changed); changed(); byId("study").focus(); });
  const study = element("fieldset", {}, element("legend", {}, element("label", { for: "study" }, "Study")), select);
  byId("form").replaceChildren(study, ...GROUPS.map((group) => filterGroup(group, changed)).filter((fieldset) => fieldset !== null));
}

function filterGroup({ kind, field, title }, changed) {
  const items = DATA[kind].filter((item) => state.study.rows.some((row) => row[field] === item.id));
  if (items.length < 2) return null;
  const chosen = state.chosen[kind];
  const boxes = items.map((item) => {
    const box = element("input", { type: "checkbox", name: kind, value: item.id, checked: chosen.has(item.id) });
    box.addEventListener("change", () => { box.checked ? chosen.add(item.id) : chosen.delete(item.id); changed(); });
    return box;
  });
  const all = (wanted) => () => {
    boxes.forEach((box) => { box.checked = wanted; wanted ? chosen.add(box.value) : chosen.delete(box.value); });
    changed();
  };
  const button = (text, wanted) => {
    const node = element("button", { type: "button", className: "small", "aria-label": `${title}: ${text.toLowerCase()}` }, text);
    node.addEventListener("click", all(wanted));
    return node;
  };
  const lines = items.map((item, index) =>
    element("label", { className: "check" }, boxes[index], kind === "methods" ? swatch(item.id) : null, element("span", {}, item.label)));
  return element("fieldset", { "data-kind": kind }, element("legend", {}, title), element("div", { className: "pick" }, button("All", true), button("None", false)), ...lines);
}
