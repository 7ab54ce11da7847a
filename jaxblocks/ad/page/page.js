// The page: the function that is shown, the keys, and the colors.

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const get = (id) => document.getElementById(id);
  get("version").textContent = data.version;

  let graph = { step: () => {}, jump: () => {}, play: () => {} };
  function show(number) {
    const shown = data.functions[number];
    graph = showGraph(get("graph-body"), shown);
    showCosts(get("costs-body"), shown);
    const given = shown.arguments.map(({ place, shape: text, differentiated }) => `argument ${place}: ${text}${differentiated ? ", differentiated" : ""}`).join("; ");
    get("function-words").textContent = `${given}. Value: ${shown.value}. The Jacobian is ${integer(shown.entries.outputs)} by ${integer(shown.entries.inputs)}.`;
  }

  showChain(get("chain-body"), data.chains);
  showCheckpointing(get("checkpointing-body"), data.schedules);
  if (data.functions.length) {
    const names = data.functions.map(({ name }, i) => [String(i), name]);
    const title = data.functions.length > 1
      ? element("div", { class: "row" }, choice("Function", names, "0", (value) => show(Number(value)), "function"))
      : element("p", { class: "row" }, element("strong", { id: "function-name" }, data.functions[0].name));
    get("function-choice").append(element("section", { class: "panel", style: "margin-top: 2rem; padding: 1rem" }, title, element("p", { class: "note", id: "function-words", style: "margin: 0; overflow-wrap: anywhere" })));
    show(0);
  } else {
    for (const id of ["graph", "costs"]) { get(id).remove(); document.querySelector(`nav a[href="#${id}"]`).remove(); }
  }

  // Keys of the graph, wherever they have no other meaning.
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select, textarea, summary, [tabindex]") || event.altKey || event.ctrlKey || event.metaKey) return;
    const isButton = event.target.closest("button, a");
    const act = { ArrowRight: () => graph.step(1), ArrowLeft: () => graph.step(-1), Home: () => graph.jump(false), End: () => graph.jump(true), " ": isButton ? null : () => graph.play() }[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let isDark = dark.matches;
  const theme = get("theme");
  const paint = () => { theme.textContent = isDark ? "Light" : "Dark"; };
  theme.addEventListener("click", () => { isDark = !isDark; document.documentElement.style.colorScheme = isDark ? "dark" : "light"; paint(); });
  dark.addEventListener("change", () => { if (!document.documentElement.style.colorScheme) { isDark = dark.matches; paint(); } });
  paint();
  document.documentElement.dataset.ready = "yes";
})();
