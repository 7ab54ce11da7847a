// The binomial schedule: which values of a chain are stored, and the order in which its steps run forward and backward.

// The moves of a schedule: forward steps, stored values and reversals, in the order in which they happen.
function movesOf({ length, begins, stored_for: storedFor }) {
  const moves = [];
  const kept = [{ at: 0, from: 0, to: null }];
  let time = 0;
  const forward = (from, to, target) => {
    for (let j = from; j < to; j += 1) {
      moves.push({ kind: "step", at: j, time });
      time += 1;
      if (storedFor[j + 1] === target) kept.push({ at: j + 1, from: time, to: null });
    }
  };
  forward(0, length - 1, length - 1);
  for (let i = length - 1; i >= 0; i -= 1) {
    if (i < length - 1) forward(begins[i], i, i);
    moves.push({ kind: "back", at: i, time });
    time += 1;
    for (const value of kept) if (value.at === i && value.to === null) value.to = time;
  }
  return { moves, kept, time };
}

function showCheckpointing(root, schedules) {
  let [length, snapshots, shown] = [16, 3, null];
  const lengths = [...new Set(schedules.map((each) => each.length))];
  const controls = element("div", { class: "row" });
  const facts = element("div", { class: "facts" });
  const slider = element("input", { type: "range", min: 0, step: 1, id: "checkpointing-time", "aria-label": "Time" });
  const picture = element("div", { class: "panel" });
  slider.addEventListener("input", () => { shown = Number(slider.value); draw(); });
  root.append(controls, facts, element("div", { class: "player" }, element("label", { for: "checkpointing-time" }, "Time"), slider), picture,
    element("p", { class: "note" }, "Time runs down. A blue line is a forward step from one value to the next, a red line the reversal of a step, which reads the value at its left "
      + "end; a wide band is a value that is stored. The forward steps are those of binomial_steps: they do not include the evaluation in which each pullback is formed. ",
      element("code", {}, "jaxblocks.ad.scan(f, init, xs, checkpoint=c)"), " runs this schedule."));

  function build() {
    const possible = schedules.filter((each) => each.length === length).map((each) => each.snapshots);
    if (!possible.includes(snapshots)) snapshots = possible[possible.length - 1];
    controls.replaceChildren(
      choice("Steps of the chain, L", lengths.map((n) => [String(n), String(n)]), String(length), (value) => { length = Number(value); shown = null; build(); }, "checkpointing-length"),
      choice("Values stored at a time, c", possible.map((c) => [String(c), String(c)]), String(snapshots), (value) => { snapshots = Number(value); shown = null; build(); }, "checkpointing-snapshots"));
    draw();
  }

  function draw() {
    const schedule = schedules.find((each) => each.length === length && each.snapshots === snapshots);
    const { moves, kept, time } = movesOf(schedule);
    slider.max = time;
    if (shown === null) shown = time;
    slider.value = shown;
    const fact = (what, id, text) => element("div", {}, element("div", { class: "what" }, what), element("div", { class: "figure", id }, text));
    const done = moves.filter((move) => move.time < shown);
    const alive = kept.filter(({ from, to }) => from <= shown && (to === null || to > shown)).length;
    facts.replaceChildren(
      fact(`values stored now, at most ${snapshots} of ${length}`, "checkpointing-stored", String(alive)),
      fact("forward steps in all", "checkpointing-steps", integer(schedule.steps)),
      fact("if everything is stored", "checkpointing-plain", integer(length - 1)),
      fact("forward steps so far", "checkpointing-so-far", integer(done.filter(({ kind }) => kind === "step").length)));
    const W = roomFor();
    const [left, right, top] = [24, W - 16, 24];
    const H = Math.min(620, Math.max(260, 12 * time)) + top + 10;
    const x = (i) => left + ((right - left) * i) / length;
    const y = (t) => top + ((H - top - 10) * t) / time;
    const drawing = shape("svg", { class: "diagram", viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `Schedule for ${length} steps with ${snapshots} stored values: ${schedule.steps} forward steps` });
    for (let i = 0; i <= length; i += 1) {
      drawing.append(shape("line", { class: "grid", x1: x(i), x2: x(i), y1: top, y2: H - 10 }));
      if (i % Math.ceil((22 * length) / W) === 0) drawing.append(shape("text", { x: x(i), y: 14, "text-anchor": "middle", class: "soft" }, `h${subscript(i)}`));
    }
    for (const { at, from, to } of kept) {
      if (from < shown) drawing.append(shape("line", { class: "kept", x1: x(at), x2: x(at), y1: y(from), y2: y(Math.min(shown, to ?? time)) }));
    }
    for (const { kind, at, time: t } of done) {
      const [x1, x2] = kind === "step" ? [x(at), x(at + 1)] : [x(at + 1), x(at)];
      drawing.append(shape("line", { class: kind, x1, x2, y1: y(t), y2: y(t + 1) }));
    }
    picture.replaceChildren(drawing);
  }

  build();
}
