// The graph of a function: values, tangents and adjoints step by step, and the tape of reverse mode.

// Steps of a level of detail, each with the node that it is about and its place in the profile of the tape.
function stepsOf(level) {
  const n = level.units;
  const steps = [{ node: -1, unit: -1, back: false, at: -1 }];
  if (level.kind === "operations") {
    let at = -1;
    level.forward.forEach((row, i) => {
      if (row.unit >= 0) at = row.unit;
      steps.push({ node: row.node, unit: row.unit, back: false, at, row: i });
    });
    at = n - 1;
    level.reverse.forEach((row, i) => {
      if (row.unit >= 0) at = 2 * n - 1 - row.unit;
      steps.push({ node: row.node, unit: row.unit, back: true, at: row.unit < 0 && i > 0 ? 2 * n : at, row: i });
    });
  } else {
    for (let i = 0; i < n; i += 1) steps.push({ node: i, unit: i, back: false, at: i });
    for (let i = n - 1; i >= 0; i -= 1) steps.push({ node: i, unit: i, back: true, at: 2 * n - 1 - i });
  }
  return steps;
}

function short(text) {
  if (text === null || text === undefined) return "";
  const array = /^\(.*\), norm (.*)$/.exec(text);
  const brief = array ? `norm ${array[1]}` : text;
  return brief.length > 16 ? `${brief.slice(0, 15)}…` : brief;
}

function clipped(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

// ---- the picture ----

function drawGraph(level, width) {
  const layers = level.kind === "layers";
  const [w, h] = layers ? [132, 84] : [104, 80];
  const [dx, dy] = layers ? [w + 30, h + 44] : [w + 40, h + 22];
  const places = [];
  if (layers) { // in the order of execution, in lines as text
    const columns = Math.max(1, Math.floor((width - 30) / dx));
    level.nodes.forEach((node, i) => places.push([24 + (i % columns) * dx + w / 2, 22 + Math.floor(i / columns) * dy + h / 2]));
  } else {
    const [lowest, highest] = [Math.min(...level.nodes.map(({ x }) => x)), Math.max(...level.nodes.map(({ y }) => y))];
    for (const { x, y } of level.nodes) places.push([14 + (x - lowest) * dx + w / 2, 14 + (highest - y) * dy + h / 2]);
  }
  const total = [Math.max(...places.map(([x]) => x)) + w / 2 + 16, Math.max(...places.map(([, y]) => y)) + h / 2 + 16];
  const drawing = shape("svg", { width: total[0], height: total[1], viewBox: `0 0 ${total[0]} ${total[1]}`, role: "img",
    "aria-label": `Computational graph with ${plural(level.nodes.length, "node")}` });
  const marker = (id, style) => shape("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse", markerUnits: "userSpaceOnUse" },
    shape("path", { d: "M0 0L8 4L0 8z", style: `fill: ${style}` }));
  drawing.append(shape("defs", {}, marker("arrow", "var(--control)")));
  const edges = [];
  level.nodes.forEach((node, i) => {
    for (const parent of node.parents) {
      const [[x1, y1], [x2, y2]] = [places[parent], places[i]];
      let path;
      if (layers && i - parent === 1 && y1 === y2) path = `M${x1 + w / 2} ${y1}L${x2 - w / 2 - 2} ${y2}`;
      else if (layers && i - parent === 1) path = `M${x1} ${y1 + h / 2}C${x1} ${y1 + h / 2 + 26} ${x2} ${y2 - h / 2 - 26} ${x2} ${y2 - h / 2 - 2}`;
      else if (layers && y1 === y2) path = `M${x1} ${y1 - h / 2}C${x1 + 10} ${y1 - h / 2 - 26} ${x2 - 10} ${y2 - h / 2 - 26} ${x2} ${y2 - h / 2 - 2}`;
      else if (layers) path = `M${x1 + w / 4} ${y1 + h / 2}C${x1 + w / 4} ${y1 + h / 2 + 30} ${x2 - w / 4} ${y2 - h / 2 - 30} ${x2 - w / 4} ${y2 - h / 2 - 2}`;
      else {
        const reach = Math.max(20, (x2 - x1 - w) / 2);
        path = `M${x1 + w / 2} ${y1}C${x1 + w / 2 + reach} ${y1} ${x2 - w / 2 - reach} ${y2} ${x2 - w / 2 - 2} ${y2}`;
      }
      const edge = shape("path", { class: "edge", d: path, "marker-end": "url(#arrow)" });
      edges.push({ edge, parent, child: i });
      drawing.append(edge);
    }
  });
  const nodes = level.nodes.map((node, i) => {
    const [x, y] = places[i];
    const line = (k) => y - h / 2 + 16 + 15 * k;
    const title = layers ? clipped(`${node.name}${node.kind ? ` ${node.kind}` : ""}`, 18) : clipped(`${node.name} ${node.label}`, 15);
    const texts = ["value", "tangent", "adjoint"].map((name, k) => shape("text", { x, y: line(k + (layers ? 2 : 1)), class: name }));
    const bar = shape("rect", { class: "tapebar", x: x - w / 2, y: y + h / 2 - 5, width: 0, height: 4 });
    const group = shape("g", { class: `node ${layers ? "layer" : node.kind}` },
      shape("rect", { class: "box", x: x - w / 2, y: y - h / 2, width: w, height: h, rx: 8 }),
      shape("text", { x, y: line(0), class: "name" }, title),
      layers ? shape("text", { x, y: line(1), class: "soft" }, clipped(node.shape.replace("float32 ", ""), 20)) : null,
      ...texts, bar,
      shape("title", {}, layers ? `${node.name} ${node.kind}: ${node.operations}; ${integer(node.flops)} operations; makes ${node.shape}${node.arguments.length ? `; reads ${node.arguments.slice(0, 8).join(", ")}` : ""}`
        : `${node.name} ${node.operation}, ${node.shape}${node.scope ? `, in ${node.scope}` : ""}`));
    drawing.append(group);
    return { group, texts, bar, place: [x, y], w };
  });
  return { drawing, nodes, edges };
}

// ---- the part of the page ----

function showGraph(root, data) {
  root.replaceChildren();
  if (!data.levels.length) {
    root.append(element("p", { class: "note" }, "This function computes nothing: it returns its arguments."));
    return { step: () => {}, play: () => {} };
  }
  // Nets begin layer by layer, small functions operation by operation.
  let level = data.levels.length > 1 && data.levels[0].nodes.length > 16 ? data.levels[1] : data.levels[0];
  let tape = level.tapes[0];
  let steps; let step = 0; let picture; let timer = null; let most = 1; let profile; let profileCursor;

  const choices = element("div", { class: "row" });
  const play = element("button", { type: "button", id: "graph-play", "aria-label": "Play", onclick: toggle }, "Play");
  const slider = element("input", { type: "range", min: 0, value: 0, step: 1, id: "graph-step", "aria-label": "Step" });
  slider.addEventListener("input", () => show(Number(slider.value)));
  const player = element("div", { class: "player", role: "group", "aria-label": "Steps" },
    element("button", { type: "button", "aria-label": "First step", onclick: () => show(0) }, "«"),
    element("button", { type: "button", id: "graph-back", "aria-label": "One step back", onclick: () => show(step - 1) }, "←"),
    play,
    element("button", { type: "button", id: "graph-next", "aria-label": "One step on", onclick: () => show(step + 1) }, "→"),
    element("button", { type: "button", "aria-label": "Last step", onclick: () => show(steps.length - 1) }, "»"), slider);
  const now = element("div", { class: "now panel", id: "graph-now", role: "status" });
  const box = element("div", { class: "picture panel", tabindex: 0, role: "region", "aria-label": "Graph" });
  const sum = element("p", { class: "sum", id: "tape-sum" });
  const stack = element("div", { class: "stack", id: "tape", tabindex: 0, role: "region", "aria-label": "Arrays on the tape" });
  const stage = element("div", { class: "stage" }, box, element("div", { class: "tape panel" }, element("h3", {}, "The tape"), sum, stack));
  const chart = element("div", { class: "panel", style: "margin-top: 1rem" });
  const table = element("div", {});
  root.append(choices, player, now, stage, chart, table);

  function toggle() {
    if (timer) { clearInterval(timer); timer = null; } else {
      if (step === steps.length - 1) show(0);
      const pause = Math.max(120, Math.min(900, 30000 / steps.length));
      timer = setInterval(() => { if (step >= steps.length - 1) toggle(); else show(step + 1); }, pause);
    }
    play.replaceChildren(timer ? "Pause" : "Play");
    play.setAttribute("aria-label", timer ? "Pause" : "Play");
  }

  const TAPES = { everything: "stores all that the pullbacks read", checkpoints: "a checkpoint around each layer" };
  function options() {
    const details = { operations: "operation by operation", layers: data.levels.length > 1 || level.nodes.some(({ kind }) => kind) ? "layer by layer" : "in groups of operations" };
    choices.replaceChildren(
      data.levels.length > 1 ? choice("Detail", data.levels.map(({ kind }) => [kind, details[kind]]), level.kind, (kind) => {
        level = data.levels.find((each) => each.kind === kind);
        tape = level.tapes[0];
        build();
      }, "graph-detail") : "",
      level.tapes.length > 1 ? choice("Tape", level.tapes.map(({ name }) => [name, TAPES[name]]), tape.name, (name) => {
        tape = level.tapes.find((each) => each.name === name);
        build(step);
      }, "graph-tape") : "");
  }

  function build(at = 0) {
    steps = stepsOf(level);
    slider.max = steps.length - 1;
    picture = drawGraph(level, box.clientWidth || 900);
    box.replaceChildren(picture.drawing);
    most = Math.max(1, ...tapeByUnit().map(({ total }) => total));
    options();
    drawProfile();
    drawTable();
    show(Math.min(at, steps.length - 1));
  }

  function tapeByUnit() {
    const units = Array.from({ length: level.units }, (_, unit) => ({ unit, entries: [], total: 0 }));
    for (const entry of tape.entries) {
      if (entry.made < 0) continue;
      units[entry.made].entries.push(entry);
      units[entry.made].total += entry.bytes;
    }
    return units;
  }

  // Whether an entry is on the tape at a step.
  function isAlive(entry, { at }) {
    const n = level.units;
    if (entry.made < 0 || at < 0) return false;
    return at < n ? entry.made <= at : entry.freed <= 2 * n - 1 - at;
  }

  function alive(at) {
    return at < 0 ? 0 : (tape.alive[at] ?? 0);
  }

  // The node that a unit makes: for operations the node of its row, for layers the unit itself.
  function nodeOfUnit(unit) {
    if (level.kind === "layers") return unit;
    const row = level.forward.find((each) => each.unit === unit);
    return row ? row.node : -1;
  }

  function nameOf(unit) {
    const node = level.nodes[nodeOfUnit(unit)];
    if (!node) return "";
    return level.kind === "layers" ? `${node.name}${node.kind ? ` ${node.kind}` : ""}` : `${node.name} ${node.label}`;
  }

  function show(to) {
    step = Math.min(steps.length - 1, Math.max(0, to));
    slider.value = step;
    const here = steps[step];
    const computed = new Set(); const pulled = new Map();
    for (const { node, back, row } of steps.slice(1, step + 1)) {
      if (!back) computed.add(node);
      else pulled.set(node, level.kind === "operations" ? level.reverse[row].value : level.nodes[node].adjoint);
    }
    // In the picture of layers the adjoint of the output of a layer is there when the layer is reversed.
    const known = tapeByUnit();
    const onTape = known.map(({ entries }) => entries.filter((entry) => isAlive(entry, here)).reduce((total, entry) => total + entry.bytes, 0));
    const tapeOf = new Map(onTape.map((total, unit) => [nodeOfUnit(unit), total]));
    picture.nodes.forEach(({ group, texts, bar, w }, i) => {
      const node = level.nodes[i];
      group.classList.toggle("done", computed.has(i));
      group.classList.toggle("pulled", pulled.has(i));
      group.classList.toggle("now", i === here.node);
      texts[0].textContent = computed.has(i) ? short(node.value) : "";
      texts[1].textContent = computed.has(i) && node.tangent !== null && node.tangent !== undefined ? `→ ${short(node.tangent)}` : "";
      texts[2].textContent = pulled.has(i) && pulled.get(i) ? `← ${short(pulled.get(i))}` : "";
      bar.setAttribute("width", (w * (tapeOf.get(i) || 0)) / most);
    });
    for (const { edge, parent, child } of picture.edges) {
      const reading = here.back ? level.nodes[here.unit >= 0 ? nodeOfUnit(here.unit) : -1] : null;
      edge.classList.toggle("live-forward", !here.back && child === here.node && step > 0);
      edge.classList.toggle("live-reverse", here.back && (level.kind === "layers" ? child === here.node : reading === level.nodes[child] && parent === here.node));
    }
    if (here.node >= 0) {
      const { place: [x, y] } = picture.nodes[here.node];
      box.scrollTo({ left: x - box.clientWidth / 2, top: y - box.clientHeight / 2 });
    }
    describe(here);
    drawStack(here, known);
    drawCursor(here);
    markTable(here);
  }

  function describe(here) {
    const count = element("p", { class: "what", id: "graph-count" }, `Step ${step} of ${steps.length - 1}${step === 0 ? ": press → or Play" : here.back ? ", backward" : ", forward"}`);
    const lines = [];
    if (step > 0 && level.kind === "operations") {
      const row = here.back ? level.reverse[here.row] : level.forward[here.row];
      if (here.back) lines.push(element("p", { class: "mono of-adjoint" }, row.adjoint));
      else {
        lines.push(element("p", { class: "mono of-value" }, row.primal));
        if (row.tangent) lines.push(element("p", { class: "mono of-tangent" }, row.tangent));
      }
    } else if (step > 0) {
      const node = level.nodes[here.node];
      lines.push(element("p", {}, element("strong", {}, `${node.name} ${node.kind}`), ` makes ${node.shape} by ${node.operations}: ${integer(node.flops)} operations.`));
      const say = (name, mark, text) => (text ? [element("span", { class: `mono of-${name}` }, `${mark} ${text}`), "   "] : []);
      if (here.back) lines.push(element("p", {}, ...say("adjoint", "adjoint", node.adjoint)));
      else lines.push(element("p", {}, ...say("value", "value", node.value), ...say("tangent", "tangent", node.tangent)));
    }
    now.replaceChildren(count, ...lines);
  }

  function drawStack(here, known) {
    const n = level.units;
    const reversing = here.at >= n && here.at < 2 * n ? 2 * n - 1 - here.at : -1;
    const cells = [];
    let total = 0;
    for (const { unit, entries } of known) {
      const there = entries.filter((entry) => isAlive(entry, here));
      if (!there.length) continue;
      const size = there.reduce((sum, entry) => sum + entry.bytes, 0);
      total += size;
      const isNew = here.at === unit;
      const isRead = there.some((entry) => entry.freed === reversing);
      const names = [...new Set(there.map((entry) => (entry.isValue ? (entry.name === "output" ? "its value" : entry.name) : entry.name)))];
      const label = level.kind === "layers" ? `${nameOf(unit)}: ${plural(there.length, "array")}` : `${names.join(", ")}${there.every(({ isValue }) => isValue) ? "" : ` of ${nameOf(unit)}`}`;
      cells.push(element("div", { class: `cell${isNew ? " new" : ""}${isRead ? " read" : ""}`, title: there.map((entry) => `${entry.name} (${entry.shape.join(", ")})`).join("; ") },
        element("span", { class: "label" }, label), element("span", { class: "bytes" }, bytes(size))));
    }
    const again = alive(here.at) - total;
    if (again > 0) cells.push(element("div", { class: "cell again" }, element("span", { class: "label" }, `${nameOf(reversing)}: computed again`), element("span", { class: "bytes" }, bytes(again))));
    stack.replaceChildren(...cells);
    const kept = tape.entries.filter(({ made }) => made < 0).reduce((size, entry) => size + entry.bytes, 0);
    sum.replaceChildren(element("strong", {}, bytes(alive(here.at))), ` of at most ${bytes(tape.peak)}`,
      kept ? element("span", { class: "words" }, `and ${bytes(kept)} of arguments and constants, which are in memory anyway`) : "");
    sum.dataset.bytes = alive(here.at);
    stack.scrollTop = -0;
  }

  // ---- the bytes on the tape over the steps ----

  function drawProfile() {
    const W = roomFor();
    const [H, left, right, top, bottom] = [150, 70, W - 15, 12, 122];
    const highest = Math.max(1, ...level.tapes.map(({ peak }) => peak));
    const x = (i) => left + ((right - left) * i) / Math.max(1, steps.length - 1);
    const y = (size) => bottom - ((bottom - top) * size) / highest;
    const line = (each) => steps.map(({ at }, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(at < 0 ? 0 : (each.alive[at] ?? 0)).toFixed(1)}`).join("");
    profile = shape("svg", { class: "profile", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Bytes on the tape over the steps; at most ${bytes(tape.peak)}` });
    for (const each of level.tapes) {
      const chosen = each === tape;
      const closed = chosen ? `L${right} ${bottom}L${left} ${bottom}` : "";
      profile.append(shape("path", { class: chosen ? "keep" : "again", d: line(each) + closed }));
    }
    const turn = steps.findIndex(({ back }) => back);
    profile.append(shape("line", { class: "split", x1: x(turn - 0.5), x2: x(turn - 0.5), y1: top, y2: bottom }),
      shape("text", { x: x(turn - 0.5) - 8, y: H - 8, "text-anchor": "end", class: "soft" }, "forward"),
      shape("text", { x: x(turn - 0.5) + 8, y: H - 8, class: "soft" }, "backward"),
      shape("text", { x: left - 8, y: top + 8, "text-anchor": "end", class: "soft" }, bytes(highest)),
      shape("text", { x: left - 8, y: bottom, "text-anchor": "end", class: "soft" }, "0"));
    profileCursor = shape("line", { class: "cursor", y1: top, y2: bottom });
    profile.append(profileCursor);
    profile.place = x;
    draggable(profile, left, -15, (part) => show(Math.round(part * (steps.length - 1))));
    const other = level.tapes.find((each) => each !== tape);
    const words = other ? `Filled: ${TAPES[tape.name]}, ${bytes(tape.peak)} at the peak. Dashed: ${TAPES[other.name]}, ${bytes(other.peak)}.` : `At the peak ${bytes(tape.peak)}.`;
    chart.replaceChildren(element("h3", { style: "margin-top: 0" }, "Bytes on the tape, step by step"), profile,
      element("p", { class: "note", style: "margin: 0.4rem 0 0" }, `${words} These are the residuals of jax.vjp (${plural(level.tapes[0].numbers, "number")}, arguments included); a compiler may store fewer.`));
  }

  function drawCursor() {
    profileCursor.setAttribute("x1", profile.place(step));
    profileCursor.setAttribute("x2", profile.place(step));
  }

  // ---- the trace as a table ----

  let rows = [];
  function drawTable() {
    rows = [];
    if (level.kind !== "operations") { table.replaceChildren(); return; }
    const make = (cells, index, back) => {
      const row = element("tr", {}, cells.map((text) => element("td", {}, text)));
      rows.push({ row, index, back });
      return row;
    };
    const forward = element("table", { id: "trace-forward" }, element("thead", {}, element("tr", {}, element("th", {}, "forward primal trace"), element("th", {}, "forward tangent trace"))),
      element("tbody", {}, level.forward.map((row, i) => make([row.primal, row.tangent], i, false))));
    const reverse = element("table", { id: "trace-reverse" }, element("thead", {}, element("tr", {}, element("th", {}, "reverse adjoint trace"))),
      element("tbody", {}, level.reverse.map((row, i) => make([row.adjoint], i, true))));
    table.replaceChildren(element("details", {}, element("summary", {}, "The trace as a table"), element("div", { class: "trace panel", tabindex: 0, role: "region", "aria-label": "Trace" }, forward, reverse)));
  }

  function markTable(here) {
    for (const { row, index, back } of rows) row.className = step > 0 && back === here.back && index === here.row ? (back ? "now back" : "now") : "";
  }

  build();
  let width = box.clientWidth;
  new ResizeObserver(() => {
    if (level.kind === "layers" && Math.abs(box.clientWidth - width) > 40) { width = box.clientWidth; build(step); }
  }).observe(box);
  return { step: (by) => show(step + by), jump: (last) => show(last ? steps.length - 1 : 0), play: toggle };
}
