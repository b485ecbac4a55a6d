// Plotly, loaded when a page first draws with it, and what its charts here have in common.

let library;

// The library; it comes from its wheel, and a browser keeps it.
export function loadPlotly() {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    const version = new URL(import.meta.url).pathname.split("/").at(-2);
    script.src = new URL(`plotly.min.js?${version}`, document.baseURI);
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      library = undefined; // the next chart may try again
      script.remove();
      reject(new Error("the charts' library did not load"));
    };
    document.head.append(script);
  });
  return library;
}

// A color of the style, by its custom property.
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// An axis in the style's colors.
export function axis(title, more = {}) {
  return { title: { text: title }, gridcolor: color("--line"), linecolor: color("--line"), zeroline: false, ...more };
}

// The layout that all charts begin with.
export function layout(more = {}) {
  return {
    margin: { l: 56, r: 12, t: 32, b: 44 },
    height: 360,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", color: color("--muted"), size: 13 },
    hoverlabel: { bgcolor: color("--card"), bordercolor: color("--line"), font: { color: color("--text") } },
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", itemclick: false, itemdoubleclick: false },
    ...more,
  };
}

// Its tips are in English, and fade in and out.
export const OPTIONS = { responsive: true, displaylogo: false, displayModeBar: false, showTips: false };

// Calls when light becomes dark or dark light, for charts take their colors when they are drawn.
export function onColorsChange(redraw) {
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}
