// The Pareto charts, the depth heatmap and the table of arms. Arms of one size are drawn on one line: where they really are.
const OWN = "base"; // the study's own protected slots; others have open marks
const RAMP = ["#ffffd9", "#c7e9b4", "#41b6c4", "#225ea8", "#081d58"];
const DARK_RAMP = ["#26303b", "#225ea8", "#2f95bd", "#7fcdbb", "#ffffd9"];

const order = (row) => DATA.methods.findIndex((method) => method.id === row.method);

function frontier(rows, metric) {
  const sign = metric.wanted === "max" ? 1 : -1;
  const kept = [];
  for (const row of [...rows].sort((a, b) => a.size - b.size || sign * (b.values[metric.key][0] - a.values[metric.key][0]))) {
    if (!kept.length || sign * row.values[metric.key][0] > sign * kept.at(-1).values[metric.key][0]) kept.push(row);
  }
  return kept;
}

function hoverText(row, metric) {
  const size = `${shown(row.size, { kind: "log" })} ${state.study.size.unit}` + (row.ratio ? ` (${row.ratio.toFixed(2)}x)` : "");
  const count = row.n ? `n = ${row.n}` + (row.clusters ? ` in ${row.clusters} clusters` : "") : "";
  return [row.label, `${metric.label}: ${shownWithInterval(row.values[metric.key], metric)}`, size, count, row.gated ? "task failed its gate" : ""]
    .filter((line) => line).map((line) => line.replaceAll("&", "&amp;").replaceAll("<", "&lt;")).join("<br>");
}

function methodTrace(method, rows, metric) {
  const look = METHODS.get(method);
  const plain = rows.filter((row) => row.quantizer === "none").length;
  const values = rows.map((row) => row.values[metric.key]);
  const color = colorOf(method);
  const ends = (bound) => values.map((value) => (value[bound] === null ? 0 : Math.abs(value[bound] - value[0])));
  return {
    type: "scatter",
    mode: plain === rows.length ? "lines+markers" : "markers+text",
    x: rows.map((row) => row.size),
    y: values.map((value) => value[0]),
    customdata: rows.map(rowKey),
    hovertext: rows.map((row) => hoverText(row, metric)),
    hoverinfo: "text",
    cliponaxis: false,
    text: rows.map((row) => (row.quantizer === "none" ? "" : row.quantizer)),
    textposition: "middle left",
    textfont: { size: 10, color },
    line: { color, width: 1.3, dash: look.dash },
    marker: {
      color, symbol: rows.map((row) => look.symbol + (row.protection === OWN ? "" : "-open")), size: rows.map((row) => (rowKey(row) === state.arm ? 15 : 9)),
      opacity: rows.map((row) => (row.gated ? 0.35 : 1)),
      line: { color: rows.map((row) => (rowKey(row) === state.arm ? inkOf("ink") : color)), width: rows.map((row) => (rowKey(row) === state.arm ? 2 : 1)) },
    },
    error_y: { type: "data", symmetric: false, array: ends(2), arrayminus: ends(1), color, thickness: 1, width: 0 },
  };
}

function sizeTicks(sizes) {
  const low = Math.min(...sizes) * 0.8, high = Math.max(...sizes) * 1.25;
  for (const step of [1, 0.5]) {
    const ticks = [];
    for (let power = Math.ceil(Math.log2(low) / step) * step; power <= Math.log2(high); power += step) ticks.push(2 ** power);
    if (ticks.length >= 2 || step === 0.5) return { range: [Math.log10(low), Math.log10(high)], tickvals: ticks, ticktext: ticks.map((tick) => String(Number(tick.toPrecision(3)))) };
  }
}

function valueAxis(rows, metric) {
  if (metric.kind === "share") return { range: [-0.05, 1.05], tickvals: [0, 0.25, 0.5, 0.75, 1], ticktext: ["0%", "25%", "50%", "75%", "100%"] };
  if (metric.kind === "linear") return { nticks: 6 };
  const values = rows.flatMap((row) => row.values[metric.key]).filter((value) => value > 0);
  const low = Math.min(...values) * 0.95, high = Math.max(...values) * 1.05;
  const span = Math.log10(high / low);
  const steps = span < 0.3 ? [1, 1.1, 1.2, 1.3, 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 8] : span < 1.2 ? [1, 1.5, 2, 3, 5, 7] : span < 3 ? [1, 2, 5] : [1];
  const powers = Array.from({ length: Math.ceil(Math.log10(high)) - Math.floor(Math.log10(low)) + 1 }, (_, index) => 10 ** (Math.floor(Math.log10(low)) + index));
  const ticks = powers.flatMap((power) => steps.map((step) => Number((step * power).toPrecision(3)))).filter((tick) => tick >= low && tick <= high);
  return { type: "log", range: [Math.log10(low), Math.log10(high)], tickvals: ticks, ticktext: ticks.map(String) };
}

function drawPareto(panels, select) {
  const metric = state.metric;
  const host = byId("pareto");
  host.querySelectorAll(".plot").forEach((plot) => Plotly.purge(plot));
  const drawable = panels.map((panel) => ({ ...panel, rows: panel.rows.filter((row) => row.size > 0 && row.values[metric.key]) })).filter((panel) => panel.rows.length);
  host.replaceChildren(...drawable.map((panel) => element("div", { className: "panel" }, element("h3", {}, panelTitle(panel)), panelNote(panel), element("div", { className: "plot", role: "img", "aria-label": `${metric.label} against resident size of ${panel.rows.length} arms, ${panelTitle(panel)}; the numbers are in the table of arms` }))));
  if (!drawable.length) host.replaceChildren(element("p", { className: "soft" }, "No arm with a size and this metric is chosen."));
  drawable.forEach((panel, index) => drawPanel(host.querySelectorAll(".plot")[index], panel, metric, select));
}

function drawPanel(plot, panel, metric, select) {
  const steps = frontier(panel.rows.filter((row) => !row.gated), metric);
  const edge = Math.max(...panel.rows.map((row) => row.size)) * 1.25;
  const traces = [{
    type: "scatter", mode: "lines", hoverinfo: "skip", name: "frontier",
    x: [...steps.map((row) => row.size), ...(steps.length ? [edge] : [])],
    y: [...steps, ...steps.slice(-1)].map((row) => row.values[metric.key][0]),
    line: { shape: "hv", color: inkOf("line"), width: 5 },
  }];
  for (const { id } of DATA.methods) {
    const rows = panel.rows.filter((row) => row.method === id);
    const plain = DATA.protections.map(({ id: protection }) => rows.filter((row) => row.quantizer === "none" && row.protection === protection));
    const parts = [...plain, rows.filter((row) => row.quantizer !== "none")];
    traces.push(...parts.filter((part) => part.length).map((part) => methodTrace(id, part, metric)));
  }
  const axis = { gridcolor: inkOf("line"), linecolor: inkOf("line"), zeroline: false, tickfont: { size: 11 }, title: { font: { size: 12 }, standoff: 6 } };
  const fine = window.matchMedia("(pointer: fine)").matches;
  Plotly.newPlot(plot, traces, {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: inkOf("ink"), family: "system-ui, sans-serif" },
    margin: { l: 52, r: 12, t: 8, b: 44 }, showlegend: false, hovermode: "closest", dragmode: fine ? "zoom" : false,
    hoverlabel: { bgcolor: inkOf("page"), bordercolor: inkOf("soft"), font: { color: inkOf("ink"), size: 12 }, align: "left" },
    xaxis: { ...axis, ...sizeTicks(panel.rows.map((row) => row.size)), type: "log", title: { ...axis.title, text: state.study.size.label } },
    yaxis: { ...axis, ...valueAxis(panel.rows, metric), title: { ...axis.title, text: metric.label } },
  }, { displayModeBar: false, responsive: true });
  plot.on("plotly_click", (event) => { if (event.points[0].customdata) select(event.points[0].customdata); });
}

function panelNote(panel) {
  const span = (field) => { const values = panel.rows.map((row) => row[field]).filter((value) => value !== null); const low = Math.min(...values), high = Math.max(...values); return values.length ? (low === high ? `${low}` : `${low} to ${high}`) : null; };
  const n = span("n"), clusters = span("clusters");
  const failed = state.study.gates.filter((gate) => gate.model === panel.model && gate.mode === panel.mode && !gate.passed);
  const size = [n ? `n = ${n} per arm` : "", clusters ? `${clusters} clusters` : ""].filter((part) => part).join(", ");
  const reasons = failed.map((gate) => `Gate not passed${gate.context ? ` (${gate.context})` : ""}: ${gate.reason || "no reason given"}.`);
  return element("p", { className: "soft" }, [size && `${size}.`, ...reasons].filter((part) => part).join(" "));
}

function shade(share) {
  const ramp = (dark() ? DARK_RAMP : RAMP).map((color) => [1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16)));
  const level = Math.min(Math.max(share, 0), 1) * (ramp.length - 1);
  const from = Math.min(Math.floor(level), ramp.length - 2);
  const mixed = ramp[from].map((value, channel) => Math.round(value + (ramp[from + 1][channel] - value) * (level - from)));
  const light = mixed.reduce((sum, value, channel) => sum + value * [0.2126, 0.7152, 0.0722][channel], 0);
  return { fill: `rgb(${mixed.join(",")})`, ink: light > 125 ? "#10151a" : "#ffffff" };
}

function drawHeat(panels, select) {
  const contexts = [...new Set(state.study.depths.map((cell) => cell.context))];
  byId("depth-section").hidden = !contexts.length;
  const items = contexts.map((context) => ({ id: context, label: context === "all" ? "all contexts" : `${context} tokens` }));
  options(byId("depth-context"), items, byId("depth-context").value || "all");
  byId("depth-context").parentElement.hidden = items.length < 2;
  const chosen = byId("depth-context").value;
  const cells = new Map(state.study.depths.filter((cell) => String(cell.context) === chosen).map((cell) => [`${rowKey(cell)}|${cell.depth}`, cell]));
  const heatmaps = panels.map((panel) => heatPanel(panel, cells, select)).filter((panel) => panel !== null);
  byId("heat").replaceChildren(...(heatmaps.length ? heatmaps : [element("p", { className: "soft" }, "No arm is chosen.")]));
}

function heatPanel(panel, cells, select) {
  const rows = panel.rows.filter((row) => [...cells.values()].some((cell) => rowKey(cell) === rowKey(row)));
  const depths = [...new Set([...cells.values()].filter((cell) => panelKey(cell) === panel.key).map((cell) => cell.depth))].sort((a, b) => a - b);
  if (!rows.length) return null;
  const head = element("tr", {}, element("th", { className: "name", scope: "col" }, "Arm"), ...depths.map((depth) => element("th", { scope: "col" }, `${depth}%`)));
  const lines = rows.map((row, index) => element("tr", { className: index && row.budget !== rows[index - 1].budget ? "budget" : "" },
    element("th", { scope: "row" }, row.label), ...depths.map((depth) => heatCell(row, depth, cells.get(`${rowKey(row)}|${depth}`), select))));
  const table = element("table", { className: "heat", "aria-label": `Share of right answers by depth, ${panelTitle(panel)}` }, element("thead", {}, head), element("tbody", {}, ...lines));
  roving(table);
  const ramp = element("span", { className: "ramp" });
  ramp.style.background = `linear-gradient(90deg, ${(dark() ? DARK_RAMP : RAMP).join(", ")})`;
  return element("div", { className: "panel" }, element("h3", {}, panelTitle(panel)), element("div", { className: "scroll" }, table), element("div", { className: "scale", "aria-hidden": "true" }, "0%", ramp, "100%"));
}

function heatCell(row, depth, cell, select) {
  if (!cell || cell.share === null) return element("td", {});
  const { fill, ink } = shade(cell.share);
  const button = element("button", { type: "button", "aria-label": `${row.label}, depth ${depth}%: ${cell.text}` }, cell.text);
  button.style.setProperty("--cell", fill);
  button.style.setProperty("--on-cell", ink);
  button.addEventListener("click", () => select(rowKey(row), depth));
  return element("td", {}, button);
}

// One tab stop per heatmap; arrow keys move inside it.
function roving(table) {
  const grid = [...table.tBodies[0].rows].map((row) => [...row.querySelectorAll("td")].map((cell) => cell.firstChild));
  grid.flat().forEach((button) => { if (button) button.tabIndex = -1; });
  const first = grid.flat().find((button) => button);
  if (first) first.tabIndex = 0;
  table.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const y = grid.findIndex((row) => row.includes(document.activeElement));
    if (!step || y < 0) return;
    const next = grid[y + step[0]]?.[grid[y].indexOf(document.activeElement) + step[1]];
    event.preventDefault();
    if (!next) return;
    document.activeElement.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
}

function drawArms(panels, select) {
  const metric = state.metric;
  const head = ["Arm", state.study.size.unit === "MiB" ? "Resident MiB" : "Share of bytes", "Actual ratio", metric.label, "n", "Clusters"];
  const titles = element("tr", {}, ...head.map((text, index) => element("th", { scope: "col", className: index ? "number" : "" }, text)));
  const groups = panels.map((panel) => element("tbody", {},
    element("tr", { className: "group" }, element("th", { colSpan: head.length, scope: "rowgroup" }, panelTitle(panel))),
    ...panel.rows.map((row) => armLine(row, metric, select))));
  const table = element("table", {}, element("thead", {}, titles), ...groups);
  byId("arms").replaceChildren(panels.length ? table : element("p", { className: "soft" }, "No arm is chosen."));
}

function armLine(row, metric, select) {
  const button = element("button", { type: "button", className: "arm", "data-arm": rowKey(row), "aria-current": rowKey(row) === state.arm ? "true" : null }, swatch(row.method), row.label);
  button.addEventListener("click", () => select(rowKey(row)));
  const numbers = [
    row.size === null ? DASH : shown(row.size, { kind: "log" }),
    row.ratio === null ? DASH : `${row.ratio.toFixed(2)}x`,
    row.values[metric.key] ? shownWithInterval(row.values[metric.key], metric) : DASH,
    String(row.n ?? DASH),
    String(row.clusters ?? DASH),
  ];
  return element("tr", { className: row.gated ? "gated" : "" }, element("td", {}, button), ...numbers.map((text) => element("td", { className: "number" }, text)));
}

function drawLegend(rows) {
  const methods = DATA.methods.filter((method) => rows.some((row) => row.method === method.id));
  byId("legend").replaceChildren(...methods.map((method) => element("li", {}, swatch(method.id), method.label)));
}
