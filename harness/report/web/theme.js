"use strict";
const page = JSON.parse(document.getElementById("data").textContent);

/* The groups of a chart that belong to something measured, and its name: a backend's is known by its class. */
const subjects = {
  of: (group) => group.dataset.b ?? page.looks[/\bb(\d)\b/.exec(group.getAttribute("class"))[1]],
};

/* Light and dark: as the system asks, or as the switch says. All colours are rules of the style. */
const theme = (() => {
  const chosen = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const kept = {
    get: () => { try { return localStorage.getItem("theme"); } catch { return null; } },
    set: (value) => { try { localStorage.setItem("theme", value); } catch { /* A file may have no storage. */ } },
  };
  const apply = () => {
    const isDark = chosen.value === "system" ? system.matches : chosen.value === "dark";
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
  };
  chosen.value = ["light", "dark"].includes(kept.get()) ? kept.get() : "system";
  chosen.closest("label").hidden = false;
  chosen.addEventListener("change", () => { kept.set(chosen.value); apply(); });
  system.addEventListener("change", apply);
  apply();
  return { value: (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim() };
})();
