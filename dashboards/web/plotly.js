// Plotly, loaded when a page first draws with it, and the common settings of our charts.

let library;

// Loads the library, which the server takes from Plotly's wheel and browsers cache.
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

// Returns the color of a custom property.
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Returns an axis in the style's colors.
export function axis(title, more = {}) {
  return { title: { text: title }, gridcolor: color("--line"), linecolor: color("--line"), zeroline: false, ...more };
}

// Returns the common layout of all charts.
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

// Plotly's own tips are in English, and fade in and out.
export const OPTIONS = { responsive: true, displaylogo: false, displayModeBar: false, showTips: false };

// Calls `listener` when light or dark mode changes, because charts get their colors when drawn.
export function onColorsChange(redraw) {
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}
