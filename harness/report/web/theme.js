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
  const light = ["#0067a5", "#c2500a", "#00795a", "#a94f86", "#0090b0", "#9c6a00", "#7a4a3c", "#5f6368"];
  const dark = ["#6a9cf5", "#f28e54", "#3fbf97", "#e29bc6", "#7fdcec", "#f0bd4a", "#cf9f90", "#b4b8bd"];
  return {
    isDark,
    colour: (backend) => {
      const place = page.backends.indexOf(backend);
      return (isDark() ? dark : light)[(place < 0 ? page.backends.length : place) % light.length];
    },
    value: (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim(),
  };
})();
