// Ties the parts together: any change of a control redraws what depends on it.
function redraw() {
  const rows = visibleRows();
  const panels = panelsOf(rows);
  const ordered = panels.flatMap((panel) => panel.rows);
  settleArm(ordered);
  byId("status").textContent = `${rows.length} of ${state.study.rows.length} arms shown, in ${panels.length} ${panels.length === 1 ? "panel" : "panels"}.`;
  drawLegend(rows);
  drawPareto(panels, openArm);
  drawHeat(panels, openArm);
  drawArms(panels, openArm);
  fillOutputControls(ordered);
  drawOutputs();
  writeAddress();
}

function redrawAll() {
  buildFilters(redraw);
  redraw();
}

// Show an arm's outputs, at one depth where a cell of the heatmap was chosen, and move there.
function openArm(key, depth = "all") {
  state.arm = key;
  byId("depth").replaceChildren(element("option", { value: String(depth) }));
  const context = byId("depth-context").value;
  byId("context").replaceChildren(element("option", { value: depth === "all" ? "all" : context }));
  byId("outcome").value = "all";
  redraw();
  byId("outputs-title").focus({ preventScroll: true });
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  byId("outputs-title").scrollIntoView({ behavior: still ? "auto" : "smooth", block: "start" });
}

function start() {
  if (!DATA.studies.length) {
    byId("failure").textContent = "This run has no study whose arms can be shown here; see README.md.";
    byId("failure").hidden = false;
    document.querySelector("main").hidden = true;
    startTheme(() => {});
    return;
  }
  loadTrials();
  startTheme(redrawAll);
  const narrow = window.matchMedia("(max-width: 900px)");
  const fold = () => { byId("filters").open = !narrow.matches; };
  narrow.addEventListener("change", fold);
  fold();
  byId("metric").addEventListener("change", () => { state.metric = state.study.metrics.find((metric) => metric.key === byId("metric").value); redraw(); });
  byId("depth-context").addEventListener("change", redraw);
  byId("arm").addEventListener("change", () => { state.arm = byId("arm").value; redraw(); });
  for (const id of ["beside", "context", "depth", "outcome"]) byId(id).addEventListener("change", () => drawOutputs());
  byId("more").addEventListener("click", () => {
    const before = state.shown;
    drawOutputs(true);
    const next = byId("outputs").children[before];
    if (next) { next.tabIndex = -1; next.focus(); }
  });
  byId("form").addEventListener("submit", (event) => event.preventDefault());
  readAddress(redraw);
  redraw();
  window.addEventListener("hashchange", () => { readAddress(redraw); redraw(); });
}

start();
