// The costs: the cost table, the operations of each layer, and the plan of the Jacobian.

function showCosts(root, data) {
  const { costs, plan } = data;
  const timed = costs.rows.some((row) => row.seconds !== null);
  const stored = costs.rows.some((row) => row.temporaryBytes !== null);
  const most = Math.max(...costs.rows.flatMap((row) => [row.ratio || 0, row.timeRatio || 0]), 1);
  const logarithmic = most > 30;
  const part = (number) => (logarithmic ? Math.log10(1 + 9 * Math.max(number, 0)) / Math.log10(1 + 9 * most) : number / most) * 100;

  const head = ["derivative", "operations", "/ function", ...(timed ? ["time", "/ function"] : []), ...(stored ? ["temporary memory"] : []), "compared"];
  const rows = costs.rows.map((row) => element("tr", { "data-row": row.name },
    element("td", {}, element("code", {}, row.name), element("span", { class: "words" }, row.words)),
    element("td", { class: "number", "data-cell": "operations" }, integer(row.operations)),
    element("td", { class: "number", "data-cell": "ratio" }, ratio(row.ratio)),
    ...(timed ? [
      element("td", { class: "number", title: row.quartiles ? `quartiles ${row.quartiles.map(seconds).join(" to ")}` : "" }, seconds(row.seconds)),
      element("td", { class: "number" }, ratio(row.timeRatio))] : []),
    ...(stored ? [element("td", { class: "number", title: row.temporaryBytes === null ? "" : `${integer(row.temporaryBytes)} bytes` }, bytes(row.temporaryBytes))] : []),
    element("td", { class: "bars" }, element("div", { class: "two", "aria-hidden": "true" },
      row.ratio === null ? null : element("div", { class: "fill-forward", style: `width: ${part(row.ratio)}%` }),
      row.timeRatio === null ? null : element("div", { class: "time", style: `width: ${part(row.timeRatio)}%` })))));
  const table = element("table", { id: "costs-rows" }, element("thead", {}, element("tr", {}, head.map((text, i) => element("th", { class: i && i < head.length - 1 ? "number" : "", scope: "col" }, text)))),
    element("tbody", {}, rows));
  root.replaceChildren(
    element("div", { class: "legend" }, element("span", { style: "--swatch: var(--forward)" }, "operations"),
      timed ? element("span", { style: "--swatch: var(--reverse)" }, "time (striped)") : null,
      logarithmic ? element("span", { style: "--swatch: transparent" }, "logarithmic scale") : null),
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Cost table" }, table),
    element("p", { class: "note" }, timed ? `Times are medians of calls of the compiled programs on ${data.device}; hover for quartiles. ` : "Nothing was timed. ",
      "Operations are multiplications, additions and transcendentals, counted in the program and not in what a compiler makes of it.",
      ...costs.notes.map((note) => ` ${note}`)));
  if (costs.layers.length) root.append(...byLayer(costs));
  root.append(...planOf(plan));
}

function byLayer(costs) {
  const names = costs.rows.map((row) => row.name);
  let chosen = names.includes("gradient") ? "gradient" : names[names.length - 1];
  const place = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Operations by layer" });
  const draw = () => {
    const all = Object.fromEntries(costs.rows.map((row) => [row.name, row.operations]));
    const most = Math.max(...costs.layers.map((layer) => layer.operations[chosen]), 1);
    place.replaceChildren(element("table", { id: "costs-layers" },
      element("thead", {}, element("tr", {}, ["layer", "function", chosen, "/ function", "share"].map((text, i) => element("th", { class: i && i < 4 ? "number" : "", scope: "col" }, text)))),
      element("tbody", {}, costs.layers.map((layer) => {
        const [own, cost] = [layer.operations.function, layer.operations[chosen]];
        return element("tr", { "data-layer": layer.name },
          element("td", {}, element("code", {}, layer.name || "outside all layers"), ` ${layer.kind}`),
          element("td", { class: "number" }, integer(own)), element("td", { class: "number", "data-cell": "operations" }, integer(cost)),
          element("td", { class: "number" }, own ? ratio(cost / own) : ""),
          element("td", { class: "bars" }, element("div", { class: "two", title: `${ratio((100 * cost) / Math.max(1, all[chosen]))} %` }, element("div", { class: "fill-forward", style: `width: ${(100 * cost) / most}%` }))));
      }))));
  };
  draw();
  return [element("h3", {}, "By layer"), element("div", { class: "row" }, choice("Derivative", names.map((name) => [name, name]), chosen, (name) => { chosen = name; draw(); }, "costs-derivative")), place];
}

function planOf(plan) {
  const title = element("h3", {}, "The Jacobian: what jacobian_plan chose");
  if (typeof plan === "string") return [title, element("p", { class: "note" }, plan)];
  const words = { forward: "Forward mode", reverse: "Reverse mode", mixed: `A bracketing: ${plan.bracketing}`, known: "No sweep: the matrix is known" };
  const number = (operations) => (operations === null ? "not possible" : integer(operations));
  const table = element("table", { id: "plan-costs" }, element("thead", {}, element("tr", {}, ["", "operations", "predicted time"].map((text, i) => element("th", { class: i ? "number" : "", scope: "col" }, text)))),
    element("tbody", {}, ["forward", "reverse", "chosen"].map((mode) => element("tr", { "data-mode": mode }, element("td", {}, mode),
      element("td", { class: "number", "data-cell": "operations" }, number(plan.operations[mode])), element("td", { class: "number" }, plan.times[mode] === null ? "" : `${ratio(plan.times[mode])} ×`)))));
  return [title,
    element("div", { class: `verdict ${plan.mode === "forward" || plan.mode === "reverse" ? plan.mode : "best"}`, id: "plan-verdict" }, element("p", {}, `${words[plan.mode]}. The Jacobian is ${integer(plan.outputs)} by ${integer(plan.inputs)}.`), element("p", {}, plan.reason)),
    element("div", { class: "panel scroll", tabindex: 0, role: "region", "aria-label": "Stages of the chain" }, stages(plan)),
    element("div", { class: "legend", style: "margin-top: 0.5rem" }, element("span", { style: "--swatch: var(--best-fill)" }, "dense: its matrix is known"),
      element("span", { style: "--swatch: var(--value-fill)" }, "diagonal"), element("span", { style: "--swatch: var(--line)" }, "matrix-free: only its products with vectors are known")),
    element("ol", {}, plan.sweeps.map((sweep) => element("li", {}, sweep))),
    element("div", { class: "scroll" }, table),
    element("p", { class: "note" }, `${plan.chunkSize === null ? "All seeds of a sweep run at once" : `At most ${plan.chunkSize} seeds of a sweep run at once`}, with about ${bytes(plan.temporaryBytes)} of temporary memory. The operations are those of the sweeps; the table by derivative also counts one linearization of the function.`)];
}

// The stages as matrices at one scale, the last one on the left, as in the formula.
function stages(plan) {
  const most = Math.max(...plan.stages.flatMap(({ inputs, outputs }) => [inputs, outputs]));
  const scale = 120 / most;
  let x = 10;
  const shown = [...plan.stages].reverse().map((stage) => {
    const w = Math.max(2, stage.inputs * scale);
    const room = Math.max(w, 96);
    const placed = { ...stage, w, h: Math.max(2, stage.outputs * scale), mid: x + room / 2 };
    x += room + 22;
    return placed;
  });
  const foot = 10 + Math.max(...shown.map(({ h }) => h));
  const drawing = shape("svg", { class: "stages", width: x, height: foot + 60, viewBox: `0 0 ${x} ${foot + 60}`, role: "img", "aria-label": `Stages: ${plan.bracketing}` });
  drawing.style.maxWidth = "none";
  for (const { name, kind, inputs, outputs, operations, primitives, w, h, mid } of shown) {
    drawing.append(shape("rect", { class: kind, x: mid - w / 2, y: foot - h, width: w, height: h }, shape("title", {}, `${name}: ${primitives}`)),
      shape("text", { x: mid, y: foot + 18, style: "font-weight: 650" }, `${name}, ${kind}`), shape("text", { x: mid, y: foot + 34, class: "soft" }, `${integer(outputs)} × ${integer(inputs)}`),
      shape("text", { x: mid, y: foot + 50, class: "soft" }, `${integer(operations)} a seed`));
  }
  return drawing;
}
