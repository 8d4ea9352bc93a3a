/* Charts: values at the pointer and on the arrow keys, figures as a table, and what the filters leave. */
const charts = (() => {
  const tip = document.getElementById("tip");
  const number = (text) => {
    const value = Number(text);
    if (Number.isNaN(value)) return text;
    return value.toLocaleString("en", Math.abs(value) >= 1000 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 3 });
  };
  /* The keyboard's value stays beside its mark while the page scrolls; that of the pointer goes. */
  let again = null;
  const show = (text, x, y, renew = null) => {
    again = renew;
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(x + 12, innerWidth - width - 8))}px`;
    tip.style.top = `${y + 16 + height > innerHeight ? y - height - 10 : y + 16}px`;
  };
  const hide = () => { tip.hidden = true; };

  const headOf = (svg) => (svg.dataset.kind === "matrix" ? ["valid", "trials"] : svg.dataset.h?.split("|") ?? ["value", "from", "to"]);
  /* What a chart shows now: for each value its subject, what it is of, its numbers, and its place on the screen. */
  const cellsOf = (svg) => {
    const frame = svg.querySelector("[data-steps]");
    const steps = frame.dataset.steps.split("|");
    const [left, width] = [Number(frame.dataset.left), Number(frame.dataset.width)];
    const scale = svg.getScreenCTM();
    return [...svg.querySelectorAll(".row")].filter((row) => row.style.display !== "none").flatMap((row) => {
      const middle = row.transform.baseVal[0].matrix.f + 10;
      return row.dataset.c.split(" ").flatMap((counts, at) => (counts === "-" ? [] : [{
        subject: subjects.of(row), of: steps[at], numbers: counts === "0" ? ["not tried", "-"] : counts.split("/"),
        x: scale.e + (left + (at + 0.5) * width) * scale.a, y: scale.f + middle * scale.d,
      }]));
    });
  };
  const marksOf = (svg) => [...svg.querySelectorAll(".m")].filter((mark) => mark.getClientRects().length).map((mark) => {
    const box = mark.getBoundingClientRect();
    return {
      subject: mark.dataset.s ?? subjects.of(mark.closest("g")), of: mark.dataset.m ?? "",
      numbers: mark.dataset.v.split(" "), x: box.x + box.width / 2, y: box.y + box.height / 2,
    };
  });
  const valuesOf = (svg) => (svg.dataset.kind === "matrix" ? cellsOf(svg) : marksOf(svg));
  const told = (svg, value) => {
    const unit = svg.closest("[data-unit]")?.dataset.unit ?? "";
    const [first, low, high] = value.numbers.map(number);
    const subject = [value.subject, value.of].filter(Boolean).join(", ");
    if (svg.dataset.kind === "matrix") return `${subject}: ${low === "-" ? first : `${first} of ${low} valid`}`;
    if (!svg.dataset.h) return `${subject}\n${first} ${unit}${high ? ` (${low} to ${high})` : ""}`;
    const parts = headOf(svg).flatMap((name, at) => (["from", "to"].includes(name) ? [] : [[name, at]]));
    return [subject, ...parts.map(([name, at]) => {
      const [middle, from, to] = value.numbers.slice(at, at + 3).map(number);
      const range = headOf(svg)[at + 1] === "from" && from !== "-" ? ` (${from} to ${to})` : "";
      return `${name}: ${middle}${range}`;
    })].join("\n");
  };

  const watch = (svg) => {
    svg.addEventListener("pointermove", (event) => {
      const far = (value) => Math.hypot(value.x - event.clientX, value.y - event.clientY);
      const nearest = valuesOf(svg).reduce((best, value) => (best && far(best) <= far(value) ? best : value), null);
      if (nearest && far(nearest) < 40) show(told(svg, nearest), event.clientX, event.clientY);
      else hide();
    });
    svg.addEventListener("pointerleave", hide);
    let at = -1;
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") hide();
      const values = step ? valuesOf(svg) : [];
      if (!values.length) return;
      event.preventDefault();
      at = at < 0 && step < 0 ? values.length - 1 : (at + step + values.length) % values.length;
      const place = () => {
        const value = valuesOf(svg)[at];
        if (value) show(told(svg, value), value.x, value.y, place);
      };
      place();
    });
    svg.addEventListener("blur", () => { at = -1; hide(); });
  };
  document.addEventListener("scroll", () => (again && !tip.hidden ? again() : hide()), { passive: true });

  const titleOf = (svg) => svg.closest("figure").querySelector("figcaption").textContent;
  const shown = (plot) => [...plot.querySelectorAll("figure:not([hidden]) svg[data-kind]")];
  const rowsOf = (plot) => {
    const charts = shown(plot);
    if (!charts.length) return [["the filters leave nothing"]];
    const head = headOf(charts[0]);
    const rows = charts.flatMap((svg) => valuesOf(svg).map((value) => [
      titleOf(svg), value.subject, value.of, ...head.map((_, at) => value.numbers[at] ?? "-"),
    ]));
    return [["panel", "subject", "of", ...head.map((name) => (name === "value" ? plot.dataset.unit : name))], ...rows];
  };
  /* The numbers of marks are measured where they are drawn, so their table is made when it is opened. */
  const addTable = (plot) => {
    const box = tables.make("div", { className: "scroll r4 r5 r6 r7 r8 r9 r10 r11" });
    const details = tables.make("details", { className: "figures" }, tables.make("summary", { textContent: "These figures as a table" }), box);
    tables.watch(box);
    const refill = () => {
      if (!details.open) return;
      const [head, ...rows] = rowsOf(plot);
      box.replaceChildren(tables.build(head, rows.map((row) => row.map(number))));
      tables.enable(box.firstChild);
    };
    details.addEventListener("toggle", refill);
    plot.append(details, tables.foot(plot.id, () => rowsOf(plot)));
    return refill;
  };

  /* Rows that are left out leave no gap. */
  const stack = (svg, hasBackend) => {
    const rows = [...svg.querySelectorAll(".row")];
    if (!rows.length) return;
    const [start, pitch, height] = [Number(svg.dataset.start ??= rows[0].transform.baseVal[0].matrix.f), 20, Number(svg.dataset.height ??= svg.viewBox.baseVal.height)];
    const left = rows.filter((row) => hasBackend(subjects.of(row)));
    left.forEach((row, place) => row.setAttribute("transform", `translate(0 ${start + place * pitch})`));
    const gone = (rows.length - left.length) * pitch;
    svg.querySelector(".groups")?.setAttribute("transform", `translate(0 ${-gone})`);
    svg.setAttribute("viewBox", `0 0 360 ${height - gone}`);
  };
  const plots = [...document.querySelectorAll(".plot")];
  const refills = plots.map(addTable);
  document.querySelectorAll("svg[data-kind]").forEach(watch);
  const apply = () => {
    let [left, all] = [0, 0];
    for (const plot of plots) {
      const none = plot.querySelector(".none");
      for (const figure of plot.querySelectorAll("figure.panel")) {
        const svg = figure.querySelector("svg[data-kind]");
        const groups = [...svg.querySelectorAll("g[class]:not(.groups)")];
        for (const group of groups) group.style.display = filters.hasBackend(subjects.of(group)) ? "" : "none";
        stack(svg, filters.hasBackend);
        figure.hidden = !filters.holds(figure.dataset) || !groups.some((group) => filters.hasBackend(subjects.of(group)));
        all += 1;
        left += !figure.hidden;
      }
      if (none) none.hidden = Boolean(shown(plot).length);
    }
    refills.forEach((refill) => refill());
    filters.say(`${left} of ${all} panels are shown.`);
  };
  filters.onChange(apply);
  apply();
  document.documentElement.dataset.drawn = "yes";
  return { valuesOf, rowsOf };
})();
