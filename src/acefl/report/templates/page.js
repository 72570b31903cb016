"use strict";
(() => {
  const panels = JSON.parse(document.getElementById("panels").textContent);
  const plots = panels.map((panel) => document.getElementById(panel.id));
  const hidden = new Set();

  // A panel is drawn when it has a width, and again when that changes.
  const widths = new Map();
  const again = (place) => hover(plots[place], panels[place], draw(plots[place], panels[place], { hidden }));
  const watch = new ResizeObserver((entries) => {
    entries.forEach(({ target }) => {
      if (target.clientWidth < 50 || widths.get(target) === target.clientWidth) return;
      widths.set(target, target.clientWidth);
      again(plots.indexOf(target));
    });
    if (widths.size === plots.length) document.body.dataset.drawn = String(plots.length);
  });
  plots.forEach((plot) => watch.observe(plot));

  document.querySelectorAll(".legend button").forEach((button) => {
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", String(shown));
      hidden[shown ? "delete" : "add"](button.dataset.method);
      plots.forEach((_, place) => again(place));
    });
  });

  const download = (name, type, text) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };

  // -- a figure's numbers --------------------------------------------------------------------------------------------

  const HEADINGS = ["panel", "series", "x axis", "x", "y axis", "y", "low", "high"];
  const rowsOf = ({ heading, traces, layout }) => {
    const axes = [layout.xaxis.title, layout.yaxis.title];
    const named = ({ tickvals = [], ticktext = [] }, value) => {
      const text = ticktext[tickvals.indexOf(value)] || "";
      return /\p{L}/u.test(text) ? text : value;
    };
    const row = (name, x, y, low = "", high = "") =>
      [heading, name, axes[0], named(layout.xaxis, x), axes[1], named(layout.yaxis, y), low, high];
    return traces.flatMap((trace) => {
      if (trace.type === "heatmap") return trace.values.flatMap((line, j) => line.map((value, i) => row(trace.y[j], trace.x[i], value)));
      if (!["scatter", "bar"].includes(trace.type) || trace.hover === false) return [];
      const band = traces.find((other) => other.type === "band" && other.meta === trace.meta && other.x.length === trace.x.length);
      const around = (i) => {
        if (band) return [band.low[i], band.high[i]];
        return trace.error ? [trace.y[i] - trace.error[i], trace.y[i] + trace.error[i]] : [];
      };
      return trace.x.map((x, i) => row(trace.name, x, trace.y[i], ...around(i)));
    });
  };
  const quoted = (value) => {
    const text = value === null ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const csv = (own) => {
    const tables = own.map((panel) => panel.table || { headings: HEADINGS, rows: rowsOf(panel) });
    const alike = (table) => JSON.stringify(table.headings);
    const groups = Map.groupBy ? Map.groupBy(tables, alike) : tables.reduce((m, t) => m.set(alike(t), [...(m.get(alike(t)) || []), t]), new Map());
    const parts = [...groups.values()].map((same) => [same[0].headings, ...same.flatMap((table) => table.rows)]);
    return parts.map((rows) => rows.map((row) => `${row.map(quoted).join(",")}\n`).join("")).join("\n");
  };
  document.querySelectorAll("button.csv").forEach((button) => {
    const own = panels.filter((panel) => panel.figure === button.dataset.figure);
    button.addEventListener("click", () => download(`${button.dataset.figure}.csv`, "text/csv", csv(own)));
  });

  // -- a panel as a file: with its title, its legend and the colours it has on the page -------------------------------

  const STYLES = ["fill", "stroke", "fill-opacity", "opacity", "font-family"];
  document.querySelectorAll("button.svg").forEach((button) => {
    button.addEventListener("click", () => {
      const panel = panels.find((one) => one.id === button.dataset.panel);
      const holder = document.querySelector(".offscreen");
      const { svg } = draw(holder, panel, { hidden, width: 960, height: 600, title: panel.title, withLegend: true });
      svg.querySelectorAll("*").forEach((part) => {
        const computed = getComputedStyle(part);
        STYLES.forEach((name) => part.style.setProperty(name, computed.getPropertyValue(name)));
      });
      svg.style.background = getComputedStyle(document.body).backgroundColor;
      download(`${panel.id}.svg`, "image/svg+xml", new XMLSerializer().serializeToString(svg));
      holder.replaceChildren();
    });
  });

  // A table that is wider than the screen says so.
  const wide = [...document.querySelectorAll(".wide")];
  const hint = () =>
    wide.forEach((box) => {
      const cut = box.scrollWidth > box.clientWidth + 1;
      box.previousElementSibling.hidden = !cut;
      box.toggleAttribute("tabindex", cut);
      if (cut) box.setAttribute("tabindex", "0");
    });
  addEventListener("resize", hint);
  hint();
  if (!plots.length) document.body.dataset.drawn = "0";
})();
