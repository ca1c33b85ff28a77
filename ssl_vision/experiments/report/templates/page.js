"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, at = document) => [...at.querySelectorAll(selector)];
  const one = (selector, at = document) => at.querySelector(selector);
  const read = (at, name) => JSON.parse(one(`script.${name}`, at).textContent);
  const drawn = new Set();

  const unpacked = async () => {
    const bytes = Uint8Array.from(atob(one("#plotly").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    return window.Plotly;
  };

  // Charts use the colours of the page.
  const shade = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const themed = (layout) => {
    const axis = { gridcolor: shade("--line"), linecolor: shade("--line"), zerolinecolor: shade("--line") };
    const colours = {
      font: { color: shade("--soft"), family: getComputedStyle(document.body).fontFamily, size: 12 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: shade("--soft"), activecolor: shade("--accent") },
      hoverlabel: { bgcolor: shade("--paper"), bordercolor: shade("--line"), font: { color: shade("--ink") } },
    };
    for (const name of ["xaxis", "yaxis"]) colours[name] = { ...layout[name], ...axis };
    return colours;
  };
  // Colours of traces such as "var(--c0)" are looked up, as Plotly does not know the variables of the page.
  const paint = (colour) => (/^var\(.*\)$/.test(colour) ? shade(colour.slice(4, -1)) : colour);
  const plotted = async (plot, traces, layout, options) => {
    plot.colours = ["line", "marker"].map((part) => traces.map((trace) => trace[part]?.color));
    for (const part of ["line", "marker"])
      for (const trace of traces) if (trace[part]?.color) trace[part].color = paint(trace[part].color);
    await window.Plotly.newPlot(plot, traces, whole(layout), options);
    drawn.add(plot);
  };
  const whole = (layout) => {
    const merged = {
      autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
      margin: { l: 52, r: 16, t: 12, b: 44 }, hovermode: "closest", dragmode: coarse ? false : "zoom",
      ...layout, ...themed(layout),
    };
    for (const name of ["xaxis", "yaxis"]) Object.assign(merged[name], { automargin: true, zeroline: false });
    return merged;
  };
  const coarse = matchMedia("(pointer: coarse)").matches;
  const settings = {
    responsive: true, displaylogo: false, showTips: false,
    displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
    modeBarButtonsToRemove: ["lasso2d", "select2d", "zoomIn2d", "zoomOut2d"],
  };
  const recolour = () => {
    const dark = root.dataset.theme === "dark" ||
      (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
    one("#theme").textContent = dark ? "Light" : "Dark";
    one("#theme").setAttribute("aria-label", dark ? "Light colours" : "Dark colours");
    one("#theme").value = dark ? "light" : "dark";
    for (const plot of drawn) {
      window.Plotly.relayout(plot, themed(plot.layout));
      const [lines, markers] = plot.colours.map((colours) => colours.map(paint));
      window.Plotly.restyle(plot, { "line.color": lines, "marker.color": markers });
      const written = plot.data.flatMap((trace, i) => (trace.texttemplate ? [i] : []));
      if (written.length) window.Plotly.restyle(plot, { "textfont.color": shade("--ink") }, written);
    }
  };
  one("#theme").addEventListener("click", (event) => {
    root.dataset.theme = event.target.value;
    recolour();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  recolour();

  // Charts are drawn when they come near the viewport; checkboxes of their section show and hide lines.
  const switchedOff = (at) => {
    const boxes = all(".switches:not(.layouts):not(.classes) input", at.closest("section"));
    return new Set(boxes.filter((box) => !box.checked).map((box) => box.value));
  };
  const chart = async (figure) => {
    const { traces, layout } = read(figure, "figure");
    const off = switchedOff(figure);
    const plot = one(".plot", figure);
    for (const trace of traces) {
      trace.visible = !off.has(trace.meta);
      if (trace.texttemplate) trace.textfont = { color: shade("--ink") };
      if (trace.colorbar) trace.showscale = plot.clientWidth > 520;
    }
    await plotted(plot, traces, layout, settings);
  };
  for (const group of all(".switches:not(.layouts):not(.classes)")) {
    group.addEventListener("change", () => {
      const off = switchedOff(group);
      for (const plot of all(".chart .plot", group.closest("section")))
        if (drawn.has(plot))
          window.Plotly.restyle(plot, { visible: plot.data.map((trace) => !off.has(trace.meta)) });
    });
  }

  // The map of images.
  const map = async (frame) => {
    const data = read(frame, "points");
    const plot = one(".plot", frame), tip = one(".tip", frame), panel = one(".panel", frame);
    const of = data.names.map((_, k) => data.classes.flatMap((own, i) => (own === k ? [i] : [])));
    const boxes = all(".classes label", frame);
    let layout = one(".layouts input:checked", frame).value, chosen = -1;
    const on = (k) => one("input", boxes[k]).checked;
    const at = (i) => data.layouts[layout].map((axis) => axis[i]);
    const traces = of.map((rows, k) => ({
      x: rows.map((i) => at(i)[0]), y: rows.map((i) => at(i)[1]), customdata: rows, mode: "markers",
      name: data.names[k], hoverinfo: "none",
      marker: { color: data.colours[k], symbol: data.symbols[k], size: data.classes.length > 800 ? 6 : 8, opacity: 0.8 },
    }));
    const ring = {
      x: [], y: [], mode: "markers", hoverinfo: "skip",
      marker: { symbol: "circle-open", size: 18, color: "var(--ink)", line: { width: 2.5 } },
    };
    const bare = { showgrid: false, showline: false, ticks: "", showticklabels: false };
    const drawing = { xaxis: { ...bare }, yaxis: { ...bare }, margin: { l: 8, r: 8, t: 8, b: 8 }, hoverdistance: 24, dragmode: coarse ? false : "pan" };
    await plotted(plot, [...traces, ring], drawing, { ...settings, scrollZoom: false });

    const image = (tile, i) => {
      tile.style.setProperty("--column", i % COLUMNS);
      tile.style.setProperty("--row", Math.floor(i / COLUMNS));
      return tile;
    };
    const COLUMNS = Number(getComputedStyle(one(".tip .tile", frame)).getPropertyValue("--columns"));
    const element = (tag, name, content = "") => Object.assign(document.createElement(tag), { className: name, textContent: content });
    const tile = (i, classes = "") => {
      const span = image(element("span", `tile image ${classes}`), i);
      span.setAttribute("role", "img");
      span.setAttribute("aria-label", `image ${data.rows[i]}, ${data.names[data.classes[i]]}`);
      span.title = span.getAttribute("aria-label");
      return span;
    };
    const show = (i) => {
      chosen = i;
      const [x, y] = at(i), axes = plot._fullLayout;
      const own = data.names[data.classes[i]];
      window.Plotly.restyle(plot, { x: [[x]], y: [[y]] }, [of.length]);
      image(one(".tile", tip), i);
      one(".words", tip).textContent = own;
      tip.hidden = false;
      const left = axes.xaxis._offset + axes.xaxis.d2p(x), top = axes.yaxis._offset + axes.yaxis.d2p(y);
      const width = tip.offsetWidth, height = tip.offsetHeight;
      tip.style.left = `${left + 18 + width > plot.clientWidth ? Math.max(0, left - 18 - width) : left + 18}px`;
      tip.style.top = `${Math.min(Math.max(0, top - height / 2), plot.clientHeight - height)}px`;
      const words = element("div", "words");
      words.append(element("p", "", `image ${data.rows[i]}: ${own}`));
      if (data.predicted && own !== "no label") {
        const right = data.predicted[i] === own;
        words.append(element("p", right ? "right" : "wrong", `${right ? "✓" : "✗"} kNN: ${data.predicted[i]}`));
      }
      words.append(element("p", "", "Nearest images on this map:"));
      const near = element("div", "near");
      near.append(...data.near[i].map((j) => tile(j, data.classes[j] === data.classes[i] ? "same" : "other")));
      words.append(near);
      panel.replaceChildren(tile(i, "chosen"), words);
    };
    const hide = () => { tip.hidden = true; };
    for (const kind of ["plotly_hover", "plotly_click"])
      plot.on(kind, (event) => {
        const point = event.points.find((candidate) => candidate.curveNumber < of.length);
        if (point) show(point.customdata);
      });
    plot.on("plotly_unhover", hide);
    plot.on("plotly_relayouting", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const towards = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (event.key === "Escape") hide();
      if (!towards) return;
      event.preventDefault();
      const seen = data.classes.flatMap((k, i) => (on(k) ? [i] : []));
      if (!seen.length) return;
      if (chosen < 0 || !on(data.classes[chosen])) return show(seen[0]);
      const [x, y] = at(chosen), { xaxis, yaxis } = plot._fullLayout;
      let best = -1, least = Infinity;
      for (const i of seen) {
        const dx = xaxis.d2p(at(i)[0]) - xaxis.d2p(x), dy = yaxis.d2p(y) - yaxis.d2p(at(i)[1]);
        const along = dx * towards[0] + dy * towards[1], across = Math.abs(dx * towards[1]) + Math.abs(dy * towards[0]);
        if (along > 0 && along + 2 * across < least) [least, best] = [along + 2 * across, i];
      }
      if (best >= 0) show(best);
    });

    const restyle = () => {
      window.Plotly.restyle(plot, { visible: of.map((_, k) => on(k)) }, of.map((_, k) => k));
      if (chosen >= 0 && !on(data.classes[chosen])) {
        hide();
        window.Plotly.restyle(plot, { x: [[]], y: [[]] }, [of.length]);
      }
    };
    one(".boxes", frame).addEventListener("change", restyle);
    for (const button of all(".every button", frame))
      button.addEventListener("click", () => {
        for (const label of boxes) if (!label.hidden) one("input", label).checked = button.value === "all";
        restyle();
      });
    one(".search", frame)?.addEventListener("input", (event) => {
      const wanted = event.target.value.toLowerCase();
      for (const label of boxes) label.style.display = (label.hidden = !label.textContent.toLowerCase().includes(wanted)) ? "none" : "";
    });
    one(".layouts", frame).addEventListener("change", (event) => {
      layout = event.target.value;
      hide();
      window.Plotly.restyle(
        plot, { x: of.map((rows) => rows.map((i) => at(i)[0])), y: of.map((rows) => rows.map((i) => at(i)[1])) },
        of.map((_, k) => k),
      );
      const [x, y] = chosen < 0 ? [[], []] : at(chosen).map((value) => [value]);
      window.Plotly.restyle(plot, { x: [x], y: [y] }, [of.length]);
      window.Plotly.relayout(plot, { "xaxis.autorange": true, "yaxis.autorange": true });
    });
  };

  unpacked().then(() => {
    const draw = (at) => (at.matches(".map") ? map(at) : chart(at));
    const watcher = new IntersectionObserver((entries) => {
      for (const entry of entries)
        if (entry.isIntersecting) {
          watcher.unobserve(entry.target);
          draw(entry.target);
        }
    }, { rootMargin: "600px" });
    for (const at of all(".chart, .map")) watcher.observe(at);
    addEventListener("beforeprint", () => {
      for (const at of all(".chart, .map")) if (!drawn.has(one(".plot", at))) { watcher.unobserve(at); draw(at); }
    });
    root.dataset.ready = performance.now().toFixed();
  });
})();
