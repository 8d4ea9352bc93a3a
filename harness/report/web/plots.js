/* All plots: a figure for each panel, drawn again when a filter or the colours change. */
const plots = (() => {
  const outlines = {
    circle: '<circle cx="11" cy="6" r="4.5" fill="currentColor"/>',
    square: '<path d="M7 2H15V10H7Z" fill="currentColor"/>',
    diamond: '<path d="M11 0 17 6 11 12 5 6Z" fill="currentColor"/>',
    "triangle-up": '<path d="M11 1 16.5 10.5H5.5Z" fill="currentColor"/>',
    cross: '<path d="M9 1H13V4H16V8H13V11H9V8H6V4H9Z" fill="currentColor"/>',
    "triangle-right": '<path d="M6 1 16 6 6 11Z" fill="currentColor"/>',
    "triangle-down": '<path d="M11 11 16.5 1.5H5.5Z" fill="currentColor"/>',
    spread: '<path d="M2 6H20" stroke="currentColor" stroke-width="5" stroke-linecap="round" opacity=".45"/>',
    hollow: '<circle cx="11" cy="6" r="4.2" fill="none" stroke="currentColor" stroke-width="1.8"/>',
  };
  const make = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text) made.textContent = text;
    return made;
  };

  /* The marks of a panel that the filters leave, with their colours and the words that tell their values. */
  const valuesOf = (plot, panel) => panel.values.filter(filters.hasMark).map((mark) => {
    const colour = theme.colour(mark.backend);
    const told = [mark.busy && "the machine was busy", mark.subject, plot.kind === "matrix" && mark.backend, mark.level];
    const measured = `${mark.measure ? `${mark.measure}: ` : ""}${drawing.withInterval(mark, plot.unit)}`;
    return {
      low: mark.value, high: mark.value, ...mark, interval: mark.low != null,
      colour, fill: mark.hollow ? theme.value("--paper") : colour,
      text: [...told.filter(Boolean), mark.of ? `${measured} of ${mark.of}` : measured].join("\n"),
    };
  });

  const scaleOf = (panel) => (filters.scale() === "auto" || !panel.ticks ? panel.scale : filters.scale());
  const spoken = (plot, panel, values) => {
    const few = values.slice(0, 12).map((each) => each.text.replaceAll("\n", ", ")).join("; ");
    return `${plot.title}, ${panel.title}. ${few}`;
  };

  const views = new Map();
  const drawPanel = async (plot, panel) => {
    const { figure, chart } = panel;
    views.get(panel)?.();
    views.delete(panel);
    const values = valuesOf(plot, panel);
    figure.hidden = !filters.holds(panel) || !values.length;
    if (figure.hidden) {
      chart.replaceChildren();
      return;
    }
    const scale = scaleOf(panel);
    figure.dataset.scale = scale;
    chart.setAttribute("aria-label", spoken(plot, panel, values));
    views.set(panel, await drawing.draw(chart, plot.kind, scale, panel.ticks, values));
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
  const paint = (list) => list.querySelectorAll("[data-backend], [data-rank]").forEach((mark) => {
    mark.style.color = "rank" in mark.dataset ? theme.results()[mark.dataset.rank] : theme.colour(mark.dataset.backend);
  });
  const key = (plot) => {
    const list = make("ul", "key");
    for (const each of plot.key) {
      const mark = icon(outlines[each.hollow ? "hollow" : each.shape]);
      if (each.backend != null) mark.dataset.backend = each.backend;
      if (each.rank != null) mark.dataset.rank = each.rank;
      const item = make("li");
      item.append(mark, each.text);
      list.append(item);
    }
    paint(list);
    return list;
  };

  const tableOf = (plot) => {
    const shown = plot.panels.filter((panel) => !panel.figure.hidden);
    const isMatrix = plot.kind === "matrix";
    const measured = plot.panels.some((panel) => panel.values.some((mark) => mark.measure));
    const rows = shown.flatMap((panel) => valuesOf(plot, panel).map((each) => [
      ...(isMatrix ? [each.level ?? "", each.backend] : [panel.title]), each.subject, ...(measured ? [each.measure ?? ""] : []), drawing.number(each.value),
      ...(isMatrix ? [drawing.number(each.of ?? 0)] : [each.interval ? drawing.number(each.low) : "-", each.interval ? drawing.number(each.high) : "-"]),
    ]));
    const head = isMatrix ? ["level", "backend", "failpoint or fault", plot.unit, "trials"]
      : ["panel", "subject", ...(measured ? [plot.steps || "measure"] : []), plot.unit, "from", "to"];
    return tables.make(head, rows, head.map((_, at) => at).slice(isMatrix ? 3 : -3));
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
    const panels = make("div", plot.kind === "matrix" ? "scroll matrix" : "panels");
    if (plot.kind === "matrix") tables.watch(panels);
    for (const panel of plot.panels) {
      panel.figure = make("figure", "panel");
      panel.chart = make("div", "chart");
      panel.chart.tabIndex = 0;
      panel.chart.setAttribute("role", "img");
      panel.figure.append(make("figcaption", "", panel.title), panel.chart, make("div", "unit", [plot.label, plot.steps].filter(Boolean).join(", by ")));
      panels.append(panel.figure);
    }
    home.append(panels);
    plot.refill = addTable(plot, home);
    plot.none = make("p", "soft", "The filters leave nothing of this plot.");
    home.append(plot.none);
  };

  /* Panels are drawn one after the other. A later change takes over from one that is under way. */
  let turn = 0;
  const drawAll = async () => {
    const own = (turn += 1);
    document.documentElement.dataset.drawn = "no";
    document.querySelectorAll(".key").forEach(paint);
    let [shown, all] = [0, 0];
    for (const plot of page.plots) {
      for (const panel of plot.panels) {
        await drawPanel(plot, panel);
        if (own !== turn) return;
        all += 1;
        shown += !panel.figure.hidden;
      }
      plot.none.hidden = plot.panels.some((panel) => !panel.figure.hidden);
      plot.refill();
    }
    filters.say(`${shown} of ${all} panels are shown.`);
    document.documentElement.dataset.drawn = "yes";
  };
  page.plots.forEach(place);
  filters.onChange(drawAll);
  document.addEventListener("themechange", drawAll);
  drawAll();
})();
