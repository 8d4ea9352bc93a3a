/* One panel of a plot as a Vega view, with values on hover and on the arrow keys. */
const drawing = (() => {
  const tip = document.getElementById("tip");
  const number = (value) => {
    if (value === 0) return "0";
    const digits = Math.abs(value) >= 100 ? Number(value.toPrecision(3)) : value;
    return digits.toLocaleString("en", Math.abs(value) >= 100 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 3 });
  };
  const withInterval = (mark, unit) => {
    const range = mark.low == null ? "" : ` (${number(mark.low)} to ${number(mark.high)})`;
    return `${number(mark.value)} ${unit}${range}`;
  };

  /* The panel whose value is told at its corner, as the keyboard asked; null where it is told at the pointer. */
  let panel = null;
  const show = (text, x, y, of = null) => {
    panel = of;
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(x + 12, innerWidth - width - 8))}px`;
    tip.style.top = `${y + 16 + height > innerHeight ? y - height - 10 : y + 16}px`;
  };
  const hide = () => { tip.hidden = true; };
  const atCorner = (text, element) => {
    const box = element.getBoundingClientRect();
    show(text, box.left, box.top, element);
  };
  const handler = (_, event, __, value) => {
    if (value == null || value === "") hide();
    else show(value, event.clientX, event.clientY);
  };

  const style = () => {
    const [ink, soft, line] = ["--ink", "--soft", "--line"].map(theme.value);
    return {
      aria: false,
      background: null,
      font: getComputedStyle(document.body).fontFamily,
      view: { stroke: null },
      text: { color: ink },
      axis: { domainColor: line, gridColor: line, tickColor: line, labelColor: soft, labelFontSize: 12, labelPadding: 6, ticks: false },
      axisY: { labelLimit: innerWidth < 500 ? 150 : 220, labelColor: ink },
      axisX: { domain: false, tickCount: innerWidth < 500 ? 3 : 5 },
    };
  };
  const scales = { linear: { type: "linear" }, log: { type: "log", nice: false, padding: 14 } };

  /* Draw a panel into an element. Return what ends the view. */
  const draw = async (element, kind, scale, ticks, values) => {
    const words = { SCALE: scales[scale], TICKS: scale === "log" ? ticks : null, RESULTS: theme.results(), LABEL: null, STEPS: null };
    let text = JSON.stringify(page.charts[kind]);
    for (const [word, replacement] of Object.entries(words)) text = text.replaceAll(`"${word}"`, JSON.stringify(replacement));
    const spec = JSON.parse(text);
    spec.data.values = values;
    /* A chart cannot fit its width and have a height in steps. */
    if (spec.width === "container" && spec.height.step) spec.height = spec.height.step * new Set(values.map((each) => each.subject)).size;
    const { finalize } = await vegaEmbed(element, spec, {
      actions: false, config: style(), defaultStyle: false, mode: "vega-lite", renderer: "svg", tooltip: handler,
    });
    return finalize;
  };

  /* The arrow keys walk through the values of a panel, in their order. */
  const walk = (element, texts) => {
    let at = -1;
    element.onkeydown = (event) => {
      const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") return hide();
      if (!step || !texts.length) return undefined;
      event.preventDefault();
      at = at < 0 && step < 0 ? texts.length - 1 : (at + step + texts.length) % texts.length;
      return atCorner(texts[at], element);
    };
    element.onblur = () => { at = -1; hide(); };
  };
  document.addEventListener("scroll", () => {
    if (panel && !tip.hidden) atCorner(tip.textContent, panel);
    else hide();
  }, { passive: true });
  return { draw, walk, number, withInterval };
})();
