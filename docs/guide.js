// Lets the keyboard scroll code and tables that are wider than the page. The theme does so for code alone, while it is in
// view and a mouse is there, and takes it back otherwise.
const reachWideBoxes = () => {
  for (const box of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) {
    if (box.scrollWidth > box.clientWidth && box.tabIndex !== 0) box.tabIndex = 0;
  }
};
new ResizeObserver(reachWideBoxes).observe(document.body);
new MutationObserver(reachWideBoxes).observe(document.body, { subtree: true, attributeFilter: ["tabindex"] });
