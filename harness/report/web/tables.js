/* Tables: made of their lines where these are long, sorted by each column, downloaded, and found by their address. */
const tables = (() => {
  const scales = {
    us: 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600,
    B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, k: 1e3, M: 1e6, "%": 0.01,
  };
  const quantity = (text) => {
    const found = /^[^\d-]*(-?[\d,]*\.?\d+(?:e[+-]?\d+)?)\s*([a-zA-Z%]*)/.exec(text);
    return found ? Number(found[1].replaceAll(",", "")) * (scales[found[2]] ?? 1) : NaN;
  };
  const textOf = (row, column) => (row.cells[column]?.textContent ?? "").trim();
  const isMissing = (text) => text === "" || text === "-";
  const compare = (column, numeric, sign) => (a, b) => {
    const [x, y] = [textOf(a, column), textOf(b, column)];
    if (isMissing(x) || isMissing(y)) return isMissing(x) - isMissing(y);
    return sign * (numeric ? quantity(x) - quantity(y) : x.localeCompare(y, "en", { numeric: true }));
  };
  const sort = (table, column, heading) => {
    const sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const texts = rows.map((row) => textOf(row, column)).filter((text) => !isMissing(text));
    const numeric = texts.every((text) => /^[<>~]?\s*-?[\d.]/.test(text) && !Number.isNaN(quantity(text)));
    body.append(...rows.sort(compare(column, numeric, sign)));
  };
  const make = (tag, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };

  /* A line with the address of a figure, its rows, and the run that they are of. */
  const foot = (name, rows) => {
    const line = make("p", { className: "foot" }, make("a", { href: `#${name}`, textContent: "Link to this" }));
    const file = make("a", { href: "data:,", textContent: "Rows (CSV)", download: `${name}.csv` });
    file.addEventListener("click", () => {
      const cell = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
      file.href = `data:text/csv;charset=utf-8,${encodeURIComponent(rows().map((row) => row.map(cell).join(",")).join("\n"))}`;
    });
    line.append(file, page.origin);
    return line;
  };
  const rowsOf = (table) => [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim()));

  /* On a narrow screen a line of these tables is a block, in which each figure has its name. */
  const name = (table) => {
    const nameless = table.closest(".answer") ? [0, 2] : [0];
    const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, column) => { if (!nameless.includes(column)) cell.dataset.name = names[column].split(":")[0]; });
    }
  };
  const enable = (table) => {
    if (table.closest(".cards")) name(table);
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      const button = make("button", { type: "button", title: "Sort by this column" }, ...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => sort(table, column, heading));
    });
    const box = table.closest(".scroll[id]");
    if (!box) return;
    table.setAttribute("aria-label", box.previousElementSibling?.textContent.trim().replace(/:$/, "") || document.title);
    box.after(foot(box.id, () => rowsOf(table)));
  };
  /* A box that scrolls can be scrolled with the keyboard. */
  const watch = (box) => new ResizeObserver(() => {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }).observe(box);

  /* A cell of a report's Markdown: code, what is bold, and an interval on a line of its own. */
  const fill = (place, text) => {
    for (const part of text.split(/(\*\*.+?\*\*|`[^`]*`|\([^()]+ to [^()]+\)$)/)) {
      if (part.startsWith("**")) fill(place.appendChild(make("strong")), part.slice(2, -2));
      else if (part.startsWith("`")) place.append(make("code", { textContent: part.slice(1, -1) }));
      else if (/^\(.* to .*\)$/.test(part)) place.append(make("span", { className: "interval", textContent: part }));
      else place.append(part);
    }
  };
  const build = (head, rows) => {
    const table = make("table");
    table.createTHead().insertRow().append(...head.map((text) => make("th", { scope: "col", textContent: text })));
    const body = table.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      for (const text of row) fill(line.insertCell(), text);
    }
    return table;
  };
  /* The lines of a long table have tabs between cells; a quotation mark stands for the cell above. */
  const unpack = (text) => {
    let above = [];
    return text.split("\n").filter(Boolean).map((line) => {
      above = line.split("\t").map((cell, column) => (cell === '"' ? above[column] : cell));
      return above;
    });
  };
  const inflated = (packed) => {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  };
  /* Compressed tables are in one text, with a column in each line. */
  let all = null;
  const columnsOf = async (number) => (await (all ??= inflated(page.tables))).split("\0")[number].split("\n").map((line) => line.split("\t"));
  const linesOf = async (number) => {
    const columns = await columnsOf(number);
    return columns[0].map((_, row) => columns.map((column) => column[row]).join("\t")).join("\n");
  };
  const expand = async (lines) => {
    const { packed } = lines.dataset;
    delete lines.dataset.packed;
    const [head, ...rows] = unpack(packed ? await linesOf(Number(packed)) : lines.textContent);
    const box = make("div", { className: lines.className, id: lines.id }, build(head, rows));
    lines.replaceWith(box);
    watch(box);
    enable(box.firstChild);
  };
  const expandShown = (place) => place.querySelectorAll("pre.scroll, [data-packed]").forEach((lines) => {
    if (lines.checkVisibility()) expand(lines);
  });

  /* A link into a folded part opens it. */
  const unfold = () => {
    const target = /^#[\w.-]+$/.test(location.hash) && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let part = target.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
    target.querySelector(":scope > details")?.setAttribute("open", "");
    target.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  document.addEventListener("toggle", (event) => expandShown(event.target), true);
  document.querySelectorAll("div.scroll > table").forEach(enable);
  document.querySelectorAll(".scroll").forEach(watch);
  expandShown(document);
  unfold();
  return { make, build, enable, foot, watch, quantity };
})();
