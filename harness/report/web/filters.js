/* What is shown: levels, backends, workload, records per commit, scale. Listeners hear of every change. */
const filters = (() => {
  const form = document.getElementById("filters");
  const listeners = [];
  const every = (read) => [...new Set(page.plots.flatMap((plot) => plot.panels.map(read)).filter(Boolean))];
  const order = ["CHANGELOG", "PROCESS", "DISK"];
  const marks = page.plots.flatMap((plot) => plot.panels.flatMap((panel) => panel.values));
  const levels = [...new Set([...every((panel) => panel.level), ...marks.map((mark) => mark.level).filter(Boolean)])]
    .sort((a, b) => order.indexOf(a) - order.indexOf(b));
  const sizes = every((panel) => panel.records_per_commit).sort((a, b) => a - b);
  const workloads = every((panel) => panel.workload);

  const element = (tag, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const boxes = (name, title, values, mark) => element(
    "fieldset", { className: name }, element("legend", { textContent: title }),
    ...values.map((value) => element(
      "label", {}, element("input", { type: "checkbox", name, value, checked: true }), ...(mark ? [mark(value)] : []), value,
    )),
  );
  const choice = (name, title, options, chosen) => {
    const select = element("select", { name }, ...options.map(([value, text]) => element("option", { value, textContent: text })));
    select.value = chosen;
    return element("label", {}, element("span", { className: "name", textContent: title }), select);
  };
  const swatch = (backend) => {
    const mark = element("span", { className: "swatch" });
    mark.dataset.backend = backend;
    return mark;
  };
  const said = element("span", { className: "soft" });
  said.setAttribute("role", "status");
  said.id = "shown";
  form.append(
    boxes("levels", "Durability level", levels),
    choice("workload", "Workload of tasks", [["", "all"], ...workloads.map((each) => [each, each])], workloads[0] ?? ""),
    choice("size", "Records per commit", [["", "all"], ...sizes.map((each) => [each, each.toLocaleString("en")])], ""),
    choice("scale", "Scale", [["auto", "as fits each panel"], ["linear", "linear"], ["log", "logarithmic"]], "auto"),
    boxes("backends", "Backends", page.backends, swatch),
    element("div", { className: "end" }, element("button", { type: "reset", textContent: "Show all again" }), said),
  );
  const colour = () => form.querySelectorAll(".swatch").forEach((mark) => {
    mark.style.background = theme.colour(mark.dataset.backend);
  });
  document.addEventListener("themechange", colour);
  colour();

  const checked = (name) => [...form.querySelectorAll(`input[name=${name}]`)].filter((box) => box.checked).map((box) => box.value);
  const defaults = { workload: workloads[0] ?? "", size: "", scale: "auto" };
  const tell = () => listeners.forEach((listener) => listener());
  form.addEventListener("change", tell);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => {
    form.querySelectorAll("input").forEach((box) => { box.checked = true; });
    for (const [name, value] of Object.entries(defaults)) form.elements[name].value = value;
    tell();
  }));
  return {
    onChange: (listener) => listeners.push(listener),
    say: (text) => { said.textContent = text; },
    scale: () => form.elements.scale.value,
    levels: () => checked("levels"),
    hasMark: (mark) => (!page.backends.includes(mark.backend) || checked("backends").includes(mark.backend))
      && (!mark.level || checked("levels").includes(mark.level)),
    holds: (panel) => (!panel.level || checked("levels").includes(panel.level))
      && (!panel.workload || !form.elements.workload.value || panel.workload === form.elements.workload.value)
      && (!panel.records_per_commit || !form.elements.size.value || String(panel.records_per_commit) === form.elements.size.value),
  };
})();
