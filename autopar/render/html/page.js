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
    legend: { ...given.legend, maxheight: 10000 },
    margin: { ...given.margin, r: narrow.matches ? 8 : 40 },
    modebar: {
      orientation: "v", bgcolor: "rgba(0,0,0,0)", color: color("--soft"), activecolor: color("--fg"),
    },
    hoverlabel: { bgcolor: color("--card"), font: { color: color("--fg") }, bordercolor: color("--soft") },
    dragmode: narrow.matches ? false : "zoom",
  };
}

// The legend wraps with the window's width: the chart grows by all of its rows but the first.
const ROW = 25;
function fit(id) {
  const element = document.getElementById(id);
  const legend = element.querySelector("g.legend");
  const rows = legend ? legend.getBBox().height : 0;
  const height = Math.ceil(figures[id].layout.height + Math.max(0, rows - ROW));
  element.style.height = `${height}px`;
  if (height !== element.layout.height) Plotly.relayout(id, { height });
}

function draw() {
  for (const [id, figure] of Object.entries(figures)) {
    Plotly.react(id, figure.data, layoutOf(figure), {
      responsive: true, displaylogo: false, displayModeBar: narrow.matches ? false : "hover",
      modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
    });
    fit(id);
  }
  document.body.dataset.drawn = Object.keys(figures).length;
}

let waiting;
window.addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => Object.keys(figures).forEach(fit), 300);
});
dark.addEventListener("change", draw);
narrow.addEventListener("change", draw);
draw();
