// Tabs according to the WAI-ARIA Authoring Practices: arrow keys, Home and End select, Tab enters the panel.

const STEPS = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 };

function choose(tabs, chosen) {
  for (const tab of tabs) {
    const selected = tab === chosen;
    tab.setAttribute("aria-selected", selected);
    tab.tabIndex = selected ? 0 : -1;
    document.getElementById(tab.getAttribute("aria-controls")).hidden = !selected;
  }
}

// Makes a tablist's buttons switch between the panels that they name.
export function makeTabs(list) {
  const tabs = [...list.querySelectorAll('[role="tab"]')];
  const rightToLeft = getComputedStyle(list).direction === "rtl";
  list.addEventListener("click", (event) => {
    const tab = event.target.closest('[role="tab"]');
    if (tab) choose(tabs, tab);
  });
  list.addEventListener("keydown", (event) => {
    const at = tabs.indexOf(document.activeElement);
    const across = event.key.endsWith("Left") || event.key.endsWith("Right");
    const step = (STEPS[event.key] ?? 0) * (rightToLeft && across ? -1 : 1);
    const next = { Home: tabs[0], End: tabs.at(-1) }[event.key] ?? (step && tabs.at((at + step) % tabs.length));
    if (!next) return;
    event.preventDefault();
    choose(tabs, next);
    next.focus();
  });
  choose(tabs, tabs[0]);
}
