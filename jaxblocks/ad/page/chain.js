// The chain of Jacobians: the orders of multiplication, what they cost, and the crossing of the modes.

const WIDEST = 4096;
const MOST_FACTORS = 8;

// ---- costs; the same definitions as chain_cost, optimal_order and chain_memory ----

// A bracketing is the number of a factor, or a pair [left, right].
function sweep(mode, factors) {
  let order = mode === "forward" ? 1 : factors;
  for (let i = 1; i < factors; i += 1) order = mode === "forward" ? [i + 1, order] : [order, factors - i];
  return order;
}

// The product of a bracketing: its shape, cost, the entries live at the peak, and its place in the tree.
function product(dims, order) {
  if (!Array.isArray(order)) {
    const [rows, columns] = [dims[order], dims[order - 1]];
    return { rows, columns, cost: 0, own: 0, peak: rows * columns, factor: order, height: 0, formula: `J${subscript(order)}` };
  }
  const [left, right] = order.map((part) => product(dims, part));
  const own = left.rows * left.columns * right.columns;
  const held = right.rows * right.columns;
  const result = left.rows * right.columns;
  const inBrackets = (part) => (part.factor ? part.formula : `(${part.formula})`);
  return {
    rows: left.rows,
    columns: right.columns,
    own,
    cost: left.cost + right.cost + own,
    peak: Math.max(right.peak, held + left.peak, held + left.rows * left.columns + result),
    left,
    right,
    height: 1 + Math.max(left.height, right.height),
    formula: `${inBrackets(left)} ${inBrackets(right)}`,
  };
}

// The cheapest bracketing by dynamic programming; a mode that is as cheap is preferred, reverse mode first.
function bestOrder(dims) {
  const factors = dims.length - 1;
  const best = {};
  for (let i = 1; i <= factors; i += 1) best[`${i},${i}`] = { cost: 0, order: i };
  for (let span = 1; span < factors; span += 1) {
    for (let i = 1; i + span <= factors; i += 1) {
      const j = i + span;
      let found = null;
      for (let k = i; k < j; k += 1) {
        const [left, right] = [best[`${j},${k + 1}`], best[`${k},${i}`]];
        const cost = left.cost + right.cost + dims[j] * dims[k] * dims[i - 1];
        if (found === null || cost < found.cost) found = { cost, order: [left.order, right.order] };
      }
      best[`${j},${i}`] = found;
    }
  }
  const { cost, order } = best[`${factors},1`];
  const modes = ["forward", "reverse"].filter((mode) => product(dims, sweep(mode, factors)).cost === cost);
  return modes.length ? sweep(modes[modes.length - 1], factors) : order;
}

function costsOf(dims) {
  const factors = dims.length - 1;
  return {
    forward: product(dims, sweep("forward", factors)),
    reverse: product(dims, sweep("reverse", factors)),
    best: product(dims, bestOrder(dims)),
  };
}

// The output width at which both modes cost the same, or null: ChainOrder.crossover.
function crossover(dims) {
  const d = dims;
  let inner = 0;
  for (let l = 1; l < d.length - 2; l += 1) inner += d[l] * d[l + 1];
  const slope = inner + d[0] * (d[1] - d[d.length - 2]);
  return inner && slope > 0 ? (d[0] * inner) / slope : null;
}

// ---- words ----

function verdict(dims, costs) {
  const [first, last] = [dims[0], dims[dims.length - 1]];
  const { forward, reverse, best } = costs;
  const push = forward.cost / first;
  const pull = reverse.cost / last;
  const passes = `${plural(last, "pullback")} against ${plural(first, "pushforward")}`;
  const turned = `${plural(first, "pushforward")} against ${plural(last, "pullback")}`;
  const times = (a, b) => ratio(a / b);
  let kind; let text;
  if (dims.length === 2) return { kind: "best", text: "One Jacobian: nothing is multiplied.", more: "" };
  if (dims.length === 3) {
    return { kind: "best", text: `Two Jacobians have one product, so all orders cost the same: ${integer(best.cost)} multiplications.`, more: "" };
  }
  if (forward.cost === reverse.cost) {
    kind = "best";
    text = `Both modes cost the same here: ${passes}.`;
  } else if (reverse.cost < forward.cost) {
    kind = "reverse";
    if (last < first) text = `Reverse mode is cheaper here because the output is narrower: ${passes}.`;
    else if (last === first) text = `Reverse mode is cheaper here although input and output have the same width: the layers near the output are narrower, so a pullback costs less than a pushforward.`;
    else text = `Reverse mode is cheaper here although the output is wider (${passes}), because one pullback costs ${times(push, pull)} times less than one pushforward.`;
    text += ` It takes ${times(forward.cost, reverse.cost)} times fewer multiplications than forward mode.`;
  } else {
    kind = "forward";
    if (first < last) text = `Forward mode is cheaper here because the input is narrower: ${turned}.`;
    else if (last === first) text = `Forward mode is cheaper here although input and output have the same width: the layers near the input are narrower, so a pushforward costs less than a pullback.`;
    else text = `Forward mode is cheaper here although the output is narrower (${turned}), because one pushforward costs ${times(pull, push)} times less than one pullback.`;
    text += ` It takes ${times(reverse.cost, forward.cost)} times fewer multiplications than reverse mode.`;
  }
  const cheaper = Math.min(forward.cost, reverse.cost);
  if (best.cost < cheaper) {
    const inner = best.left.columns;
    const narrow = inner < first && inner < last ? `, because its last product goes through the bottleneck of width ${integer(inner)}` : "";
    kind = "best";
    text += ` But neither mode is the best order: ${best.formula} takes ${times(cheaper, best.cost)} times fewer multiplications than ${forward.cost === reverse.cost ? "either" : "the better one"}${narrow}.`;
  }
  const more = `Forward: ${integer(first)} × ${integer(push)} multiplications. Reverse: ${integer(last)} × ${integer(pull)} multiplications.`
    + (last === 1 ? " With one output the Jacobian is the gradient, and reverse mode is backpropagation." : "");
  return { kind, text, more };
}

// ---- pictures ----

// The tree of a bracketing: factors above, the whole product at the foot, all rectangles at one scale.
function tree(root, dims) {
  const leaves = [];
  const nodes = [];
  const visit = (node) => {
    if (node.factor) leaves.push(node);
    else { visit(node.left); visit(node.right); }
    nodes.push(node);
  };
  visit(root);
  const [wide, gap] = [350, 14];
  const columns = leaves.reduce((sum, leaf) => sum + leaf.columns, 0);
  // Labels need room too, so a narrow factor takes the space of its text.
  const label = (leaf) => 7 * `${integer(leaf.rows)} × ${integer(leaf.columns)}`.length;
  let scale = 130 / Math.max(...dims);
  const room = (leaf) => Math.max(leaf.columns * scale, label(leaf));
  while (leaves.reduce((sum, leaf) => sum + room(leaf) + gap, 0) > wide && scale * columns > 20) scale *= 0.92;
  const total = leaves.reduce((sum, leaf) => sum + room(leaf) + gap, 0);
  let x = 0;
  for (const leaf of leaves) { leaf.x = x + (room(leaf) + gap) / 2; x += room(leaf) + gap; }
  const highest = [];
  for (const node of nodes) {
    if (!node.factor) node.x = (node.left.x + node.right.x) / 2;
    highest[node.height] = Math.max(highest[node.height] || 0, node.rows * scale);
  }
  const top = [];
  let y = 6;
  highest.forEach((height, level) => { top[level] = y; y += Math.max(height, 3) + (level ? 56 : 52); });
  const drawing = shape("svg", { class: "tree", viewBox: `0 0 ${Math.max(total, 220)} ${y - 14}`, role: "img",
    "aria-label": `${root.formula}: ${nodes.filter((n) => !n.factor).map((n) => `${n.rows} by ${n.columns} for ${n.own} multiplications`).join(", ")}` });
  drawing.style.width = `${Math.max(total, 220)}px`;
  drawing.style.margin = "0 auto";
  const shift = total < 220 ? (220 - total) / 2 : 0;
  for (const node of nodes) {
    const [w, h] = [Math.max(node.columns * scale, 2), Math.max(node.rows * scale, 2)];
    node.top = top[node.height];
    node.foot = node.top + h + 32;
    node.mid = node.x + shift;
    if (!node.factor) {
      for (const child of [node.left, node.right]) {
        drawing.append(shape("line", { x1: child.mid, y1: child.foot, x2: node.mid, y2: node.top - 3 }));
      }
    }
    drawing.append(
      shape("rect", { class: node.factor ? "leaf" : "product", x: node.mid - w / 2, y: node.top, width: w, height: h }),
      shape("text", { x: node.mid, y: node.top + h + 14, class: node.factor ? "name" : "" }, node.factor ? node.formula : `${integer(node.rows)} × ${integer(node.columns)}`),
      shape("text", { x: node.mid, y: node.top + h + 28, class: "soft" }, node.factor ? `${integer(node.rows)} × ${integer(node.columns)}` : `${integer(node.own)} mult.`),
    );
  }
  return drawing;
}

// Multiplications over the output width, for both modes and the best order, with a handle to drag.
function crossingChart(dims, move) {
  const W = roomFor();
  const [H, left, right, top, bottom] = [300, 74, W - 20, 14, 252];
  const last = dims[dims.length - 1];
  const far = WIDEST;
  const widths = [...new Set([...Array.from({ length: 90 }, (_, i) => Math.round(far ** (i / 89))), last])].sort((a, b) => a - b);
  const chains = widths.map((d) => costsOf([...dims.slice(0, -1), d]));
  const values = chains.flatMap((costs) => [costs.forward.cost, costs.reverse.cost, costs.best.cost]).filter((cost) => cost > 0);
  const [low, high] = [Math.log10(Math.min(...values)), Math.log10(Math.max(...values))];
  const span = Math.max(high - low, 0.3);
  const x = (d) => left + ((right - left) * Math.log(d)) / Math.log(far);
  const y = (cost) => bottom - ((bottom - top) * (Math.log10(cost) - low)) / span;
  const drawing = shape("svg", { class: "chart", viewBox: `0 0 ${W} ${H}` });
  for (let power = Math.ceil(low); power <= low + span; power += 1) {
    drawing.append(shape("line", { class: "grid", x1: left, x2: right, y1: y(10 ** power), y2: y(10 ** power) }),
      shape("text", { x: left - 8, y: y(10 ** power) + 4, "text-anchor": "end", class: "soft" }, `10${String(power).replace(/\d/g, (d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d])}`));
  }
  for (let d = 1; d <= far; d *= 10) {
    drawing.append(shape("text", { x: x(d), y: bottom + 18, "text-anchor": "middle", class: "soft" }, integer(d)));
  }
  drawing.append(shape("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
    shape("text", { x: (left + right) / 2, y: H - 12, "text-anchor": "middle", class: "soft" }, "width of the output (drag)"),
    shape("text", { x: 14, y: (top + bottom) / 2, "text-anchor": "middle", class: "soft", transform: `rotate(-90 14 ${(top + bottom) / 2})` }, "multiplications"));
  for (const mode of ["best", "forward", "reverse"]) {
    const points = widths.map((d, i) => [x(d), chains[i][mode].cost]).filter(([, cost]) => cost > 0);
    drawing.append(shape("path", { class: `line-${mode}`, d: points.map(([px, cost], i) => `${i ? "L" : "M"}${px.toFixed(1)} ${y(cost).toFixed(1)}`).join("") }));
  }
  const meet = crossover(dims);
  if (meet !== null && meet >= 1 && meet <= far) {
    drawing.append(shape("line", { class: "crossing", x1: x(meet), x2: x(meet), y1: top, y2: bottom }));
    const atEnd = x(meet) > right - 230;
    drawing.append(shape("text", { x: x(meet) + (atEnd ? -8 : 8), y: bottom - 10, "text-anchor": atEnd ? "end" : "start" }, `the modes cross at ${Number(meet.toPrecision(4))}`));
  }
  const now = costsOf(dims);
  drawing.append(shape("g", { class: "handle" },
    shape("line", { x1: x(last), x2: x(last), y1: top, y2: bottom }),
    ...["forward", "reverse"].filter((mode) => now[mode].cost > 0).map((mode) => shape("circle", { cx: x(last), cy: y(now[mode].cost), r: 6 }))));
  draggable(drawing, left, -20, (part) => move(Math.round(far ** part)));
  return drawing;
}

// ---- the part of the page ----

function showChain(root, chains) {
  let dims = [...chains[0].widths];
  const buttons = element("div", { class: "row", role: "group", "aria-label": "Chains to begin with" });
  const fields = element("div", { class: "widths" });
  const says = element("div", { class: "verdict", id: "chain-verdict", role: "status" });
  const cards = element("div", { class: "cards" });
  const chart = element("div", { class: "panel", style: "margin-top: 1rem" });
  const more = element("button", { type: "button", id: "chain-add", onclick: () => { dims.splice(dims.length - 1, 0, 64); rebuild(); } }, "Add a layer");
  const less = element("button", { type: "button", id: "chain-remove", onclick: () => { dims.splice(dims.length - 2, 1); rebuild(); } }, "Remove a layer");

  for (const chain of chains) {
    buttons.append(element("button", { type: "button", "data-chain": chain.name, onclick: () => { dims = [...chain.widths]; rebuild(); } }, chain.name));
  }

  function field(i) {
    const role = i === 0 ? "input" : i === dims.length - 1 ? "output" : "";
    const name = `d${subscript(i)}${role ? `, ${role}` : ""}`;
    const clip = (value) => Math.min(WIDEST, Math.max(1, Math.round(value) || 1));
    const number = element("input", { type: "number", min: 1, max: WIDEST, value: dims[i], id: `width-${i}`, "aria-label": `Width ${i}${role ? `, of the ${role}` : ""}` });
    const slider = element("input", { type: "range", min: 0, max: 1, step: 0.002, value: Math.log(dims[i]) / Math.log(WIDEST), "aria-label": `Width ${i}, slider`, id: `slider-${i}` });
    slider.setAttribute("aria-valuetext", String(dims[i]));
    const set = (value, from) => {
      dims[i] = clip(value);
      if (from !== number) number.value = dims[i];
      if (from !== slider) slider.value = Math.log(dims[i]) / Math.log(WIDEST);
      slider.setAttribute("aria-valuetext", String(dims[i]));
      update();
    };
    number.addEventListener("input", () => { if (number.value !== "") set(Number(number.value), number); });
    number.addEventListener("change", () => { set(Number(number.value), slider); });
    slider.addEventListener("input", () => set(WIDEST ** Number(slider.value), slider));
    // On the logarithmic scale a step of the keyboard would skip large widths.
    slider.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 }[event.key];
      if (step) { event.preventDefault(); set(dims[i] + step, null); }
    });
    return { node: element("div", { class: "width" }, element("span", {}, name), slider, number), set };
  }

  let setters = [];
  function rebuild() {
    const made = dims.map((_, i) => field(i));
    setters = made.map(({ set }) => set);
    fields.replaceChildren(...made.map(({ node }) => node));
    more.disabled = dims.length > MOST_FACTORS;
    less.disabled = dims.length <= 3;
    update();
  }

  function card(mode, title, made, costs) {
    const cheapest = made.cost === costs.best.cost;
    const most = Math.max(costs.forward.cost, costs.reverse.cost, 1);
    return element("article", { class: `card ${mode}`, "aria-label": title },
      element("h3", {}, title, cheapest ? element("span", { class: "badge" }, "fewest") : null),
      element("div", { class: "figure", id: `chain-${mode}` }, integer(made.cost)),
      element("div", { class: "note" }, "multiplications"),
      element("div", { class: "meter", "aria-hidden": "true" }, element("div", { style: `width: ${(100 * made.cost) / most}%` })),
      element("dl", {},
        element("dt", {}, "order"), element("dd", { id: `chain-${mode}-order` }, made.formula),
        element("dt", {}, "over the best"), element("dd", {}, costs.best.cost ? `${ratio(made.cost / costs.best.cost)} ×` : "1 ×"),
        element("dt", {}, "entries live at the peak"), element("dd", { id: `chain-${mode}-memory` }, integer(made.peak))),
      tree(made, dims));
  }

  function update() {
    const costs = costsOf(dims);
    const { kind, text, more: detail } = verdict(dims, costs);
    says.className = `verdict ${kind}`;
    says.replaceChildren(element("p", {}, text), ...(detail ? [element("p", {}, detail)] : []));
    cards.replaceChildren(card("forward", "Forward mode", costs.forward, costs), card("reverse", "Reverse mode", costs.reverse, costs),
      card("best", "Best bracketing", costs.best, costs));
    for (const button of buttons.children) {
      const chain = chains.find(({ name }) => name === button.dataset.chain);
      button.setAttribute("aria-pressed", String(chain.widths.join() === dims.join()));
    }
    drawChart();
  }

  // While the pointer holds the handle its drawing must stay: only the contents are replaced.
  let drawing = null;
  function drawChart() {
    if (dims.length < 4) { chart.hidden = true; return; }
    chart.hidden = false;
    const fresh = crossingChart(dims, (width) => setters[dims.length - 1](width));
    fresh.setAttribute("role", "img");
    fresh.setAttribute("aria-label", "Multiplications of forward mode, reverse mode and the best bracketing over the width of the output");
    if (drawing) { drawing.setAttribute("viewBox", fresh.getAttribute("viewBox")); drawing.replaceChildren(...fresh.childNodes); }
    else { drawing = fresh; chart.append(drawing); }
  }

  chart.append(element("h3", { style: "margin-top: 0" }, "Where the modes cross"),
    element("div", { class: "legend" },
      element("span", { style: "--swatch: var(--forward)" }, "forward mode (dashed)"),
      element("span", { style: "--swatch: var(--reverse)" }, "reverse mode (dotted)"),
      element("span", { style: "--swatch: var(--best-fill)" }, "best bracketing (wide)")));
  root.append(buttons, fields, element("div", { class: "row" }, more, less), says, cards, chart,
    element("p", { class: "note" }, "A rectangle is a matrix, rows down and columns across, all at one scale; the number under a product is what it costs. "
      + "Entries live at the peak count the Jacobians not yet multiplied and the products so far, when the layers are evaluated from the input to the output and "
      + "each product is formed as soon as both of its factors exist. Only products of Jacobians are counted: jax.jacfwd and jax.jacrev also push or pull the identity "
      + "through the first layer that they meet."));
  rebuild();
}
