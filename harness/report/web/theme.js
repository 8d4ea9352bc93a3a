"use strict";
const page = JSON.parse(document.getElementById("data").textContent);

/* Light and dark: as the system asks, or as the switch says. What depends on colours listens to "themechange". */
const theme = (() => {
  const chosen = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const kept = {
    get: () => { try { return localStorage.getItem("theme"); } catch { return null; } },
    set: (value) => { try { localStorage.setItem("theme", value); } catch { /* A file may have no storage. */ } },
  };
  const isDark = () => (chosen.value === "system" ? system.matches : chosen.value === "dark");
  const apply = () => {
    document.documentElement.dataset.theme = isDark() ? "dark" : "light";
    document.dispatchEvent(new Event("themechange"));
  };
  chosen.value = ["light", "dark"].includes(kept.get()) ? kept.get() : "system";
  chosen.closest("label").hidden = false;
  chosen.addEventListener("change", () => { kept.set(chosen.value); apply(); });
  system.addEventListener("change", apply);
  apply();
  const colours = () => page.colours[isDark() ? "dark" : "light"];
  return {
    isDark,
    colour: (backend) => {
      const place = page.backends.indexOf(backend);
      const all = colours().backends;
      return all[(place < 0 ? page.backends.length : place) % all.length];
    },
    results: () => colours().outcomes,
    value: (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim(),
  };
})();
