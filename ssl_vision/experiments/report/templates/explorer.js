
// Weights of negatives by temperature and objective, computed from the embeddings in the page.

// Value of a table at x, linear between its knots.
const interpolated = ({ knots, values }, x) => {
  let low = 0, high = knots.length - 1;
  if (x <= knots[low]) return values[low];
  if (x >= knots[high]) return values[high];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (knots[middle] <= x) low = middle;
    else high = middle;
  }
  return values[low] + ((values[high] - values[low]) * (x - knots[low])) / (knots[high] - knots[low]);
};

// A batch of 2N embeddings, those of view 1 first; the negatives of one are all but the two of its image.
class Batch {
  constructor(rows, width) {
    Object.assign(this, { rows, width, count: rows.length / width, half: rows.length / width / 2, known: new Map() });
    const { count, half } = this, cosines = (this.cosines = new Float64Array(count * count));
    for (let i = 0; i < count; i++) {
      const row = this.row(i), norm = Math.hypot(...row) || 1;
      for (let k = 0; k < width; k++) row[k] /= norm;
      for (let j = 0; j <= i; j++) cosines[i * count + j] = cosines[j * count + i] = this.dot(i, j);
    }
    this.positives = Float64Array.from({ length: count }, (_, i) => cosines[i * count + ((i + half) % count)]);
  }
  row(i) { return this.rows.subarray(i * this.width, (i + 1) * this.width); }
  dot(i, j) {
    let sum = 0;
    for (let k = 0, a = i * this.width, b = j * this.width; k < this.width; k++) sum += this.rows[a + k] * this.rows[b + k];
    return sum;
  }
  // Logit margins of all anchors.
  margins(tau) {
    const { known, count, half, cosines, positives } = this;
    if (known.has(tau)) return known.get(tau);
    const sums = new Float64Array(count);
    for (let i = 0; i < count; i++)
      for (let j = 0; j < i; j++)
        if (i - j !== half) {
          const e = Math.exp((cosines[i * count + j] - 1) / tau);
          sums[i] += e;
          sums[j] += e;
        }
    known.set(tau, sums.map((sum, i) => Math.log(sum) + (1 - positives[i]) / tau));
    return known.get(tau);
  }
  // Margins and gradient weights of all anchors, shares of the negatives in the push on one, and the forces on it along the sphere.
  weigh(objective, tau, anchor) {
    const { count, half, width, rows, positives } = this, margins = this.margins(tau);
    const of = { margin: objective.at ? this.margins(objective.at) : margins, positive: positives }[objective.of];
    const weights = of.map((x) => interpolated(objective, x)), own = (anchor + half) % count;
    const similarities = this.cosines.subarray(anchor * count, (anchor + 1) * count), mean = new Float64Array(width);
    const shares = similarities.map((s, j) => (j % half === anchor % half ? 0 : Math.exp((s - positives[anchor]) / tau - margins[anchor])));
    for (let j = 0; j < count; j++) for (let k = 0; k < width; k++) mean[k] += shares[j] * rows[j * width + k];
    const length = (force) => {
      const along = force.reduce((sum, value, k) => sum + value * rows[anchor * width + k], 0);
      return (weights[anchor] / tau) * Math.hypot(...force.map((value, k) => value - along * rows[anchor * width + k]));
    };
    const positive = this.row(own), push = length(mean), pull = length(positive), net = length(positive.map((x, k) => x - mean[k]));
    return { margins, weights, similarities, shares, push, pull, net };
  }
}

// Squarified treemap: cells in the order of their areas, in rows whose cells are as square as possible.
const treemap = (shares, width, height) => {
  const order = [...shares.keys()].sort((a, b) => shares[b] - shares[a]), areas = order.map((i) => shares[i] * width * height);
  const cells = [];
  let x = 0, y = 0, w = width, h = height;
  for (let first = 0, end; first < order.length && areas[first] > 0.01; first = end) {
    const side = Math.min(w, h);
    let sum = 0, best = Infinity;
    for (end = first; end < order.length; end++) {
      const next = sum + areas[end], worst = Math.max((side ** 2 * areas[first]) / next ** 2, next ** 2 / (side ** 2 * areas[end]));
      if (worst > best) break;
      [sum, best] = [next, worst];
    }
    const depth = sum / side;
    for (let k = first, along = 0; k < end; along += areas[k++] / depth)
      cells.push(w < h ? [order[k], x + along, y, areas[k] / depth, depth] : [order[k], x, y + along, depth, areas[k] / depth]);
    if (w < h) [y, h] = [y + depth, h - depth];
    else [x, w] = [x + depth, w - depth];
  }
  return cells;
};

const short = (x) => (x === 0 ? "0" : Math.abs(x) < 0.001 || Math.abs(x) >= 1e5 ? x.toExponential(1) : x.toPrecision(3)).replace("-", "−");
const percent = (x) => `${x >= 0.0995 ? (100 * x).toFixed(0) : x >= 0.00095 ? (100 * x).toFixed(1) : x > 0 ? "< 0.1" : "0"} %`;
const sigmoid = (d) => 1 / (1 + Math.exp(-d));

const explorer = async (frame) => {
  const data = read(frame, "batch"), { places, labels, objectives } = data, half = places.length;
  const integers = new Int16Array(Uint8Array.from(atob(data.embeddings), (c) => c.charCodeAt(0)).buffer);
  const batch = new Batch(Float64Array.from(integers), data.width), state = { anchor: 0 };
  const slider = one("input", frame), select = one("select", frame), canvas = one("canvas", frame);
  const name = (i) => `image ${data.rows[i]}${labels[i] < 0 ? "" : `, class ${data.names[labels[i]]}`}`;
  const alike = (j) => labels[j] >= 0 && labels[j] === labels[state.anchor];
  const text = (selector, content) => { one(selector, frame).textContent = content; };
  const sprite = new Image(), style = getComputedStyle(one(".tile", frame));
  sprite.src = style.backgroundImage.slice(5, -2);
  await sprite.decode();
  const columns = Number(style.getPropertyValue("--columns"));
  const side = { x: sprite.naturalWidth / columns, y: sprite.naturalHeight / style.getPropertyValue("--rows") };
  const pair = all(".explorer", frame.parentElement);
  let result, cells, pending;

  // The treemap of the images' shares of the push; cells are (image, x, y, width, height) in CSS pixels.
  const paint = () => {
    const context = canvas.getContext("2d"), { clientWidth: width, clientHeight: height } = canvas;
    Object.assign(canvas, { width: width * devicePixelRatio, height: height * devicePixelRatio });
    context.scale(devicePixelRatio, devicePixelRatio);
    context.imageSmoothingEnabled = side.x > 16;
    context.strokeStyle = colour("var(--bad)");
    cells = treemap(result.byImage, width, height);
    for (const [i, x, y, w, h] of cells) {
      const gap = Math.min(w, h) > 8 ? 1 : 0, zoom = Math.max((w - gap) / side.x, (h - gap) / side.y);
      const sx = (w - gap) / zoom, sy = (h - gap) / zoom, column = places[i] % columns, row = Math.floor(places[i] / columns);
      context.drawImage(sprite, column * side.x + (side.x - sx) / 2, row * side.y + (side.y - sy) / 2, sx, sy, x, y, w - gap, h - gap);
      context.lineWidth = Math.min(4, Math.min(w, h) / 7);
      if (alike(i)) context.strokeRect(x + context.lineWidth / 2, y + context.lineWidth / 2, w - gap - context.lineWidth, h - gap - context.lineWidth);
    }
  };

  // Images as buttons that choose them as anchor.
  const list = (at, entries) =>
    at.replaceChildren(...entries.map(([j, shares]) => {
      const button = Object.assign(document.createElement("button"), { value: j, onclick: () => choose(j) });
      button.append(tile(places[j], name(j), alike(j) ? "other" : ""), ...shares.map((share) => words(percent(share))));
      return button;
    }));

  const tell = () => {
    const { margins, weights, shares, byImage } = result, { anchor, tau } = state, objective = objectives[state.name];
    let needed = 0;
    [...shares].sort((a, b) => b - a).reduce((sum, share) => (sum < 0.5 && needed++, sum + share), 0);
    const own = shares.reduce((sum, share, j) => sum + (alike(j % half) ? share : 0), 0);
    text(".sentence", `At τ = ${short(tau)}, ${needed.toLocaleString("en")} of the ${(2 * half - 2).toLocaleString("en")} negatives of this image exert half of the push on it.` +
      (labels[anchor] < 0 ? "" : ` Images of its own class exert ${percent(own)} of the whole push.`));
    [select.value, slider.value] = [state.name, Math.log10(tau)];
    text("output", short(tau));
    const rule = `${state.name} weights the gradient of an anchor by ${objective.says}. Its τ is ${short(objective.temperature)} for these images.`;
    one(".anchor", frame).replaceChildren(tile(places[anchor], name(anchor), "chosen"), words(name(anchor), "who"), words(rule, "note"));
    const facts = { margin: margins[anchor], difficulty: sigmoid(margins[anchor]), weight: weights[anchor], pull: result.pull, push: result.push, net: result.net };
    for (const [key, value] of Object.entries(facts)) text(`[data-fact=${key}]`, short(value));
    list(one(".weighed", frame), [...byImage.keys()].sort((a, b) => byImage[b] - byImage[a]).slice(0, 10).map((j) => [j, [byImage[j]]]));
  };

  const plot = () => {
    const { margins, weights, similarities, shares } = result, { anchor, tau } = state, difficulty = [...margins].map(sigmoid);
    const negatives = [...shares.keys()].filter((j) => j % half !== anchor), cosines = negatives.map((j) => similarities[j]);
    const histogram = (x, size, color, options) =>
      ({ type: "histogram", x, xbins: { start: -1, end: 1e3, size }, marker: { color }, hoverinfo: "skip", opacity: 0.5, ...options });
    const drawn = (selector, traces, axis, x, label, color) => {
      const mark = { type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { color, width: 2 }, label: { text: label, textangle: 0, textposition: "end" } };
      draw(one(selector, frame), traces, {
        barmode: "overlay", bargap: 0, margin: { t: 24 }, xaxis: axis, shapes: [mark],
        yaxis: { visible: false }, yaxis2: { visible: false, overlaying: "y" },
      });
    };
    const pushes = histogram(cosines, 0.04, "var(--accent)", { y: negatives.map((j) => shares[j]), histfunc: "sum", yaxis: "y2" });
    drawn(".density", [histogram(cosines, 0.04, "var(--soft)"), pushes], { title: { text: "cosine with the anchor" }, range: [-1, 1.25] }, batch.positives[anchor], "positive", "var(--good)");
    const size = Math.max(1, ...weights) / 50;
    const both = [histogram(difficulty, size, "var(--soft)"), histogram([...weights], size, "var(--accent)")];
    drawn(".spread", both, { title: { text: "weight of an anchor" }, range: [0, 51 * size] }, difficulty[anchor], "W", "var(--bad)");
    if (!data.here) return;
    const { steps } = objectives[state.name], [x, y] = data.here;
    const [u, v] = steps.map((values) => interpolated({ knots: data.logarithms, values }, Math.log10(tau)));
    const taus = data.logarithms.map((power) => (Number.isInteger(power) ? `${10 ** power}` : ""));
    const path = { x: steps[0], y: steps[1], text: taus, mode: "lines+text", textposition: "top center", cliponaxis: false, line: { color: "var(--soft)", dash: "dot", width: 1 } };
    const arrow = { x: [x, u], y: [y, v], mode: "lines+markers", line: { color: "var(--accent)" }, marker: { symbol: "arrow", angleref: "previous", size: 14 } };
    const point = { x: [x], y: [y], mode: "markers", marker: { color: "var(--bad)", size: 9 } };
    draw(one(".plane", frame), [path, arrow, point], { xaxis: { title: { text: "uniformity" } }, yaxis: { title: { text: "tolerance" } } });
  };

  // Two runs side by side: the images whose shares differ most, largest difference first.
  const compare = () => {
    const shares = pair.map((each) => each.explorer?.result.byImage);
    if (!shares.every(Boolean)) return;
    all(".differences .weighed", frame.closest("section")).forEach((at, k) => {
      const more = (j) => shares[k][j] - shares[1 - k][j];
      const order = [...shares[k].keys()].sort((a, b) => more(b) - more(a)).slice(0, 5).filter((j) => more(j) > 0);
      list(at, order.map((j) => [j, shares.map((each) => each[j])]));
    });
  };

  const change = (name, tau = state.tau, anchor = state.anchor) => {
    Object.assign(state, { name, tau, anchor });
    result = batch.weigh(objectives[name], tau, anchor);
    result.byImage = result.shares.slice(0, half).map((share, i) => share + result.shares[i + half]);
    frame.explorer = { batch, state, data, change, choose, paint, result };
    tell();
    paint();
    compare();
    clearTimeout(pending);
    pending = setTimeout(plot, 100);
  };
  const choose = (anchor) => {
    for (const { explorer } of pair) if (explorer) explorer.change(explorer.state.name, explorer.state.tau, anchor);
  };
  select.append(...Object.keys(objectives).map((key) => new Option(key)));
  select.addEventListener("change", () => change(select.value));
  slider.addEventListener("input", () => change(state.name, 10 ** slider.value));
  canvas.addEventListener("click", ({ offsetX, offsetY }) => {
    const cell = cells.find(([, x, y, w, h]) => offsetX >= x && offsetX < x + w && offsetY >= y && offsetY < y + h);
    if (cell) choose(cell[0]);
  });
  onArrowKeys(canvas, (step) => choose((state.anchor + step + half) % half));
  change(data.chosen, objectives[data.chosen].temperature, pair[0].explorer?.state.anchor);
  new ResizeObserver(paint).observe(canvas);
};
