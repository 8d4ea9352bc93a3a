/* Every table sorts by each of its columns. A cell with a number and a unit sorts by its quantity. */
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
  /* On a narrow screen a line of the answer is a block, in which each figure has its name. */
  const name = (table) => {
    const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, column) => { if (![0, 2].includes(column)) cell.dataset.name = names[column].split(":")[0]; });
    }
  };
  const enable = (table) => {
    if (!table.tHead || !table.tBodies.length) return;
    if (table.closest(".answer")) name(table);
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.title = "Sort by this column";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => sort(table, column, heading));
    });
  };
  const make = (head, rows, right = []) => {
    const table = document.createElement("table");
    const line = table.createTHead().insertRow();
    head.forEach((name, column) => {
      const cell = document.createElement("th");
      cell.scope = "col";
      if (right.includes(column)) cell.className = "r";
      cell.textContent = name;
      line.append(cell);
    });
    const body = table.createTBody();
    for (const row of rows) {
      const made = body.insertRow();
      row.forEach((text, column) => {
        const cell = made.insertCell();
        cell.textContent = text;
        if (right.includes(column)) cell.className = "r";
      });
    }
    enable(table);
    return table;
  };
  /* A box that scrolls can be scrolled with the keyboard. */
  const watch = (box) => new ResizeObserver(() => {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }).observe(box);
  /* A link into a folded part opens it. */
  const unfold = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let part = target.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  document.querySelectorAll("table").forEach(enable);
  document.querySelectorAll(".scroll").forEach(watch);
  unfold();
  return { make, watch, quantity };
})();
