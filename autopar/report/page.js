"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const narrow = window.matchMedia("(max-width: 36rem)");

function layoutOf(figure) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const axis = (given) => ({
    ...given, gridcolor: color("--line"), zerolinecolor: color("--line"),
    linecolor: color("--soft"), tickfont: { size: narrow.matches ? 10 : 12 },
  });
  const given = figure.layout;
  return {
    ...given, xaxis: axis(given.xaxis), yaxis: axis(given.yaxis),
    font: { color: color("--fg"), size: narrow.matches ? 11 : 12, family: "system-ui, sans-serif" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: color("--soft"), activecolor: color("--fg") },
    hoverlabel: { bgcolor: color("--card"), font: { color: color("--fg") }, bordercolor: color("--soft") },
    dragmode: narrow.matches ? false : "zoom",
  };
}

function draw() {
  for (const [id, figure] of Object.entries(figures)) {
    Plotly.react(id, figure.data, layoutOf(figure), {
      responsive: true, displaylogo: false, displayModeBar: narrow.matches ? false : "hover",
      modeBarButtonsToRemove: ["select2d", "lasso2d"],
    });
  }
  document.body.dataset.drawn = Object.keys(figures).length;
}

dark.addEventListener("change", draw);
narrow.addEventListener("change", draw);
draw();
