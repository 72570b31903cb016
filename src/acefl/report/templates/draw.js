"use strict";
// Draws a panel (see drawing.py) as SVG in the width it is given. Every text is set as text, so none becomes markup.
// Colours of ink and grid are the page's own (page.css); a method's colour travels in the custom property --c.
const draw = (() => {
  const DASHES = { dash: "9 6", dot: "2 4", dashdot: "9 4 2 4", longdash: "14 6", longdashdot: "14 4 2 4" };
  const pen = document.createElement("canvas").getContext("2d");
  let drawings = 0;

  const add = (parent, tag, attributes = {}, text = null) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
    if (text !== null) made.textContent = text;
    return parent.appendChild(made);
  };
  const tint = (colour) => ({ style: `--c:${colour}` });
  const at = (given, i) => (Array.isArray(given) ? given[i] : given);

  // -- numbers and words ---------------------------------------------------------------------------------------------

  const number = (value, spec = ".4~g") => {
    if (typeof value !== "number") return String(value);
    const [, comma, places, kind] = spec.match(/^(,?)(?:\.(\d+))?~?([a-z%]?)$/) || [null, "", "4", "g"];
    if (kind === "d") return Math.round(value).toLocaleString("en");
    if (kind === "f") return value.toLocaleString("en", { minimumFractionDigits: +places, maximumFractionDigits: +places, useGrouping: comma === "," });
    const short = Number(value.toPrecision(+(places || 4)));
    return Math.abs(short) >= 1e6 || (short && Math.abs(short) < 1e-4) ? short.toExponential() : short.toLocaleString("en", { maximumSignificantDigits: 6 });
  };

  const widthOf = (text, size) => {
    pen.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
    return pen.measureText(text).width;
  };

  const wrapped = (text, size, room) => {
    const lines = [""];
    text.split(" ").forEach((word) => {
      const longer = `${lines.at(-1)} ${word}`.trim();
      if (lines.at(-1) && widthOf(longer, size) > room) lines.push(word);
      else lines[lines.length - 1] = longer;
    });
    return lines;
  };

  const shortened = (text, size, room) => {
    if (widthOf(text, size) <= room) return text;
    let kept = text;
    while (kept.length > 3 && widthOf(`${kept}…`, size) > room) kept = kept.slice(0, -1);
    return `${kept}…`;
  };

  // -- axes ----------------------------------------------------------------------------------------------------------

  const spread = (values, log) => {
    const known = values.filter((value) => typeof value === "number" && (!log || value > 0)).map((v) => (log ? Math.log10(v) : v));
    if (!known.length) return [0, 1];
    const low = Math.min(...known);
    const high = Math.max(...known);
    const margin = 0.05 * (high - low) || 0.05 * Math.abs(low) || 0.5;
    return [low - margin, high + margin];
  };

  const evenTicks = (low, high, most) => {
    const rough = Math.abs(high - low) / most;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((digit) => digit * power).find((one) => one >= rough);
    const places = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const ticks = [];
    for (let i = Math.ceil(Math.min(low, high) / step); i * step <= Math.max(low, high) + 1e-9 * step; i += 1) {
      const text = (i * step || 0).toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
      ticks.push({ value: i * step, text });
    }
    return ticks;
  };

  // An axis as data: where a value lies between 0 and 1, and its ticks.
  const axisOf = (given, traces, way, most) => {
    if (given.type === "category") {
      const names = [...new Set(traces.flatMap((trace) => trace[way]))];
      const place = (name) => (names.indexOf(name) + 0.5) / names.length;
      return { category: true, band: 1 / names.length, place, ticks: names.map((name) => ({ value: name, text: name })) };
    }
    const log = given.type === "log";
    const whole = traces.flatMap((trace) => (trace.type === "band" && way === "y" ? [...trace.low, ...trace.high] : trace[way] || []));
    const [low, high] = given.range || spread(whole, log);
    const place = (value) => {
      if (typeof value !== "number" || (log && value <= 0)) return NaN;
      return ((log ? Math.log10(value) : value) - low) / (high - low);
    };
    const ticks = given.tickvals
      ? given.tickvals.map((value, i) => ({ value, text: given.ticktext ? given.ticktext[i] : number(value) }))
      : evenTicks(low, high, given.nticks || most);
    const inside = ticks.filter(({ value }) => place(value) >= -1e-9 && place(value) <= 1 + 1e-9);
    return { place, ticks: inside };
  };

  // -- marks ---------------------------------------------------------------------------------------------------------

  const SYMBOLS = {
    circle: (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`,
    triangle: (r) => `M0,${-r}L${r},${0.8 * r}L${-r},${0.8 * r}Z`,
    bar: (r) => `M0,${-r}V${r}`,
    cross: (r) => `M${-r},${-r}L${r},${r}M${-r},${r}L${r},${-r}`,
  };

  const marker = (parent, x, y, given, i) => {
    const symbol = at(given.symbol, i) || "circle";
    const open = ["circle-open", "bar", "cross"].includes(symbol);
    const shape = SYMBOLS[symbol.replace("-open", "")]((at(given.size, i) || 6) / 2);
    const look = { d: shape, transform: `translate(${x},${y})`, "stroke-width": given.width || (open ? 2 : 0), opacity: given.opacity || 1 };
    add(parent, "path", { ...look, ...tint(given.color), class: `mark tinted strokes ${symbol === "circle-open" ? "hollow" : open ? "" : "fills"}` });
  };

  const path = (xs, ys, x, y) => {
    let drawn = "";
    let joined = false;
    xs.forEach((value, i) => {
      const [across, up] = [x(value), y(ys[i])];
      const known = Number.isFinite(across) && Number.isFinite(up);
      if (known) drawn += `${joined ? "L" : "M"}${across.toFixed(1)},${up.toFixed(1)}`;
      joined = known;
    });
    return drawn;
  };

  const words = (parent, trace, i, x, y, size) => {
    const [up, across] = (at(trace.textposition, i) || "middle center").split(" ");
    const anchor = { left: "end", center: "middle", right: "start" }[across];
    const lines = trace.text[i].split("\n");
    const lift = { top: -9, middle: 0.36 * size - 0.6 * size * (lines.length - 1), bottom: 9 + 0.8 * size }[up];
    lines.forEach((text, line) => {
      const place = { x: x - (across === "left" ? 4 : 0), y: y + lift + 1.25 * size * line, "text-anchor": anchor };
      add(parent, "text", { ...place, "font-size": size, class: "label" }, text);
    });
  };

  const kinds = {
    scatter(parent, trace, x, y, size, free) {
      const line = trace.line || {};
      if (trace.mode.includes("lines")) {
        const look = { "stroke-width": line.width || 2, "stroke-dasharray": DASHES[line.dash] || "none", opacity: trace.opacity || 1 };
        add(parent, "path", { d: path(trace.x, trace.y, x, y), ...look, ...tint(line.color), class: "line tinted strokes" });
      }
      trace.x.forEach((value, i) => {
        const [across, up] = [x(value), y(trace.y[i])];
        if (!Number.isFinite(across) || !Number.isFinite(up)) return;
        if (trace.error) {
          const [low, high] = [y(trace.y[i] - trace.error[i]), y(trace.y[i] + trace.error[i])];
          if (low !== high && Number.isFinite(low)) add(parent, "path", { d: `M${across},${low}V${high}`, "stroke-width": 1.4, ...tint(line.color), class: "line tinted strokes" });
        }
        if (trace.mode.includes("markers") && at(trace.marker.size, i)) marker(free, across, up, trace.marker, i);
        if (trace.mode.includes("text") && trace.text[i]) words(free, trace, i, across, up, size);
      });
    },
    band(parent, trace, x, y) {
      const there = path(trace.x, trace.high, x, y);
      const back = path([...trace.x].reverse(), [...trace.low].reverse(), x, y).replace("M", "L");
      if (there) add(parent, "path", { d: `${there}${back}Z`, opacity: 0.14, ...tint(trace.color), class: "area tinted fills" });
    },
    area(parent, trace, x, y) {
      const look = { d: `${path(trace.x, trace.y, x, y)}Z`, "fill-opacity": trace.opacity, "stroke-width": trace.outline };
      add(parent, "path", { ...look, ...tint(trace.color), class: "area tinted fills strokes" });
    },
    bar(parent, trace, x, y) {
      const wide = 0.85 * Math.abs(x(trace.x[1] ?? trace.x[0] + 1) - x(trace.x[0]));
      trace.x.forEach((value, i) => {
        const [foot, head] = [y(0), y(trace.y[i])];
        const box = { x: x(value) - wide / 2, y: Math.min(foot, head), width: wide, height: Math.abs(foot - head) };
        add(parent, "rect", { ...box, ...tint(trace.color), class: "mark tinted fills" });
      });
    },
    heatmap(parent, trace, x, y, size, free, [width, height]) {
      trace.z.forEach((row, j) =>
        row.forEach((value, i) => {
          const box = { x: x(trace.x[i]) - width / 2 + 1, y: y(trace.y[j]) - height / 2 + 1, width: width - 2, height: height - 2 };
          const colour = value === null ? null : mixed(trace.colors, (value - trace.low) / (trace.high - trace.low || 1));
          add(parent, "rect", { ...box, class: "mark cell", ...(colour ? { fill: `rgb(${colour})` } : {}) });
          const fits = Math.min(size, (size * (width - 4)) / Math.max(1, widthOf(trace.text[j][i], size)));
          if (fits < 7) return;
          const ink = colour ? { style: `fill:${bright(colour) ? "#000" : "#fff"}` } : {};
          const place = { x: x(trace.x[i]), y: y(trace.y[j]) + 0.36 * fits, "text-anchor": "middle", "font-size": fits };
          add(free, "text", { ...place, ...ink, class: colour ? "" : "label" }, trace.text[j][i]);
        })
      );
    },
  };

  const mixed = (colors, share) => {
    const place = Math.min(Math.max(share, 0), 1) * (colors.length - 1);
    const [from, to] = [colors[Math.floor(place)], colors[Math.ceil(place)]];
    return [1, 3, 5].map((i) => {
      const [one, two] = [from, to].map((colour) => parseInt(colour.slice(i, i + 2), 16));
      return Math.round(one + (two - one) * (place % 1));
    });
  };
  const bright = (colour) => {
    const [red, green, blue] = colour.map((part) => ((part / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18;
  };

  // -- the legend of one panel ---------------------------------------------------------------------------------------

  const legend = (svg, traces, size, left, top, room) => {
    const named = new Map();
    traces.filter((trace) => trace.legend !== false && (trace.line || trace.color || trace.marker)).forEach((trace) => {
      if (trace.type !== "band" && !named.has(trace.name)) named.set(trace.name, trace);
    });
    let [x, y] = [left, top];
    named.forEach((trace, name) => {
      const text = shortened(name, size, room - 50);
      const wide = 50 + widthOf(text, size);
      if (x > left && x + wide > left + room) [x, y] = [left, y + 1.6 * size];
      const line = trace.line || {};
      const colour = line.color || trace.color || trace.marker.color;
      if (line.color) add(svg, "path", { d: `M${x},${y}h26`, "stroke-width": 3, "stroke-dasharray": DASHES[line.dash] || "none", ...tint(colour), class: "line tinted strokes" });
      else add(svg, "rect", { x: x + 7, y: y - 6, width: 12, height: 12, ...tint(colour), class: "tinted fills" });
      add(svg, "text", { x: x + 32, y: y + 0.36 * size, "font-size": size, class: "label" }, text);
      x += wide;
    });
    return named.size ? y + size : 0;
  };

  // -- one panel -----------------------------------------------------------------------------------------------------

  return (holder, panel, { hidden = new Set(), width = holder.clientWidth, height = panel.layout.height, title = "", withLegend = panel.layout.showlegend } = {}) => {
    const traces = panel.traces.filter((trace) => !hidden.has(trace.meta));
    const { xaxis, yaxis } = panel.layout;
    const size = width < 420 ? 12 : 14;
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    let top = 14;
    if (title) {
      wrapped(title, size + 3, width - 24).forEach((text) => {
        top += 1.2 * size;
        add(svg, "text", { x: 12, y: top, "font-size": size + 3, class: "label" }, text);
      });
      top += size;
    }
    if (withLegend) top = legend(svg, traces, size, 12, top + 4, width - 24) + 8;

    const [across, up] = [axisOf(xaxis, panel.traces, "x", Math.max(2, width / 110)), axisOf(yaxis, panel.traces, "y", Math.max(3, height / 70))];
    const widest = 0.38 * width;
    const upTexts = up.ticks.map(({ text }) => shortened(text, size, widest));
    const left = Math.ceil(Math.max(0, ...upTexts.map((text) => widthOf(text, size)))) + 12 + (yaxis.title ? 1.5 * size : 0);
    const wide = width - left - 18;
    const named = across.ticks.some(({ text }) => /\p{L}/u.test(text));
    const slanted = named && across.ticks.some(({ text }) => widthOf(text, size) > wide / across.ticks.length - 6);
    const deepest = slanted ? Math.max(...across.ticks.map(({ text }) => widthOf(shortened(text, size, 130), size))) * 0.71 : 0;
    const below = wrapped(xaxis.title, size, wide);
    const under = size + 12 + deepest;
    const tall = height - top - under - (xaxis.title ? 1.3 * size * below.length : 0) - 8;
    const x = (value) => left + wide * across.place(value);
    const y = (value) => top + tall * (1 - up.place(value));

    Object.entries({ viewBox: `0 0 ${width} ${height}`, width, height, class: "drawing" }).forEach(([name, value]) => svg.setAttribute(name, value));
    const clip = `inside-${(drawings += 1)}`;
    add(add(svg, "clipPath", { id: clip }), "rect", { x: left, y: top - 1, width: wide, height: tall + 2 });
    const grid = add(svg, "g", { class: "grid" });
    let free = -Infinity;
    across.ticks.forEach(({ value, text }) => {
      if (!across.category && xaxis.showgrid !== false) add(grid, "path", { d: `M${x(value)},${top}V${top + tall}` });
      const [place, half] = [{ y: top + tall + size + 5, "font-size": size, class: "tick" }, widthOf(text, size) / 2];
      if (slanted) {
        const turned = `rotate(-45 ${x(value)} ${top + tall + 10})`;
        add(svg, "text", { ...place, x: x(value), y: top + tall + 14, "text-anchor": "end", transform: turned }, shortened(text, size, 130));
      } else if (x(value) - half > free) {
        add(svg, "text", { ...place, x: Math.min(x(value), width - half - 1), "text-anchor": "middle" }, text);
        free = x(value) + half + 6;
      }
    });
    up.ticks.forEach(({ value }, i) => {
      if (!up.category && yaxis.showgrid !== false) add(grid, "path", { d: `M${left},${y(value)}H${left + wide}` });
      add(svg, "text", { x: left - 8, y: y(value) + 0.36 * size, "text-anchor": "end", "font-size": size, class: "tick" }, upTexts[i]);
    });
    add(grid, "path", { d: `M${left},${top}V${top + tall}H${left + wide}`, class: "frame" });
    below.forEach((text, line) => {
      const place = { x: left + wide / 2, y: top + tall + under + size * (0.5 + 1.3 * line) + 4, "text-anchor": "middle" };
      add(svg, "text", { ...place, "font-size": size, class: "title xtitle" }, text);
    });
    if (yaxis.title) {
      const small = Math.min(size, (size * (tall + under)) / widthOf(yaxis.title, size));
      const place = { x: 0, y: 0, transform: `translate(${size},${top + tall / 2}) rotate(-90)`, "text-anchor": "middle" };
      add(svg, "text", { ...place, "font-size": Math.max(small, 9), class: "title ytitle" }, yaxis.title);
    }
    const inside = add(svg, "g", { class: "traces", "clip-path": `url(#${clip})` });
    const over = add(svg, "g", { class: "traces" });
    const cell = [wide * (across.band || 0), tall * (up.band || 0)];
    traces.forEach((trace) => kinds[trace.type](inside, trace, x, y, size, trace.clipped === false ? over : trace.type === "heatmap" ? over : inside, cell));
    holder.replaceChildren(svg);
    return { svg, traces, x, y, left, top, wide, tall, number };
  };
})();
