// Runs before anything is painted, so that a page kept dark doesn't flash white.
try {
  const kept = localStorage.getItem("penstock.theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch {
  // No storage: the system's preference decides.
}
