"use strict";
const all = (selector, at = document) => [...at.querySelectorAll(selector)];
const one = (selector, at = document) => at.querySelector(selector);
const read = (at, name) => JSON.parse(one(`script.${name}`, at).textContent);

// Plotly and canvases do not know the variables of the page's CSS.
const probe = document.body.appendChild(document.createElement("i"));
const colour = (value) => {
  probe.style.color = value;
  return getComputedStyle(probe).color;
};
const touch = matchMedia("(hover: none)").matches;
const line = { gridcolor: "var(--line)", linecolor: "var(--line)", automargin: true, zeroline: false };
const template = {
  layout: {
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", showlegend: false, margin: { l: 52, r: 16, t: 12, b: 44 },
    hovermode: "closest", dragmode: touch ? false : "zoom", xaxis: line, yaxis: line,
    font: { color: "var(--soft)", family: getComputedStyle(document.body).fontFamily, size: 12 },
    modebar: { bgcolor: "transparent", color: "var(--soft)", activecolor: "var(--accent)" },
    hoverlabel: { bgcolor: "var(--paper)", bordercolor: "var(--line)", font: { color: "var(--ink)" } },
  },
};
const settings = { responsive: true, displaylogo: false, showTips: false, displayModeBar: touch ? false : "hover" };
// Draws a chart in the colours of the page; drawn again, it keeps its zoom and its hidden traces.
const draw = (plot, traces, layout) => {
  plot.figure = [traces, layout];
  const figure = JSON.stringify([traces, { template, uirevision: "same", ...layout }]);
  return Plotly.react(plot, ...JSON.parse(figure, (_, value) => (/^var\(/.test(value) ? colour(value) : value)), settings);
};
const redraw = (at) => all(".plot", at).filter((plot) => plot.figure).forEach((plot) => draw(plot, ...plot.figure));

const system = matchMedia("(prefers-color-scheme: dark)");
const recolour = () => {
  redraw(document);
  for (const frame of all(".explorer")) frame.explorer?.paint();
};
one("#theme").addEventListener("click", () => {
  const { style } = document.documentElement;
  style.colorScheme = (style.colorScheme || (system.matches ? "dark" : "light")) === "dark" ? "light" : "dark";
  recolour();
});
system.addEventListener("change", recolour);

// The checkboxes of a section show and hide the traces of its charts by their "meta".
for (const group of all(".switches"))
  group.addEventListener("change", () => {
    const section = group.closest("section"), off = all("input:not(:checked)", group).map((box) => box.value);
    for (const { figure } of all(".plot", section)) for (const trace of figure?.[0] ?? []) trace.visible = !off.includes(trace.meta);
    redraw(section);
  });

const tile = (place, about, classes = "") => {
  const span = Object.assign(document.createElement("span"), { className: `tile image ${classes}`, role: "img", title: about, ariaLabel: about });
  span.style.setProperty("--place", place);
  return span;
};
const words = (text, className = "") => Object.assign(document.createElement("p"), { textContent: text, className });
const onArrowKeys = (at, move) =>
  at.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    move(step);
  });

const chart = (figure) => {
  const { traces, layout } = read(figure, "figure");
  return draw(one(".plot", figure), traces, layout);
};

const map = async (frame) => {
  const data = read(frame, "points"), plot = one(".plot", frame), count = data.rows.length;
  const layout = {
    xaxis: { visible: false }, yaxis: { visible: false }, margin: { l: 8, r: 8, t: 8, b: 8 }, hoverdistance: 24,
    showlegend: true, legend: { orientation: "h", y: 0, yanchor: "top", itemsizing: "constant" },
  };
  const ring = { symbol: "circle-open", size: 18, color: "var(--ink)", line: { width: 2.5 } };
  let chosen = -1;
  const position = (rows) => data.layouts[one("input:checked", frame).value].map((axis) => rows.map((i) => axis[i]));
  const place = () => {
    const groups = data.names.map((_, k) => data.classes.flatMap((own, i) => (own === k ? [i] : [])));
    const traces = [...groups, chosen < 0 ? [] : [chosen]].map((rows, k) => {
      const [x, y] = position(rows), marker = { color: data.colours[k], symbol: data.symbols[k], size: count > 800 ? 6 : 8, opacity: 0.8 };
      return k < groups.length ? { x, y, customdata: rows, mode: "markers", name: data.names[k], hoverinfo: "name", marker }
        : { x, y, mode: "markers", hoverinfo: "skip", showlegend: false, marker: ring };
    });
    return draw(plot, traces, layout);
  };
  const name = (i) => `image ${data.rows[i]}, ${data.names[data.classes[i]]}`;
  const show = (i) => {
    const own = data.names[data.classes[i]], vote = data.predicted?.[i], near = words("", "near");
    near.append(...data.near[i].map((j) => tile(j, name(j), data.classes[j] === data.classes[i] ? "same" : "other")));
    const knn = vote && own !== "no label" ? [words(`${vote === own ? "✓" : "✗"} kNN: ${vote}`)] : [];
    one(".panel", frame).replaceChildren(tile(i, name(i)), words(name(i)), ...knn, words("Nearest images on this map:"), near);
    chosen = i;
    const [x, y] = position([i]);
    Object.assign(plot.figure[0].at(-1), { x, y });
    Plotly.restyle(plot, { x: [x], y: [y] }, [data.names.length]);
  };
  await place();
  for (const kind of ["plotly_hover", "plotly_click"]) plot.on(kind, ({ points }) => show(points[0].customdata));
  onArrowKeys(plot, (step) => show((chosen + step + count) % count));
  one(".layouts", frame).addEventListener("change", place);
};

(async () => {
  const bytes = Uint8Array.from(atob(one("#plotly").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  document.head.append(Object.assign(document.createElement("script"), { textContent: await new Response(stream).text() }));
  document.documentElement.dataset.ready = performance.now().toFixed();
  for (const at of all(".chart, .map, .explorer")) {
    await new Promise(requestAnimationFrame);
    await (at.matches(".map") ? map : at.matches(".chart") ? chart : explorer)(at);
  }
})();
