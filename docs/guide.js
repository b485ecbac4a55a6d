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
const drawCurves = async (picture) => {
  const [answer] = await Promise.all([fetch(picture.dataset.curves), loadScript(library)]);
  const { data, layout } = await answer.json();
  const transparent = "rgba(0, 0, 0, 0)"; // the page's own background, light or dark
  const box = document.createElement("div");
  picture.after(box);
  await Plotly.newPlot(
    box,
    data,
    {
      ...layout,
      paper_bgcolor: transparent,
      plot_bgcolor: transparent,
      font: { color: getComputedStyle(picture).color },
      legend: { orientation: "h", y: -0.2 },
      margin: { l: 60, r: 10, t: 10 },
    },
    { responsive: true, displaylogo: false },
  );
  picture.remove();
};
const loadScript = (address) =>
  new Promise((resolve, reject) => {
    const script = Object.assign(document.createElement("script"), { src: address, onload: resolve, onerror: reject });
    document.head.append(script);
  });
for (const picture of document.querySelectorAll("img[data-curves]")) {
  drawCurves(picture).catch((error) => console.info("The curves stay a picture:", error));
}
