// Lets the keyboard scroll code and tables that are wider than the page.
// The theme does so for code alone, only once the code has been in view, and undoes it on touch screens.
function letKeyboardScroll() {
  for (const box of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) {
    const isWide = box.scrollWidth > box.clientWidth;
    if (isWide && box.tabIndex !== 0) box.tabIndex = 0;
    if (!isWide && box.hasAttribute("tabindex")) box.removeAttribute("tabindex");
  }
}
new ResizeObserver(letKeyboardScroll).observe(document.body);
new MutationObserver(letKeyboardScroll).observe(document.body, { subtree: true, attributeFilter: ["tabindex"] });
