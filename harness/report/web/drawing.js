/* One panel of a plot as a Vega view, with values on hover and on the arrow keys. */
const drawing = (() => {
  const tip = document.getElementById("tip");
  const number = (value) => {
    if (value === 0) return "0";
    const digits = Math.abs(value) >= 100 ? Number(value.toPrecision(3)) : value;
    return digits.toLocaleString("en", Math.abs(value) >= 100 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 3 });
  };
  const withInterval = (dot, unit) => {
    const range = dot.low == null ? "" : ` (${number(dot.low)} to ${number(dot.high)})`;
    return `${number(dot.value)} ${unit}${range}`;
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
      axis: { domainColor: line, gridColor: line, tickColor: line, labelColor: soft, labelFontSize: 12, labelPadding: 6, ticks: false },
      axisY: { labelLimit: innerWidth < 500 ? 150 : 220, labelColor: ink },
      axisX: { domain: false, tickCount: innerWidth < 500 ? 3 : 5 },
    };
  };
  const LINE = 22;
  const scales = { linear: { type: "linear" }, log: { type: "log", nice: false, padding: 14 } };
  /* Ticks of a logarithmic axis: 1, 2, 5 or 1, 3 or 1 of each power of ten, or even ones where all lie within one. */
  const ticks = (low, high) => {
    const steps = high > 1000 * low ? [1] : high > 30 * low ? [1, 3] : [1, 2, 5];
    const powers = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) powers.push(power);
    const all = powers.flatMap((power) => steps.map((step) => Number((step * 10 ** power).toPrecision(2))));
    return all.filter((tick) => tick >= low * 0.8 && tick <= high * 1.25);
  };

  /* Draw into an element. Return what ends the view. */
  const draw = async (element, kind, scale, values) => {
    const spec = structuredClone(page.charts[kind]);
    spec.data.values = values;
    spec.height ??= LINE * new Set(values.map((each) => each.subject)).size;
    const ends = values.flatMap((each) => [each.value, each.low ?? each.value, each.high ?? each.value]);
    const encodings = [spec.encoding, ...spec.layer.map((layer) => layer.encoding)];
    for (const channel of encodings.flatMap((each) => Object.values(each)).filter((each) => each.scale === "SCALE")) {
      channel.scale = scales[scale];
      if (scale === "log") channel.axis.values = ticks(Math.min(...ends), Math.max(...ends));
    }
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
