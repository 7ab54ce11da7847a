"use strict";
// Elements and numbers as text. Text from the data is only ever set as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function element(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function shape(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function integer(number) {
  return number.toLocaleString("en-US");
}

function ratio(number) {
  if (number === null || number === undefined) return "";
  return number >= 1000 ? integer(Math.round(number)) : Number(number.toPrecision(3)).toString();
}

function bytes(number) {
  if (number === null || number === undefined) return "";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  while (number >= 1000 && i < units.length - 1) { number /= 1000; i += 1; }
  return `${i ? Number(number.toPrecision(3)) : number} ${units[i]}`;
}

function seconds(number) {
  if (number === null || number === undefined) return "";
  if (number < 1e-3) return `${Number((1e6 * number).toPrecision(3))} µs`;
  return number < 1 ? `${Number((1e3 * number).toPrecision(3))} ms` : `${Number(number.toPrecision(3))} s`;
}

function plural(number, word) {
  return `${integer(number)} ${word}${number === 1 ? "" : "s"}`;
}

function subscript(number) {
  return String(number).replace(/\d/g, (digit) => "₀₁₂₃₄₅₆₇₈₉"[digit]);
}

function choice(label, options, selected, change, id) {
  const select = element("select", { id }, options.map(([value, text]) =>
    fill(element("option", { value }), { selected: value === selected ? "" : null }, [text])));
  select.value = selected;
  select.addEventListener("change", () => change(select.value));
  return element("label", {}, `${label} `, select);
}

// The width of a chart in its own units: narrow on a phone, so that its text stays legible.
function roomFor() {
  return Math.max(340, Math.min(900, document.documentElement.clientWidth - 60));
}

// Call `move` with the place of the pointer, from 0 to 1 between the left and the right end of the chart in an SVG. Its
// viewBox has these ends at `left` and, from its right side, at `right`, which is negative.
function draggable(drawing, left, right, move) {
  const place = (event) => {
    const box = drawing.getBoundingClientRect();
    const whole = drawing.viewBox.baseVal.width;
    const x = ((event.clientX - box.left) / box.width) * whole;
    move(Math.min(1, Math.max(0, (x - left) / (whole + right - left))));
  };
  drawing.addEventListener("pointerdown", (event) => { drawing.setPointerCapture(event.pointerId); place(event); });
  drawing.addEventListener("pointermove", (event) => { if (drawing.hasPointerCapture(event.pointerId)) place(event); });
}
