/* The picker: the backend with the best weighted mean of what matters, and why. The choice is in the address. */
const picker = (() => {
  const form = document.getElementById("picker");
  const { levels, indifference, rounds } = page.picker;
  if (!levels.some((level) => Object.keys(level.backends).length)) return null;
  const wishes = ["speed", "recovery", "memory", "disk"];
  const weighs = ["not at all", "a little", "much", "most"];
  const best = { speed: "the fastest", recovery: "the soonest ready", memory: "the least memory", disk: "the least disk" };
  const field = (name) => form.elements[name];
  const levelNow = () => levels[field("durability").value];
  const weightsNow = () => Object.fromEntries(wishes.map((wish) => [wish, Number(field(wish).value)]));

  /* A backend's distance from the best, as the logarithm of a weighted geometric mean of ratios. */
  const ranked = (level, weights) => {
    const asked = wishes.filter((wish) => weights[wish] > 0);
    const all = asked.reduce((sum, wish) => sum + weights[wish], 0);
    const least = Object.fromEntries(asked.map((wish) => [wish, Math.min(...Object.values(level.backends).map((own) => own[wish]?.[0] ?? Infinity))]));
    return Object.entries(level.backends)
      .filter(([, own]) => asked.every((wish) => own[wish]))
      .map(([backend, own]) => ({
        backend, own, least,
        far: asked.reduce((sum, wish) => sum + weights[wish] * Math.log(own[wish][0] / least[wish]), 0) / (all || 1),
      }))
      .sort((a, b) => a.far - b.far || a.backend.localeCompare(b.backend));
  };
  /* The figures that matter, each beside that of the best backend. */
  const reason = ({ own, least }, asked) => asked.map((wish) => {
    const [winner, figures] = Object.entries(levelNow().backends).find(([, other]) => other[wish]?.[0] === least[wish]);
    return own[wish][1] + (figures === own ? `, ${best[wish]}` : ` (${winner}: ${figures[wish][1]})`);
  });

  const answer = () => {
    const [level, weights] = [levelNow(), weightsNow()];
    const asked = wishes.filter((wish) => weights[wish] > 0);
    const list = ranked(level, weights);
    if (!asked.length) return { words: "Move a slider: nothing matters yet.", list: [], asked };
    if (!list.length) return { words: "Not measured in this run.", list, asked };
    if (list.some((each) => asked.some((wish) => each.own[wish][2] < rounds))) {
      return { words: "Not decided: some of these figures were measured once.", list, asked };
    }
    const decided = asked.length === 1 ? level.picks[asked[0]] : null;
    if (decided?.open.length) {
      return { words: `Not decided by this run: ${decided.open.join(" or ")}.`, list, asked };
    }
    const first = list.find((each) => each.backend === decided?.backend) ?? list[0];
    const ties = decided?.backend ? decided.ties
      : list.filter((each) => each !== first && each.far - first.far < Math.log(1 + indifference)).map((each) => each.backend);
    return { first, ties, list, asked };
  };

  const say = () => {
    const { words, first, ties, list, asked } = answer();
    const place = document.getElementById("pick");
    const parts = [];
    if (words) parts.push(tables.make("p", { className: "picked-name", textContent: words }));
    if (first) {
      parts.push(tables.make("p", { className: "picked-name" }, "Take ", tables.make("strong", { textContent: first.backend })));
      parts.push(tables.make("ul", {}, ...reason(first, asked).map((words) => tables.make("li", { textContent: words }))));
      const within = `${Math.round(indifference * 100)} %`;
      if (ties.length) parts.push(tables.make("p", { textContent: `No difference above ${within}: ${ties.join(", ")}.` }));
    }
    const rest = list.filter((each) => each !== first).map((each) => tables.make(
      "li", {}, tables.make("span", { textContent: each.backend }), ` ${asked.map((wish) => each.own[wish][1]).join(", ")}`,
    ));
    if (rest.length) {
      parts.push(tables.make("details", { className: "rest", open: place.querySelector("details")?.open ?? matchMedia("(min-width: 60rem)").matches },
        tables.make("summary", { textContent: first ? "The others, the best first" : "All, the best median first" }), tables.make("ol", {}, ...rest)));
    }
    const without = Object.keys(levelNow().backends).filter((name) => list.length && !list.some((each) => each.backend === name));
    if (without.length) parts.push(tables.make("p", { textContent: `Not compared, for lack of a figure: ${without.join(", ")}.` }));
    place.replaceChildren(...parts);
    document.querySelectorAll(".scape").forEach((part) => { part.hidden = part.dataset.level !== levelNow().level; });
    document.querySelectorAll(".scape g[class]").forEach((mark) => mark.classList.toggle("picked", subjects.of(mark) === first?.backend));
  };
  const label = () => {
    for (const wish of wishes) {
      const output = field(wish).closest("label").querySelector("output");
      output.textContent = weighs[field(wish).value];
      field(wish).setAttribute("aria-valuetext", output.textContent);
    }
    const { level, promise } = levelNow();
    field("durability").closest("label").querySelector("output").textContent = `${level}: a commit survives ${promise}`;
    field("durability").setAttribute("aria-valuetext", level);
  };
  const address = () => `#pick-${wishes.map((wish) => field(wish).value).join("-")}-${levelNow().level}`;
  const show = () => {
    label();
    say();
    document.getElementById("pick-link").href = address();
  };
  const read = () => {
    const [, weights, level] = /^#pick-(\d(?:-\d){3})-(\w+)$/.exec(location.hash) ?? [];
    const at = levels.findIndex((each) => each.level === level);
    if (at < 0) return;
    weights.split("-").forEach((weight, place) => { field(wishes[place]).value = weight; });
    field("durability").value = at;
    show();
  };
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => {
    show();
    history.replaceState(null, "", address());
  });
  addEventListener("hashchange", read);
  show();
  read();
  return { answer };
})();
