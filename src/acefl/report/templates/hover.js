"use strict";
// What a pointer over a panel shows: the values of all curves there, or of the nearest point, as text.
const hover = (() => {
  const filled = (template, trace, i, number) =>
    template.replace(/%\{(x|y|text)(?::([^}]*))?\}/g, (_, what, spec) => number(trace[what][i], spec));

  // All curves at the x nearest to the pointer.
  const together = ({ traces, x, number }, across) => {
    const curves = traces.filter((trace) => trace.type === "scatter" && trace.hover !== false);
    const all = curves.flatMap((trace) => trace.x).filter((value) => Number.isFinite(x(value)));
    if (!all.length) return null;
    const near = (values) => values.reduce((a, b) => (Math.abs(x(b) - across) < Math.abs(x(a) - across) ? b : a));
    const here = near(all);
    const lines = curves.flatMap((trace) => {
      const i = trace.x.indexOf(near(trace.x));
      const close = Math.abs(x(trace.x[i]) - x(here)) < 24 && trace.y[i] !== null;
      return close ? [{ value: trace.y[i], text: `${trace.name}: ${number(trace.y[i])}`, colour: trace.line && trace.line.color }] : [];
    });
    return { at: x(here), lines: [{ text: number(here) }, ...lines.sort((a, b) => b.value - a.value)] };
  };

  const nearest = ({ traces, x, y, number }, across, up) => {
    let found = { away: 30 };
    traces.filter((trace) => trace.hover !== false && ["scatter", "bar"].includes(trace.type)).forEach((trace) =>
      trace.x.forEach((value, i) => {
        const away = trace.type === "bar" ? 2 * Math.abs(x(value) - across) : Math.hypot(x(value) - across, y(trace.y[i]) - up);
        if (away < found.away) found = { away, trace, i };
      })
    );
    if (!found.trace) return null;
    const { trace, i } = found;
    const template = Array.isArray(trace.hover) ? trace.hover[i] : trace.hover || `${trace.name}\n%{x}: %{y}`;
    return { lines: filled(template, trace, i, number).split("\n").map((text) => ({ text })) };
  };

  const show = (box, found, across, up, room) => {
    box.replaceChildren(
      ...found.lines.map(({ text, colour }) => {
        const line = document.createElement("div");
        line.textContent = text;
        if (colour) line.style.setProperty("--c", colour);
        if (colour) line.className = "tinted";
        return line;
      })
    );
    box.hidden = false;
    box.style.top = `${Math.max(0, up - box.offsetHeight - 8)}px`;
    box.style.left = `${Math.min(Math.max(0, across + 14), Math.max(0, room - box.offsetWidth))}px`;
  };

  return (holder, panel, drawn) => {
    const box = document.createElement("div");
    box.className = "hover";
    box.hidden = true;
    holder.append(box);
    drawn.svg.addEventListener("pointermove", (event) => {
      const frame = drawn.svg.getBoundingClientRect();
      const [across, up] = [event.clientX - frame.left, event.clientY - frame.top];
      const found = (panel.layout.together ? together : nearest)(drawn, across, up);
      if (found) show(box, found, found.at ?? across, up, frame.width);
      else box.hidden = true;
    });
    drawn.svg.addEventListener("pointerleave", () => (box.hidden = true));
  };
})();
