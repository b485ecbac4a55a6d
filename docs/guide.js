// Lets the keyboard scroll code and tables that are wider than the page.
// The theme does so for code alone, and only once the code has been in view.
new ResizeObserver(() => {
  for (const box of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}).observe(document.body);
