/* What is shown: levels, workload, records per commit, backends. Listeners hear of every change. */
const filters = (() => {
  const form = document.getElementById("filters");
  const listeners = [];
  const panels = [...document.querySelectorAll("figure.panel")];
  const every = (name) => [...new Set(panels.map((panel) => panel.dataset[name]).filter(Boolean))];
  const order = ["CHANGELOG", "PROCESS", "DISK"];
  const levels = every("level").sort((a, b) => order.indexOf(a) - order.indexOf(b));
  const sizes = every("size").sort((a, b) => a - b);
  const workloads = every("workload");
  const element = tables.make;
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
  const swatch = (backend) => document.querySelector(`#looks [data-look="${CSS.escape(backend)}"] svg`)?.cloneNode(true) ?? "";
  const said = element("span", { className: "soft", id: "shown" });
  said.setAttribute("role", "status");
  form.append(
    boxes("levels", "Durability level", levels),
    choice("workload", "Workload of tasks", [["", "all"], ...workloads.map((each) => [each, each])], workloads[0] ?? ""),
    choice("size", "Records per commit", [["", "all"], ...sizes.map((each) => [each, Number(each).toLocaleString("en")])], ""),
    boxes("backends", "Backends", page.backends, swatch),
    element("div", { className: "end" }, element("button", { type: "reset", textContent: "Show all again" }), said),
  );
  document.getElementById("looks").hidden = true;
  const checked = (name) => [...form.querySelectorAll(`input[name=${name}]`)].filter((box) => box.checked).map((box) => box.value);
  const defaults = { workload: workloads[0] ?? "", size: "" };
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
    hasBackend: (backend) => !page.backends.includes(backend) || checked("backends").includes(backend),
    holds: ({ level, workload, size }) => (!level || checked("levels").includes(level))
      && (!workload || !form.elements.workload.value || workload === form.elements.workload.value)
      && (!size || !form.elements.size.value || size === form.elements.size.value),
  };
})();
