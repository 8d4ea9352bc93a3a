/* All plots: a figure for each panel, drawn again when a filter or the colours change. */
const plots = (() => {
  const LOG_FROM = 8;
  const outlines = {
    circle: '<circle cx="11" cy="6" r="4.5" fill="currentColor"/>',
    square: '<path d="M7 2H15V10H7Z" fill="currentColor"/>',
    diamond: '<path d="M11 0 17 6 11 12 5 6Z" fill="currentColor"/>',
    "triangle-up": '<path d="M11 1 16.5 10.5H5.5Z" fill="currentColor"/>',
    cross: '<path d="M9 1H13V4H16V8H13V11H9V8H6V4H9Z" fill="currentColor"/>',
    "triangle-right": '<path d="M6 1 16 6 6 11Z" fill="currentColor"/>',
    "triangle-down": '<path d="M11 11 16.5 1.5H5.5Z" fill="currentColor"/>',
  };
  const shapes = Object.keys(outlines);
  const dotShapes = { o: "circle", D: "diamond", s: "square" };
  const backendShape = (backend) => shapes[Math.max(0, page.backends.indexOf(backend)) % shapes.length];
  const make = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text) made.textContent = text;
    return made;
  };

  /* The values of each kind of panel, sorted, as the chart and the table take them. */
  const kinds = {
    dots: {
      values: (plot, panel) => {
        const dots = panel.dots.filter((dot) => filters.hasBackend(dot.backend));
        const first = new Map();
        for (const dot of dots) if (dot.mark === panel.dots[0].mark) first.set(dot.subject, dot.value);
        const sign = plot.more_is_better ? -1 : 1;
        const place = (dot) => sign * (first.get(dot.subject) ?? 0);
        return [...dots].sort((a, b) => place(a) - place(b) || a.subject.localeCompare(b.subject)).map((dot) => {
          const colour = theme.colour(dot.backend);
          const measure = plot.marks[dot.mark] && dot.mark !== "o" ? `${plot.marks[dot.mark]}: ` : "";
          return {
            subject: dot.subject, backend: dot.backend, value: dot.value, low: dot.low ?? dot.value, high: dot.high ?? dot.value,
            interval: dot.low != null, measure: plot.marks[dot.mark] ?? "", shape: dotShapes[dot.mark] ?? "circle",
            colour, fill: dot.low == null ? theme.value("--paper") : colour,
            text: `${dot.subject}\n${measure}${drawing.withInterval(dot, plot.unit)}`,
          };
        });
      },
    },
    lines: {
      values: (plot, panel) => panel.lines.filter((line) => filters.hasBackend(line.backend)).flatMap((line) => {
        const colour = theme.colour(line.backend);
        return line.values.map((value, place) => ({
          subject: line.backend, backend: line.backend, step: plot.steps[place], measure: plot.steps[place], value,
          shape: backendShape(line.backend), colour, fill: colour,
          text: `${line.backend}\n${plot.label} ${plot.steps[place]}: ${drawing.number(value)} ${plot.unit}`,
        }));
      }),
    },
    history: {
      values: (plot, panel) => panel.points.filter((point) => filters.hasBackend(point.backend)).map((point) => {
        const colour = theme.colour(point.backend);
        return {
          subject: point.backend, backend: point.backend, step: point.step, measure: point.step.replace("|", ", "),
          value: point.value, low: point.low ?? point.value, high: point.high ?? point.value, interval: point.low != null,
          shape: backendShape(point.backend), colour, fill: point.low == null || point.busy ? theme.value("--paper") : colour,
          text: `${point.busy ? "the machine was busy\n" : ""}${point.backend}\n${point.step.replace("|", ", ")}\n${drawing.withInterval(point, plot.unit)}`,
        };
      }),
    },
  };

  const scaleOf = (values) => {
    const ends = values.flatMap((each) => [each.value, each.low ?? each.value, each.high ?? each.value]);
    const positive = Math.min(...ends) > 0;
    if (filters.scale() === "linear" || !positive) return "linear";
    return filters.scale() === "log" || Math.max(...ends) > LOG_FROM * Math.min(...ends) ? "log" : "linear";
  };
  const spoken = (plot, panel, values) => {
    const few = values.slice(0, 12).map((each) => each.text.replaceAll("\n", ", ")).join("; ");
    return `${plot.title}, ${panel.title}. ${few}`;
  };

  const views = new Map();
  const drawPanel = async (plot, panel) => {
    const { figure, chart } = panel;
    views.get(panel)?.();
    views.delete(panel);
    const values = kinds[plot.kind].values(plot, panel);
    figure.hidden = !filters.holds(panel) || !values.length;
    if (figure.hidden) {
      chart.replaceChildren();
      return;
    }
    const scale = scaleOf(values);
    figure.dataset.scale = scale;
    chart.setAttribute("aria-label", spoken(plot, panel, values));
    views.set(panel, await drawing.draw(chart, plot.kind, scale, values));
    drawing.walk(chart, values.map((each) => each.text));
  };

  const icon = (content) => {
    const box = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    box.setAttribute("width", 22);
    box.setAttribute("height", 12);
    box.setAttribute("aria-hidden", "true");
    box.innerHTML = content;
    return box;
  };
  const icons = {
    o: outlines.circle,
    D: outlines.diamond,
    spread: '<path d="M2 6H20" stroke="currentColor" stroke-width="5" stroke-linecap="round" opacity=".45"/>',
    hollow: '<circle cx="11" cy="6" r="4.2" fill="none" stroke="currentColor" stroke-width="1.8"/>',
  };
  const key = (plot) => {
    const list = make("ul", "key");
    const add = (mark, text) => {
      const item = make("li");
      item.append(mark, text);
      list.append(item);
    };
    if (plot.kind === "dots") {
      const dots = plot.panels.flatMap((panel) => panel.dots);
      Object.entries(plot.marks).forEach(([mark, text]) => add(icon(icons[mark] ?? icons.o), text));
      if (dots.some((dot) => dot.low != null)) add(icon(icons.spread), plot.spread);
      if (dots.some((dot) => dot.low == null)) add(icon(icons.hollow), plot.hollow);
    } else {
      const names = new Set(plot.panels.flatMap((panel) => (panel.lines ?? panel.points).map((each) => each.backend)));
      [...names].sort().forEach((backend) => {
        const mark = icon(outlines[backendShape(backend)]);
        mark.dataset.backend = backend;
        mark.style.color = theme.colour(backend);
        add(mark, backend);
      });
      const points = plot.panels.flatMap((panel) => panel.points ?? []);
      if (points.some((point) => point.low != null)) add(icon(icons.spread), "interval of the median");
      if (points.some((point) => point.low == null || point.busy)) add(icon(icons.hollow), "fewer than 5 repeats, or a busy machine");
    }
    return list;
  };

  const tableOf = (plot) => {
    const shown = plot.panels.filter((panel) => !panel.figure.hidden);
    const measured = plot.kind !== "dots" || Object.keys(plot.marks).length;
    const rows = shown.flatMap((panel) => kinds[plot.kind].values(plot, panel).map((each) => [
      panel.title, each.subject, ...(measured ? [each.measure] : []), drawing.number(each.value),
      each.interval ? drawing.number(each.low) : "-", each.interval ? drawing.number(each.high) : "-",
    ]));
    const head = ["panel", "subject", ...(measured ? [plot.kind === "lines" ? plot.label : plot.kind === "history" ? "run" : "measure"] : []), plot.unit, "from", "to"];
    return tables.make(head, rows, [head.length - 3, head.length - 2, head.length - 1]);
  };
  const addTable = (plot, place) => {
    const details = make("details", "figures");
    details.append(make("summary", "", "These figures as a table"));
    const box = make("div", "scroll");
    tables.watch(box);
    details.append(box);
    const fill = () => { if (details.open) box.replaceChildren(tableOf(plot)); };
    details.addEventListener("toggle", fill);
    place.append(details);
    return fill;
  };

  const place = (plot) => {
    const home = document.getElementById(`plot-${plot.name}`);
    home.append(key(plot));
    const panels = make("div", "panels");
    for (const panel of plot.panels) {
      panel.figure = make("figure", "panel");
      panel.chart = make("div", "chart");
      panel.chart.tabIndex = 0;
      panel.chart.setAttribute("role", "img");
      panel.figure.append(make("figcaption", "", panel.title), panel.chart, make("div", "unit", plot.unit_in_words ?? plot.label));
      panels.append(panel.figure);
    }
    home.append(panels);
    plot.refill = addTable(plot, home);
    plot.none = make("p", "soft", "The filters leave nothing of this plot.");
    home.append(plot.none);
  };

  const classes = ["nostep", "untried", "valid", "unknown", "anomaly"];
  const drawMatrix = (plot) => {
    const home = document.getElementById(`plot-${plot.name}`);
    const cells = plot.cells.filter((cell) => filters.levels().includes(cell.level) && filters.hasBackend(cell.backend));
    const names = [...new Set(plot.cells.map((cell) => cell.backend))].sort().filter(filters.hasBackend);
    const places = [...new Set(plot.cells.map((cell) => cell.place))];
    const blank = new Map(plot.blank.map(([where, backend, why]) => [`${where} ${backend}`, why]));
    const table = make("table");
    const head = table.createTHead().insertRow();
    head.append(Object.assign(make("th", "", "failpoint or fault"), { scope: "col" }));
    names.forEach((name) => head.append(Object.assign(make("th", "", name), { scope: "col" })));
    const body = table.createTBody();
    for (const where of places) {
      const row = body.insertRow();
      row.append(Object.assign(make("th", "", where), { scope: "row" }));
      for (const name of names) {
        const own = cells.filter((cell) => cell.place === where && cell.backend === name);
        const sum = (column) => own.reduce((total, cell) => total + cell[column], 0);
        const worst = own.length
          ? Math.max(...own.map((cell) => plot.outcomes.indexOf(cell.result)))
          : plot.outcomes.indexOf(blank.get(`${where} ${name}`) ?? plot.outcomes[1]);
        const cell = row.insertCell();
        cell.className = classes[worst];
        cell.textContent = own.length ? `${sum("valid")}/${sum("trials")}` : "";
        cell.title = `${name}, ${where}: ${own.map((each) => `${each.level} ${each.valid} of ${each.trials} valid`).join(", ") || plot.outcomes[worst]}`;
        if (!own.length) cell.setAttribute("aria-label", plot.outcomes[worst]);
      }
    }
    const list = make("ul", "key");
    plot.outcomes.forEach((text, at) => {
      const item = make("li", "matrix");
      const box = make("span", `box ${classes[at]}`);
      item.append(box, text);
      list.append(item);
    });
    const scroll = make("div", "scroll matrix");
    tables.watch(scroll);
    scroll.append(table);
    home.replaceChildren(list, scroll, make("p", "soft", plot.label));
  };

  /* Panels are drawn one after the other. A later change takes over from one that is under way. */
  let turn = 0;
  const drawAll = async () => {
    const own = (turn += 1);
    document.documentElement.dataset.drawn = "no";
    document.querySelectorAll(".key [data-backend]").forEach((mark) => { mark.style.color = theme.colour(mark.dataset.backend); });
    let [shown, all] = [0, 0];
    for (const plot of page.plots) {
      if (plot.kind === "matrix") drawMatrix(plot);
      for (const panel of plot.panels ?? []) {
        await drawPanel(plot, panel);
        if (own !== turn) return;
        all += 1;
        shown += !panel.figure.hidden;
      }
      if (plot.panels) {
        plot.none.hidden = plot.panels.some((panel) => !panel.figure.hidden);
        plot.refill();
      }
    }
    filters.say(`${shown} of ${all} panels are shown.`);
    document.documentElement.dataset.drawn = "yes";
  };
  page.plots.filter((plot) => plot.panels).forEach(place);
  filters.onChange(drawAll);
  document.addEventListener("themechange", drawAll);
  drawAll();
})();
