// Lets the keyboard scroll code and tables that are wider than the page. The theme does so for code alone, while it is in
// view and a mouse is there, and takes it back otherwise.
const reachWideBoxes = () => {
  for (const box of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) {
    if (box.scrollWidth > box.clientWidth && box.tabIndex !== 0) box.tabIndex = 0;
  }
};
new ResizeObserver(reachWideBoxes).observe(document.body);
new MutationObserver(reachWideBoxes).observe(document.body, { subtree: true, attributeFilter: ["tabindex"] });

// Draws a picture's curves anew, to point at and to zoom, where a coordinator serves the guide: it has Plotly. Elsewhere the
// picture stays.
const library = new URL("../plotly.min.js", document.currentScript.src);
const loadScript = (address) =>
  new Promise((resolve, reject) => {
    const script = Object.assign(document.createElement("script"), { src: address, onload: resolve, onerror: reject });
    document.head.append(script);
  });
const drawCurves = async (picture) => {
  const [answer] = await Promise.all([fetch(picture.dataset.curves), loadScript(library)]);
  const { data, layout } = await answer.json();
  const panels = layout.grid.columns;
  const isNarrow = picture.clientWidth < 240 * panels;
  const box = document.createElement("div");
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", picture.alt);
  picture.replaceWith(box);
  const transparent = "rgba(0, 0, 0, 0)"; // the page's own background, light or dark
  const look = {
    grid: { ...layout.grid, rows: isNarrow ? panels : 1, columns: isNarrow ? 1 : panels },
    height: isNarrow ? 340 * panels : 400,
    paper_bgcolor: transparent,
    plot_bgcolor: transparent,
    font: { color: getComputedStyle(box).color },
    legend: { orientation: "h", yanchor: "bottom", y: 1.02 },
    margin: { l: 60, r: 10, t: 10, b: 50 },
  };
  try {
    await Plotly.newPlot(box, data, { ...layout, ...look }, { responsive: true, displayModeBar: false });
  } catch (error) {
    box.replaceWith(picture);
    throw error;
  }
};
for (const picture of document.querySelectorAll("img[data-curves]")) {
  drawCurves(picture).catch((error) => console.info("The curves stay a picture:", error));
}
