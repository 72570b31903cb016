"use strict";
(() => {
  const panels = JSON.parse(document.getElementById("panels").textContent);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const family = getComputedStyle(document.body).fontFamily;

  const above = { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 };

  // plotly does not break an axis title: on a narrow screen it is set smaller and in lines that fit.
  const fitted = (axis, room) => {
    if (room > 380 || !axis.title.text) return axis;
    const lines = [""];
    axis.title.text.split(" ").forEach((word) => {
      const longer = `${lines.at(-1)} ${word}`.trim();
      if (longer.length > 26) lines.push(word);
      else lines[lines.length - 1] = longer;
    });
    return { ...axis, title: { ...axis.title, text: lines.join("<br>"), font: { size: 12 } } };
  };

  // Ink and grid follow the reader's light or dark scheme; the methods' colours do not.
  const themed = (layout, room) => {
    const axis = { gridcolor: colour("--grid"), linecolor: colour("--rule"), tickcolor: colour("--rule") };
    return {
      ...layout,
      paper_bgcolor: colour("--paper"),
      plot_bgcolor: colour("--paper"),
      font: { ...layout.font, family, color: colour("--ink") },
      legend: above,
      hoverlabel: { bgcolor: colour("--tint"), bordercolor: colour("--rule"), font: { family, color: colour("--ink") } },
      xaxis: { ...axis, ...fitted(layout.xaxis, room) },
      yaxis: { ...axis, ...fitted(layout.yaxis, room) },
    };
  };

  // The page has one legend for all panels; a panel saved by itself needs its own, and its title.
  const save = (panel) => ({
    name: "Save as SVG, with title and legend",
    icon: Plotly.Icons.camera,
    click: (plot) => {
      const layout = {
        ...plot.layout,
        showlegend: true,
        legend: above,
        title: { text: panel.title, x: 0.02, y: 0.97, yanchor: "top" },
        margin: { ...plot.layout.margin, t: 110 },
        width: 960,
        height: 600,
      };
      Plotly.downloadImage({ data: plot.data, layout }, { format: "svg", width: 960, height: 600, filename: panel.id });
    },
  });

  const plots = panels.map((panel) => document.getElementById(panel.id));
  const drawn = panels.map((panel, place) =>
    Plotly.newPlot(plots[place], panel.traces, themed(panel.layout, plots[place].clientWidth), {
      responsive: true,
      displaylogo: false,
      modeBarButtons: [[save(panel), "zoom2d", "pan2d", "resetScale2d"]],
    })
  );

  document.querySelectorAll(".legend button").forEach((button) => {
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", String(shown));
      plots.forEach((plot, place) => {
        const traces = panels[place].traces;
        const mine = traces.flatMap((trace, i) => (trace.meta === button.dataset.method ? [i] : []));
        if (mine.length) Plotly.restyle(plot, { visible: shown }, mine);
      });
    });
  });

  const again = () =>
    plots.forEach((plot, place) => Plotly.react(plot, plot.data, themed(panels[place].layout, plot.clientWidth)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  matchMedia("(max-width: 600px)").addEventListener("change", again);

  Promise.all(drawn).then(() => {
    document.body.dataset.drawn = String(drawn.length);
  });
})();
