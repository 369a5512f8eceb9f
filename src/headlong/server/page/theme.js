/* Light or dark: as the system says until the user chooses. A classic script, so that it runs before
   the first paint and nothing flashes. */

(() => {
  const KEY = "headlong.theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const chosen = localStorage.getItem(KEY);
    document.documentElement.dataset.theme = chosen ?? (system.matches ? "dark" : "light");
    document.dispatchEvent(new Event("themechange"));
  };
  apply();
  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme-toggle").addEventListener("click", () => {
      const isDark = document.documentElement.dataset.theme === "dark";
      localStorage.setItem(KEY, isDark ? "light" : "dark");
      apply();
    });
  });
})();
