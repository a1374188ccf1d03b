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
    height: heightOf(figure),
    legend: { ...given.legend, maxheight: 10000 },
    margin: { ...given.margin, r: narrow.matches ? 8 : 40 },
    modebar: {
      orientation: "v", bgcolor: "rgba(0,0,0,0)", color: color("--soft"), activecolor: color("--fg"),
    },
    hoverlabel: { bgcolor: color("--card"), font: { color: color("--fg") }, bordercolor: color("--soft") },
    dragmode: narrow.matches ? false : "zoom",
  };
}

// A phone has room for one column of a legend: the chart grows by what the others would have held.
function heightOf(figure) {
  const named = figure.data.length;
  return figure.layout.height + (narrow.matches ? 20 * Math.max(0, named - 3) : 0);
}

function draw() {
  for (const [id, figure] of Object.entries(figures)) {
    document.getElementById(id).style.height = `${heightOf(figure)}px`;
    Plotly.react(id, figure.data, layoutOf(figure), {
      responsive: true, displaylogo: false, displayModeBar: narrow.matches ? false : "hover",
      modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
    });
  }
  document.body.dataset.drawn = Object.keys(figures).length;
}

dark.addEventListener("change", draw);
narrow.addEventListener("change", draw);
draw();
