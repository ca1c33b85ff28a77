"use strict";
// Weights of negatives by temperature and objective. All numbers are computed from the embeddings in the page.
(() => {
  const all = (selector, at = document) => [...at.querySelectorAll(selector)];
  const one = (selector, at = document) => at.querySelector(selector);

  // exp(x) for x <= 0 to 12 digits: a table in steps of 1/16 and a short series between them.
  const TABLE = Float64Array.from({ length: 16 * 746 }, (_, q) => Math.exp(-q / 16));
  const exp = (x) => {
    const q = Math.round(-16 * x);
    if (q >= TABLE.length) return 0;
    const r = x + q / 16;
    return TABLE[q] * (1 + r * (1 + (r / 2) * (1 + (r / 3) * (1 + (r / 4) * (1 + r / 5)))));
  };
  const sigmoid = (d) => (d < 0 ? Math.exp(d) / (1 + Math.exp(d)) : 1 / (1 + Math.exp(-d)));
  const dot = (u, i, v, j, width) => {
    let sum = 0;
    for (let k = 0, a = i * width, b = j * width; k < width; k++) sum += u[a + k] * v[b + k];
    return sum;
  };
  const normalised = (rows, width) => {
    for (let at = 0; at < rows.length; at += width) {
      let square = 0;
      for (let k = at; k < at + width; k++) square += rows[k] * rows[k];
      const norm = Math.sqrt(square) || 1;
      for (let k = at; k < at + width; k++) rows[k] /= norm;
    }
    return rows;
  };

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

  // A batch of 2N unit embeddings, those of view 1 first; the negatives of one are all but the two of its image.
  class Batch {
    constructor(rows, width) {
      Object.assign(this, { rows, width, count: rows.length / width, half: rows.length / width / 2 });
      this.cosines = new Float64Array((this.count * (this.count - 1)) / 2);
      this.done = 0;
      this.known = new Map();
    }
    // Cosines of row i with the rows after it begin here; that with j is at start(i) + j.
    start(i) { return i * this.count - (i * (i + 1)) / 2 - i - 1; }
    cosine(i, j) { return i === j ? 1 : i < j ? this.cosines[this.start(i) + j] : this.cosines[this.start(j) + i]; }
    other(i) { return i < this.half ? i + this.half : i - this.half; }
    // Computes cosines for some milliseconds; true once all are known.
    prepare(milliseconds = Infinity) {
      const end = performance.now() + milliseconds, { rows, width, count } = this;
      for (; this.done < count && performance.now() < end; this.done++) {
        const i = this.done, start = this.start(i);
        for (let j = i + 1; j < count; j++) this.cosines[start + j] = dot(rows, i, rows, j, width);
      }
      if (this.done < count) return false;
      this.positives ??= Float64Array.from({ length: count }, (_, i) => this.cosine(i, this.other(i)));
      this.alignment ??= this.positives.reduce((a, b) => a + b) / count;
      return true;
    }
    // Logit margins of all anchors. Those at the temperatures used last are kept, so that an outer temperature is not computed again.
    margins(tau) {
      const { known } = this, margins = known.get(tau) ?? this.computed(tau);
      known.delete(tau);
      known.set(tau, margins);
      if (known.size > 8) known.delete(known.keys().next().value);
      return margins;
    }
    computed(tau) {
      const { count, half, cosines, positives } = this;
      const sums = new Float64Array(count);
      for (let i = 0; i < count; i++) {
        const start = this.start(i), own = i + half;
        let sum = 0;
        for (let j = i + 1; j < count; j++) {
          if (j === own) continue;
          const e = exp((cosines[start + j] - 1) / tau);
          sum += e;
          sums[j] += e;
        }
        sums[i] += sum;
      }
      return sums.map((sum, i) => Math.log(sum) + (1 - positives[i]) / tau);
    }
    // Temperature, margins, and the gradient weights of the anchors under an objective.
    weigh(objective, tau) {
      const margins = this.margins(tau), of = { margin: objective.at ? this.margins(objective.at) : margins, positive: this.positives };
      return { tau, margins, weights: of[objective.of].map((x) => interpolated(objective, x)) };
    }
    // Shares of the negatives in the push on an anchor, and the forces on it along the sphere.
    forces(i, { tau, weights }) {
      const { count, width, rows } = this, own = this.other(i), shares = new Float64Array(count);
      let nearest = -1, total = 0;
      for (let j = 0; j < count; j++) if (j !== i && j !== own) nearest = Math.max(nearest, this.cosine(i, j));
      for (let j = 0; j < count; j++)
        if (j !== i && j !== own) total += shares[j] = Math.exp((this.cosine(i, j) - nearest) / tau);
      const away = new Float64Array(width), towards = new Float64Array(width);
      for (let j = 0; j < count; j++) {
        shares[j] /= total;
        for (let k = 0; k < width; k++) away[k] -= (shares[j] * weights[i] * rows[j * width + k]) / tau;
      }
      for (let k = 0; k < width; k++) towards[k] = (weights[i] * rows[own * width + k]) / tau;
      const tangential = (force) => {
        const along = dot(force, 0, rows, i, width);
        return force.map((value, k) => value - along * rows[i * width + k]);
      };
      const length = (force) => Math.hypot(...force);
      const [out, back] = [away, towards].map(tangential);
      return { shares, push: length(out), pull: length(back), net: length(out.map((x, k) => x + back[k])) };
    }
    // The embeddings after a step of gradient descent of a given root mean square length, or null without a gradient.
    stepped({ tau, margins, weights }, length) {
      const { count, width, rows } = this, moves = new Float64Array(rows.length);
      for (let i = 0; i < count; i++)
        for (let j = i + 1; j < count; j++) {
          const own = j === this.other(i);
          // P_ij = exp(s_ij / τ) / Σ_k exp(s_ik / τ), and the sum is exp(d_i + s⁺_i / τ)
          const part = (a) => weights[a] * Math.exp((this.cosine(i, j) - this.positives[a]) / tau - margins[a]);
          const force = own ? weights[i] + weights[j] : -(part(i) + part(j));
          for (let k = 0; k < width; k++) {
            moves[i * width + k] += force * rows[j * width + k];
            moves[j * width + k] += force * rows[i * width + k];
          }
        }
      let square = 0;
      for (let i = 0; i < count; i++) {
        const along = dot(moves, i, rows, i, width);
        for (let k = i * width; k < (i + 1) * width; k++) square += (moves[k] -= along * rows[k]) ** 2;
      }
      if (!square) return null;
      const scale = length / Math.sqrt(square / count);
      return normalised(rows.map((value, k) => value + scale * moves[k]), width);
    }
  }

  // Uniformity and tolerance of the first n rows.
  const place = (rows, width, labels) => {
    let kernel = 0, same = 0, pairs = 0, labelled = 0;
    for (let i = 0; i < labels.length; i++)
      for (let j = i + 1; j < labels.length; j++) {
        const cosine = dot(rows, i, rows, j, width);
        kernel += Math.exp(4 * (cosine - 1));
        pairs++;
        if (labels[i] < 0 || labels[j] < 0) continue;
        labelled++;
        if (labels[i] === labels[j]) same += cosine;
      }
    return { uniformity: Math.log(kernel / pairs), tolerance: same / labelled };
  };

  // Squarified treemap: cells in the order of their areas, in rows whose cells are as square as possible.
  const treemap = (shares, width, height) => {
    const order = [...shares.keys()].sort((a, b) => shares[b] - shares[a]), all = width * height;
    const areas = order.map((i) => shares[i] * all), cells = [];
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

  const FROM = 0.01, TO = 1, STEP = 0.1, NEAREST = 10, BINS = 50;
  const short = (x) => (x === 0 ? "0" : Math.abs(x) < 0.001 || Math.abs(x) >= 1e5 ? x.toExponential(1) : x.toPrecision(3));
  const percent = (x) => `${x >= 0.0995 ? (100 * x).toFixed(0) : x >= 0.00095 ? (100 * x).toFixed(1) : x > 0 ? "< 0.1" : "0"} %`;
  const svg = (name, attributes, content = "") =>
    `<${name} ${Object.entries(attributes).map(([key, value]) => `${key}="${value}"`).join(" ")}>${content}</${name}>`;

  const explorer = async (frame) => {
    const data = JSON.parse(one("script.batch", frame).textContent);
    const integers = new Int16Array(Uint8Array.from(atob(data.embeddings), (c) => c.charCodeAt(0)).buffer);
    const rows = normalised(Float64Array.from(integers), data.width), half = data.places.length;
    const batch = new Batch(rows, data.width);
    while (!batch.prepare(30)) await new Promise((later) => setTimeout(later));
    const labels = [...data.labels, ...data.labels], known = data.labels.some((label) => label >= 0);
    const few = [...data.sample, ...data.sample.map((i) => i + half)];
    const sample = new Batch(Float64Array.from(few.flatMap((i) => [...rows.subarray(i * data.width, (i + 1) * data.width)])), data.width);
    sample.prepare();
    const sampled = data.sample.map((i) => data.labels[i]), here = place(sample.rows, data.width, sampled);
    const name = (i) => `image ${data.rows[i % half]}${data.labels[i % half] < 0 ? "" : `, class ${data.names[data.labels[i % half]]}`}`;
    const step = (objective, tau) => {
      const moved = sample.stepped(sample.weigh(objective, tau), STEP);
      return moved ? place(moved, data.width, sampled) : here;
    };

    const state = { name: data.chosen, objective: data.objectives[data.chosen], tau: data.objectives[data.chosen].temperature, anchor: 0 };

    const slider = one(".knobs input", frame), canvas = one("canvas", frame), select = one("select", frame);
    const sprite = new Image();
    const tile = one(".tile.image", frame), COLUMNS = Number(getComputedStyle(tile).getPropertyValue("--columns"));
    sprite.src = getComputedStyle(tile).backgroundImage.slice(5, -2);
    const tall = Number(getComputedStyle(tile).getPropertyValue("--rows"));
    await sprite.decode();
    const side = { x: sprite.naturalWidth / COLUMNS, y: sprite.naturalHeight / tall };
    const picture = (at, i) => {
      at.style.setProperty("--column", data.places[i % half] % COLUMNS);
      at.style.setProperty("--row", Math.floor(data.places[i % half] / COLUMNS));
      at.setAttribute("aria-label", name(i));
    };

    // Images as buttons with bars and words; each chooses its image as anchor.
    const list = (at, entries) => {
      while (at.children.length < entries.length) {
        const button = document.createElement("button");
        button.type = "button";
        button.innerHTML = '<span class="tile image" role="img"></span>';
        button.addEventListener("click", () => choose(Number(button.value)));
        at.append(button);
      }
      [...at.children].forEach((button, place) => {
        button.hidden = place >= entries.length;
        if (button.hidden) return;
        const [j, shares, words] = entries[place], image = one(".tile", button);
        button.value = j;
        picture(image, j);
        image.classList.toggle("other", data.labels[j] >= 0 && data.labels[j] === data.labels[state.anchor]);
        button.title = `${name(j)}: ${words.join(" and ")} of the push; choose it as anchor`;
        button.setAttribute("aria-label", button.title);
        while (button.children.length > 1) button.lastChild.remove();
        shares.forEach((share, k) => button.insertAdjacentHTML("beforeend", `<span class="bar"><i style="width:${100 * share}%"></i></span><small>${words[k]}</small>`));
      });
    };

    select.replaceChildren(...Object.keys(data.objectives).map((key) => new Option(key, key, false, key === data.chosen)));
    slider.addEventListener("input", () => { state.tau = FROM * (TO / FROM) ** (slider.value / slider.max); redraw(); });

    // A treemap of the images' shares of the push, largest first; cells are (image, x, y, width, height) in CSS pixels.
    let cells = [];
    const shade = (key) => getComputedStyle(frame).getPropertyValue(key).trim();
    const paint = (shares) => {
      const scale = devicePixelRatio, context = canvas.getContext("2d"), [width, height] = [canvas.clientWidth, canvas.clientHeight];
      if (canvas.width !== Math.round(width * scale)) [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
      context.setTransform(scale, 0, 0, scale, 0, 0);
      context.clearRect(0, 0, width, height);
      context.imageSmoothingEnabled = side.x > 16;
      cells = treemap(shares, width, height);
      const own = known && data.labels[state.anchor] >= 0, bad = shade("--bad");
      for (const [i, x, y, w, h] of cells) {
        const gap = Math.min(w, h) > 8 ? 1 : 0, zoom = Math.max((w - gap) / side.x, (h - gap) / side.y);
        const [sx, sy] = [(w - gap) / zoom, (h - gap) / zoom], cell = data.places[i];
        context.drawImage(
          sprite, (cell % COLUMNS) * side.x + (side.x - sx) / 2, Math.floor(cell / COLUMNS) * side.y + (side.y - sy) / 2, sx, sy,
          x, y, w - gap, h - gap,
        );
        if (!own || data.labels[i] !== data.labels[state.anchor]) continue;
        const line = Math.min(4, Math.min(w, h) / 7);
        context.strokeStyle = bad;
        context.lineWidth = line;
        context.strokeRect(x + line / 2, y + line / 2, w - gap - line, h - gap - line);
      }
    };

    // Small charts, 320 by 150.
    const W = 320, H = 150, L = 10, R = 310, TOP = 14, FLOOR = 122;
    const axis = (ticks, x, title) =>
      svg("line", { class: "axis", x1: L, x2: R, y1: FLOOR, y2: FLOOR }) +
      ticks.map((value) => svg("text", { x: x(value), y: FLOOR + 13, "text-anchor": "middle" }, `${Number(value.toFixed(2))}`.replace("-", "−"))).join("") +
      svg("text", { class: "title", x: (L + R) / 2, y: H - 1, "text-anchor": "middle" }, title);
    const area = (values, most, kind) => {
      const wide = (R - L) / values.length;
      const line = [...values].map((value, k) => `H${(L + k * wide).toFixed(1)}V${(FLOOR - (value / most) * (FLOOR - TOP)).toFixed(1)}H${(L + (k + 1) * wide).toFixed(1)}`);
      return svg("path", { class: kind, d: `M${L} ${FLOOR}${line.join("")}V${FLOOR}Z` });
    };
    const counts = (values, weights, from, to) => {
      const bins = new Float64Array(BINS);
      values.forEach((value, k) => { bins[Math.min(BINS - 1, Math.max(0, Math.floor(((value - from) / (to - from)) * BINS)))] += weights ? weights[k] : 1 / values.length; });
      return bins;
    };
    const put = (key, content, about) => {
      const drawing = one(`.${key} svg`, frame);
      drawing.innerHTML = content;
      drawing.setAttribute("aria-label", about);
    };
    const lowest = Math.floor(5 * batch.cosines.reduce((a, b) => Math.min(a, b), 1)) / 5;

    let result = {};
    const calculate = () => {
      const weighed = batch.weigh(state.objective, state.tau), anchor = batch.forces(state.anchor, weighed);
      const shares = new Float64Array(half);
      anchor.shares.forEach((share, j) => { shares[j % half] += share; });
      const order = [...anchor.shares].map((share, j) => [share, j]).sort((a, b) => b[0] - a[0]);
      let needed = 0, sum = 0;
      while (sum < 0.5 && needed < order.length) sum += order[needed++][0];
      const same = anchor.shares.reduce((total, share, j) => total + (labels[j] >= 0 && labels[j] === labels[state.anchor] ? share : 0), 0);
      result = { ...weighed, anchor, shares, needed, same, here, after: step(state.objective, state.tau) };
    };

    const tell = () => {
      const { tau, margins, weights, anchor, shares, needed, same, after } = result, i = state.anchor;
      one(".knobs output", frame).textContent = short(tau);
      slider.value = (slider.max * Math.log(tau / FROM)) / Math.log(TO / FROM);
      const negatives = batch.count - 2, own = known && data.labels[i] >= 0;
      one(".sentence", frame).textContent =
        `At τ = ${short(tau)}, ${needed.toLocaleString("en")} of the ${negatives.toLocaleString("en")} negatives of this image exert half of the push on it.` +
        (own ? ` Images of its own class exert ${percent(same)} of the whole push.` : "");
      picture(one(".chosen", frame), i);
      one(".who", frame).textContent = name(i);
      const W_i = sigmoid(margins[i]);
      const facts = { margin: margins[i], difficulty: W_i, weight: weights[i], pull: anchor.pull, push: anchor.push, net: anchor.net };
      for (const [key, value] of Object.entries(facts)) one(`[data-fact=${key}]`, frame).textContent = short(value).replace("-", "−");
      one(".rule", frame).textContent = `${state.name} weights the gradient of an anchor by ${state.objective.says}. Its τ is ${short(state.objective.temperature)} for these images.`;
      const near = [...shares.keys()].filter((j) => j !== i).sort((a, b) => shares[b] - shares[a]);
      list(one(".weighed", frame), near.slice(0, NEAREST).map((j) => [j, [shares[j]], [percent(shares[j])]]));
      const cosines = [], part = [];
      anchor.shares.forEach((share, j) => { if (j % half !== i) { cosines.push(batch.cosine(i, j)); part.push(share); } });
      const have = counts(cosines, null, lowest, 1), pushes = counts(cosines, part, lowest, 1);
      const x = (s) => L + ((s - lowest) / (1 - lowest)) * (R - L), mark = x(batch.positives[i]);
      put("density", area(have, Math.max(...have), "grey") + area(pushes, Math.max(...pushes), "blue") +
        svg("line", { class: "own", x1: mark, x2: mark, y1: TOP - 4, y2: FLOOR }) +
        svg("text", { class: "own", x: mark > W / 2 ? mark - 4 : mark + 4, y: TOP + 4, "text-anchor": mark > W / 2 ? "end" : "start" }, "positive") +
        axis([lowest, (lowest + 1) / 2, 1], x, "cosine with the anchor"),
        `Negatives by their cosine with the anchor, from ${lowest} to 1, and where the push comes from`);
      const W_all = margins.map(sigmoid), most = Math.max(1, Math.ceil(weights.reduce((a, b) => Math.max(a, b))));
      const hard = counts(W_all, null, 0, most), weigh = counts(weights, null, 0, most), top = Math.max(...hard, ...weigh);
      const median = W_all.slice().sort()[batch.count >> 1], to = (w) => L + (w / most) * (R - L);
      put("spread", area(hard, top, "grey") + area(weigh, top, "outline") +
        svg("line", { class: "here", x1: to(W_i), x2: to(W_i), y1: TOP - 4, y2: FLOOR }) +
        axis([0, most / 2, most], to, "weight of an anchor"),
        `Histogram of W of all anchors, median ${short(median)}; this anchor ${short(W_i)}`);
      plane(after);
    };

    // The plane: where this batch is, where a step takes it, and faintly where it would at other temperatures.
    let path = [], pending = 0;
    const TAUS = Array.from({ length: 9 }, (_, k) => 0.01 * 10 ** (k / 4));
    const plane = (after) => {
      if (!known) return;
      const points = [here, after, ...path];
      const scaled = (key, low, high) => {
        const values = points.map((point) => point[key]), least = Math.min(...values), range = Math.max(...values) - least || 1;
        return (point) => low + ((point[key] - least) / range) * (high - low);
      };
      const x = scaled("uniformity", L + 20, R - 40), y = scaled("tolerance", FLOOR - 12, TOP + 12);
      const line = path.map((point, k) => `${k ? "L" : "M"}${x(point).toFixed(1)} ${y(point).toFixed(1)}`).join("");
      const ends = path.length ? [[0, "0.01"], [4, "0.1"], [8, "1"]].map(([k, text]) => svg("circle", { class: "path", r: 2.5, cx: x(path[k]), cy: y(path[k]) }) + svg("text", { x: x(path[k]), y: y(path[k]) - 6, "text-anchor": "middle" }, text)).join("") : "";
      const [dx, dy] = [x(after) - x(here), y(after) - y(here)], far = Math.hypot(dx, dy) || 1;
      const head = far > 4 ? svg("path", { class: "head", d: `M${x(after)} ${y(after)}l${-7 * dx / far + 4 * dy / far} ${-7 * dy / far - 4 * dx / far}l${-8 * dy / far} ${8 * dx / far}Z` }) : "";
      put("plane", (line ? svg("path", { class: "path", d: line }) : "") + ends +
        svg("line", { class: "step", x1: x(here), y1: y(here), x2: x(after) - 5 * dx / far, y2: y(after) - 5 * dy / far }) + head +
        svg("circle", { class: "here", r: 4.5, cx: x(here), cy: y(here) }) +
        svg("text", { x: L, y: TOP - 4 }, "tolerance ↑") +
        svg("line", { class: "axis", x1: L, x2: R, y1: FLOOR, y2: FLOOR }) + svg("text", { class: "title", x: R, y: FLOOR + 13, "text-anchor": "end" }, "uniformity →") +
        svg("text", { x: L, y: FLOOR + 13 }, `here: ${here.uniformity.toFixed(3)}, ${here.tolerance.toFixed(4)}`.replace("-", "−")) +
        svg("text", { x: L, y: H - 1 }, `after: ${after.uniformity.toFixed(3)}, ${after.tolerance.toFixed(4)}`.replace("-", "−")),
        `A step changes uniformity from ${here.uniformity.toFixed(3)} to ${after.uniformity.toFixed(3)} and tolerance from ${here.tolerance.toFixed(4)} to ${after.tolerance.toFixed(4)}`);
    };
    const trace = () => {
      clearTimeout(pending);
      const next = [], { objective } = state;
      const one = () => {
        next.push(step(objective, TAUS[next.length]));
        if (next.length < TAUS.length) pending = setTimeout(one);
        else { path = next; plane(result.after); }
      };
      pending = setTimeout(one, 250);
    };

    const redraw = (traced = false) => {
      calculate();
      tell();
      paint(result.shares);
      if (traced) { path = []; trace(); }
      align();
      compare();
    };
    // Two runs side by side: the images whose shares differ most, largest difference first.
    const compare = () => {
      const both = partners().map((each) => each.explorer), at = all(".weighed", frame.closest("section").querySelector(".differences") ?? document.createElement("p"));
      if (both.length < 2 || both.some((each) => !each)) return;
      const shares = both.map((each) => each.result.shares);
      at.forEach((place, k) => {
        const more = (j) => shares[k][j] - shares[1 - k][j];
        const order = [...shares[k].keys()].sort((a, b) => more(b) - more(a)).slice(0, NEAREST / 2).filter((j) => more(j) > 0);
        list(place, order.map((j) => [j, shares.map((each) => each[j]), shares.map((each) => percent(each[j]))]));
      });
    };
    const partners = () => all(".explorer", frame.parentElement);
    // Gives the parts above the drawings equal heights in two runs side by side.
    const align = () => {
      const both = partners();
      if (both.length < 2) return;
      const beside = both[0].offsetTop === both[1].offsetTop;
      for (const part of [".sentence", ".knobs", ".details"]) {
        const parts = both.map((each) => one(part, each));
        for (const each of parts) each.style.minHeight = "";
        const height = beside ? Math.max(...parts.map((each) => each.offsetHeight)) : 0;
        for (const each of parts) each.style.minHeight = `${height}px`;
      }
    };
    const choose = (i) => {
      state.anchor = i;
      redraw();
      for (const each of partners()) if (each.explorer && each.explorer.state.anchor !== i) each.explorer.choose(i);
    };
    const change = (name, tau = state.tau, anchor = state.anchor) => {
      Object.assign(state, { name, objective: data.objectives[name], tau, anchor });
      select.value = name;
      redraw(true);
    };

    select.addEventListener("change", () => change(select.value));
    canvas.addEventListener("click", (event) => {
      const box = canvas.getBoundingClientRect(), left = event.clientX - box.left, top = event.clientY - box.top;
      const cell = cells.find(([, x, y, w, h]) => left >= x && left < x + w && top >= y && top < y + h);
      if (cell) choose(cell[0]);
    });
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      choose((state.anchor + step + half) % half);
    });
    new ResizeObserver(() => paint(result.shares)).observe(canvas);
    const recolour = () => paint(result.shares);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
    new MutationObserver(recolour).observe(document.documentElement, { attributeFilter: ["data-theme"] });

    Object.defineProperties(frame, { explorer: { value: { batch, sample, state, data, change, choose, get result() { return result; } } } });
    one(".waiting", frame).remove();
    frame.classList.add("ready");
    change(data.chosen, state.tau, partners().find((each) => each !== frame && each.explorer)?.explorer.state.anchor ?? 0);
  };

  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries)
      if (entry.isIntersecting) {
        watcher.unobserve(entry.target);
        explorer(entry.target);
      }
  }, { rootMargin: "600px" });
  for (const frame of all(".explorer")) watcher.observe(frame);
})();
