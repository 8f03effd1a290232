"use strict";
// What every part of the page uses: the data, elements made without HTML, and the theme.
const DATA = JSON.parse(document.getElementById("data").textContent);
const METHODS = new Map(DATA.methods.map((method) => [method.id, method]));
const LABELS = new Map(["models", "modes", "budgets", "quantizers", "protections"].flatMap((kind) => DATA[kind].map((item) => [`${kind}/${item.id}`, item.label])));
const DASH = "–";

const byId = (id) => document.getElementById(id);
const labelOf = (kind, id) => LABELS.get(`${kind}/${id}`) ?? id;

// Children are elements or strings; strings become text nodes, so data is never read as HTML.
function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (key in node && key !== "style" && typeof value !== "string") node[key] = value;
    else node.setAttribute(key === "className" ? "class" : key, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function options(select, items, chosen) {
  select.replaceChildren(...items.map((item) => element("option", { value: String(item.id) }, item.label)));
  select.value = String(items.some((item) => String(item.id) === String(chosen)) ? chosen : items[0]?.id ?? "");
}

const dark = () => document.documentElement.dataset.theme === "dark";
const inkOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const colorOf = (method) => METHODS.get(method)[dark() ? "dark" : "light"];

function stored(value) {
  // A page opened from disk or inside a frame may have no storage; the theme then lasts as long as the page.
  try {
    if (value !== undefined) localStorage.setItem("kvatlas-theme", value);
    return localStorage.getItem("kvatlas-theme");
  } catch {
    return null;
  }
}

function startTheme(redraw) {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = stored();
  const apply = () => {
    const theme = chosen ?? (system.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    byId("theme").textContent = theme === "dark" ? "Light theme" : "Dark theme";
  };
  byId("theme").addEventListener("click", () => {
    chosen = dark() ? "light" : "dark";
    stored(chosen);
    apply();
    redraw();
  });
  system.addEventListener("change", () => { apply(); redraw(); });
  apply();
}

// Markers as polygons in a box from -1 to 1, the shapes that the charts use.
const corners = (count, turn, inner) => Array.from({ length: inner ? 2 * count : count }, (_, index) => {
  const angle = turn + (index * 2 * Math.PI) / (inner ? 2 * count : count);
  const radius = inner && index % 2 ? inner : 1;
  return [radius * Math.sin(angle), -radius * Math.cos(angle)];
});
const PLUS = [[-0.35, -1], [0.35, -1], [0.35, -0.35], [1, -0.35], [1, 0.35], [0.35, 0.35], [0.35, 1], [-0.35, 1], [-0.35, 0.35], [-1, 0.35], [-1, -0.35], [-0.35, -0.35]];
const SHAPES = {
  "circle": corners(24, 0),
  "square": [[-0.85, -0.85], [0.85, -0.85], [0.85, 0.85], [-0.85, 0.85]],
  "diamond": corners(4, 0),
  "diamond-tall": [[0, -1.1], [0.65, 0], [0, 1.1], [-0.65, 0]],
  "triangle-up": corners(3, 0),
  "triangle-down": corners(3, Math.PI),
  "triangle-left": corners(3, -Math.PI / 2),
  "triangle-right": corners(3, Math.PI / 2),
  "cross": PLUS,
  "x": PLUS.map(([x, y]) => [(x - y) * 0.75, (x + y) * 0.75]),
  "pentagon": corners(5, 0),
  "hexagon": corners(6, 0),
  "hexagon2": corners(6, Math.PI / 6),
  "star": corners(5, 0, 0.45),
};

function swatch(method) {
  const look = METHODS.get(method);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const shape = document.createElementNS("http://www.w3.org/2000/svg", "polygon");
  svg.setAttribute("viewBox", "-9 -7 18 14");
  svg.setAttribute("class", "swatch");
  svg.setAttribute("aria-hidden", "true");
  const points = SHAPES[look.symbol.replace("-open", "")].map(([x, y]) => `${(5 * x).toFixed(2)},${(5 * y).toFixed(2)}`);
  shape.setAttribute("points", points.join(" "));
  shape.setAttribute("stroke", colorOf(method));
  shape.setAttribute("stroke-width", "1.4");
  shape.setAttribute("fill", look.symbol.endsWith("-open") ? "none" : colorOf(method));
  svg.append(shape);
  return svg;
}

function shown(value, metric) {
  if (value === null || value === undefined) return DASH;
  if (metric.kind === "share") return `${(100 * value).toFixed(1)}%`;
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 3).replace("-", "−");
}

function shownWithInterval([value, low, high], metric) {
  const bounds = low === null || high === null ? "" : ` (${shown(low, metric)} to ${shown(high, metric)})`;
  return shown(value, metric) + bounds;
}
