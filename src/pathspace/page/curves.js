"use strict";
// Curves: drawn as SVG from the data inside each figure. Pointer or arrow keys read values off,
// a drag or + and − zoom, the legend hides curves, buttons make the axes logarithmic.
(() => {
  const NAMESPACE = "http://www.w3.org/2000/svg";
  const MARGIN = { left: 64, right: 14, top: 12, bottom: 46 };
  const DASHES = ["", "7 4", "2 3", "9 3 2 3"];
  const COLOURS = 8;
  const PRINTED = 680; // the width in print, whatever the window has

  function svg(tag, attributes = {}, text = "") {
    const element = document.createElementNS(NAMESPACE, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text) element.textContent = text;
    return element;
  }

  function html(tag, className = "", text = "") {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text) element.textContent = text;
    return element;
  }

  const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

  function show(value, digits = 4) {
    if (value === null || value === undefined) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e5 || size < 1e-3) {
      const [head, tail] = value.toExponential(digits - 1).split("e");
      const power = String(Number(tail)).replace(/[-\d]/g, (sign) => RAISED[sign]);
      const factor = Number(head);
      return factor === 1 ? `10${power}` : `${factor}·10${power}`.replace("-", "−");
    }
    return String(Number(value.toPrecision(digits))).replace("-", "−");
  }

  // One axis: from a value to a pixel and back.
  function axis(low, high, from, to, log) {
    const f = log ? Math.log10 : (v) => v;
    const inverse = log ? (v) => 10 ** v : (v) => v;
    const [a, b] = [f(low), f(high)];
    return {
      low, high, log,
      place: (v) => from + ((f(v) - a) / (b - a)) * (to - from),
      value: (p) => inverse(a + ((p - from) / (to - from)) * (b - a)),
      ticks: (count) => (log ? logTicks(low, high, count) : ticks(low, high, count)),
    };
  }

  function ticks(low, high, count) {
    const raw = (high - low) / count;
    const unit = 10 ** Math.floor(Math.log10(raw));
    const step = unit * ([1, 2, 5].find((factor) => factor * unit >= raw) || 10);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) {
      found.push(Number((k * step).toPrecision(12)));
    }
    return found;
  }

  function logTicks(low, high, count) {
    const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
    const every = Math.max(1, Math.ceil((last - first) / count));
    const factors = last - first <= 2 ? [1, 2, 5] : [1];
    const found = [];
    for (let power = first; power <= last; power += every) {
      for (const factor of factors) found.push(Number(`${factor}e${power}`));
    }
    const inside = found.filter((v) => v >= low * 0.9999999 && v <= high * 1.0000001);
    return inside.length > 1 ? inside : ticks(low, high, count).filter((v) => v > 0);
  }

  function limits(values, log, pad) {
    const known = values.filter((v) => v !== null && v !== undefined && (!log || v > 0));
    if (!known.length) return log ? [0.1, 10] : [0, 1];
    // Not Math.min(...known): a spread of many arguments overflows the stack.
    let low = known.reduce((a, b) => Math.min(a, b));
    let high = known.reduce((a, b) => Math.max(a, b));
    if (low === high) return log ? [low / 2, high * 2] : [low - (Math.abs(low) / 10 || 1), high + (Math.abs(high) / 10 || 1)];
    if (log) {
      const factor = (high / low) ** pad;
      return [low / factor, high * factor];
    }
    return [low - pad * (high - low), high + pad * (high - low)];
  }

  let figures = 0;

  function start(root) {
    const data = JSON.parse(root.querySelector("script").textContent);
    const state = { logX: data.logX, logY: data.logY, hidden: new Set(), zoom: null, at: null, printing: false };
    const clip = `clip-${(figures += 1)}`;
    const alt = root.getAttribute("aria-label");
    for (const name of ["role", "aria-label"]) root.removeAttribute(name);
    const canvas = svg("svg", {
      tabindex: 0,
      role: "application",
      "aria-roledescription": "chart",
      "aria-label": `${alt} Arrow keys read values, plus and minus zoom, Escape shows all.`,
    });
    const tools = html("div", "tools");
    const legend = html("div", "legend");
    const status = html("p", "hidden");
    status.setAttribute("role", "status");
    const reading = html("span", "reading");
    root.append(canvas, legend, tools, status);

    const shown = () => data.curves.filter((_, k) => !state.hidden.has(k));
    const values = (names) => shown().flatMap((curve) => names.flatMap((name) => curve[name] || []));
    const positive = (found) => found.some((v) => v > 0) && !found.some((v) => v < 0);
    const toggles = [];

    function toggle(label, get, set, possible) {
      const button = html("button", "", label);
      button.type = "button";
      button.disabled = !possible;
      button.addEventListener("click", () => { set(!get()); draw(); });
      toggles.push(() => button.setAttribute("aria-pressed", get()));
      if (possible) tools.append(button);
    }
    toggle("log vertical axis", () => state.logY, (on) => { state.logY = on; state.zoom = null; }, positive(values(["y"])));
    toggle("log horizontal axis", () => state.logX, (on) => { state.logX = on; state.zoom = null; }, positive(values(["x"])));
    const all = html("button", "", "show all");
    all.type = "button";
    all.addEventListener("click", () => { state.zoom = null; draw(); });
    tools.append(all, reading);

    const entries = data.curves.map((curve, k) => {
      const button = html("button");
      button.type = "button";
      const swatch = svg("svg", { class: `swatch k${k % COLOURS}`, viewBox: "0 0 30 12", "aria-hidden": "true" });
      swatch.append(svg("line", { x1: 0, x2: 30, y1: 6, y2: 6, "stroke-width": 3, "stroke-dasharray": DASHES[dash(k)] }));
      const value = html("span", "value");
      button.append(swatch, html("span", "name", curve.name), value);
      button.addEventListener("click", () => {
        if (state.hidden.has(k)) state.hidden.delete(k); else state.hidden.add(k);
        draw();
      });
      legend.append(button);
      return { button, value };
    });

    // Neighbouring colours also differ by their dashes, for those who see no colours at all.
    function dash(k) { return (k + Math.floor(k / COLOURS)) % DASHES.length; }

    let x, y, width, height, overlay;

    function scale() {
      width = state.printing ? PRINTED : Math.max(280, root.clientWidth || PRINTED);
      height = Math.round(Math.min(430, Math.max(260, width * 0.5)));
      const [x0, x1] = state.zoom ? state.zoom.x : limits(values(["x"]), state.logX, 0);
      const inside = (name) => shown().flatMap((c) => (c[name] || []).filter((_, k) => c.x[k] >= x0 && c.x[k] <= x1));
      // On a logarithmic axis a band may reach down to zero: it does not set the lower limit.
      const [y0, y1] = state.zoom && state.zoom.y ? state.zoom.y
        : limits([...inside("y"), ...inside("high"), ...(state.logY ? [] : inside("low"))], state.logY, 0.04);
      x = axis(x0, x1, MARGIN.left, width - MARGIN.right, state.logX);
      y = axis(y0, y1, height - MARGIN.bottom, MARGIN.top, state.logY);
    }

    function axes() {
      const group = svg("g");
      for (const value of x.ticks(width < 500 ? 4 : 8)) {
        const p = x.place(value);
        group.append(svg("line", { class: "grid", x1: p, x2: p, y1: MARGIN.top, y2: height - MARGIN.bottom }));
        group.append(svg("text", { x: p, y: height - MARGIN.bottom + 17, "text-anchor": "middle" }, show(value)));
      }
      for (const value of y.ticks(6)) {
        const p = y.place(value);
        group.append(svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: p, y2: p }));
        group.append(svg("text", { x: MARGIN.left - 7, y: p + 4, "text-anchor": "end" }, show(value)));
      }
      group.append(svg("rect", { class: "frame", x: MARGIN.left, y: MARGIN.top, width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom }));
      group.append(svg("text", { class: "label", x: (MARGIN.left + width - MARGIN.right) / 2, y: height - 8, "text-anchor": "middle" }, data.x));
      const middle = (MARGIN.top + height - MARGIN.bottom) / 2;
      group.append(svg("text", { class: "label", x: 14, y: middle, "text-anchor": "middle", transform: `rotate(-90 14 ${middle})` }, data.y));
      return group;
    }

    const usable = (curve, k) => (!state.logX || curve.x[k] > 0) && curve.y[k] !== null && (!state.logY || curve.y[k] > 0);

    // Stretches of neighbouring points without a gap.
    function pieces(curve, good) {
      const found = [[]];
      curve.x.forEach((_, k) => {
        if (good(k)) found[found.length - 1].push(k);
        else if (found[found.length - 1].length) found.push([]);
      });
      return found.filter((piece) => piece.length);
    }

    function drawn(curve, k) {
      const group = svg("g", { class: `k${k % COLOURS}`, "clip-path": `url(#${clip})` });
      const at = (px, py) => `${x.place(px).toFixed(1)},${y.place(py).toFixed(1)}`;
      if (curve.low) {
        const known = (j) => usable(curve, j) && curve.low[j] !== null && curve.high[j] !== null;
        for (const piece of pieces(curve, known)) {
          const bottom = (j) => (state.logY && curve.low[j] <= 0 ? y.low : curve.low[j]);
          const edge = [...piece.map((j) => at(curve.x[j], curve.high[j])), ...piece.reverse().map((j) => at(curve.x[j], bottom(j)))];
          group.append(svg("polygon", { class: "band", points: edge.join(" ") }));
        }
      }
      for (const piece of pieces(curve, (j) => usable(curve, j))) {
        if (piece.length === 1) group.append(svg("circle", { class: "dot", r: 3, cx: x.place(curve.x[piece[0]]), cy: y.place(curve.y[piece[0]]) }));
        else group.append(svg("polyline", { class: "line", "stroke-dasharray": DASHES[dash(k)], points: piece.map((j) => at(curve.x[j], curve.y[j])).join(" ") }));
      }
      return group;
    }

    function draw() {
      scale();
      canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
      const box = svg("clipPath", { id: clip });
      box.append(svg("rect", { x: MARGIN.left, y: MARGIN.top, width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom }));
      overlay = svg("g");
      const lines = data.curves.map((curve, k) => (state.hidden.has(k) ? null : drawn(curve, k))).filter(Boolean);
      canvas.replaceChildren(box, axes(), ...lines, overlay);
      toggles.forEach((update) => update());
      all.disabled = !state.zoom;
      entries.forEach(({ button }, k) => button.setAttribute("aria-pressed", !state.hidden.has(k)));
      read(state.at, false);
    }

    // The places where a shown curve has a point, in order.
    const places = () => [...new Set(shown().flatMap((c) => c.x.filter((v) => v >= x.low && v <= x.high)))].sort((a, b) => a - b);

    function read(at, aloud) {
      state.at = at;
      overlay.replaceChildren();
      entries.forEach(({ value }) => { value.textContent = ""; });
      reading.textContent = "";
      if (at === null || at < x.low || at > x.high) return;
      reading.textContent = `at ${data.x} ${show(at, 6)}`;
      const p = x.place(at);
      overlay.append(svg("line", { class: "cursor", x1: p, x2: p, y1: MARGIN.top, y2: height - MARGIN.bottom }));
      const said = [];
      data.curves.forEach((curve, k) => {
        const j = curve.x.indexOf(at);
        if (state.hidden.has(k) || j < 0) return;
        const spread = curve.low && curve.low[j] !== null ? ` ± ${show((curve.high[j] - curve.low[j]) / 2, 2)}` : "";
        entries[k].value.textContent = `${show(curve.y[j])}${spread}`;
        said.push(`${curve.name} ${show(curve.y[j])}${spread}`);
        if (usable(curve, j) && curve.y[j] >= y.low && curve.y[j] <= y.high) {
          const dot = svg("g", { class: `k${k % COLOURS}` });
          dot.append(svg("circle", { class: "dot", r: 4.5, cx: p, cy: y.place(curve.y[j]) }));
          overlay.append(dot);
        }
      });
      if (aloud) status.textContent = `${data.x} ${show(at, 6)}: ${said.join(", ")}`;
    }

    // From the pointer to the coordinates of the drawing, which the browser may have scaled.
    function pointer(event) {
      const box = canvas.getBoundingClientRect();
      return [(event.clientX - box.left) * (width / box.width), (event.clientY - box.top) * (height / box.height)];
    }
    const inside = (p, from, to) => Math.min(Math.max(p, from), to);

    let drag = null;
    canvas.addEventListener("pointermove", (event) => {
      const [px, py] = pointer(event);
      if (drag) {
        drag.to = [inside(px, MARGIN.left, width - MARGIN.right), inside(py, MARGIN.top, height - MARGIN.bottom)];
        const [a, b] = [drag.from, drag.to];
        const rect = { x: Math.min(a[0], b[0]), y: Math.min(a[1], b[1]), width: Math.abs(a[0] - b[0]), height: Math.abs(a[1] - b[1]) };
        overlay.replaceChildren(svg("rect", { class: "choice", ...rect }));
        return;
      }
      const near = places();
      if (near.length) read(near.reduce((a, b) => (Math.abs(x.place(b) - px) < Math.abs(x.place(a) - px) ? b : a)), false);
    });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.pointerType === "touch") return;
      const [px, py] = pointer(event);
      drag = { from: [inside(px, MARGIN.left, width - MARGIN.right), inside(py, MARGIN.top, height - MARGIN.bottom)], to: null };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => {
      const done = drag;
      drag = null;
      if (!done || !done.to) return;
      const [a, b] = [done.from, done.to];
      if (Math.abs(a[0] - b[0]) > 8 && Math.abs(a[1] - b[1]) > 8) {
        const between = (s, k) => [s.value(a[k]), s.value(b[k])].sort((p, q) => p - q);
        state.zoom = { x: between(x, 0), y: between(y, 1) };
      }
      draw();
    });
    canvas.addEventListener("pointerleave", () => { if (!drag) read(null, false); });
    canvas.addEventListener("dblclick", () => { state.zoom = null; draw(); });

    canvas.addEventListener("keydown", (event) => {
      const near = places();
      const here = near.indexOf(state.at);
      const step = event.shiftKey ? 10 : 1;
      const target = {
        ArrowRight: here < 0 ? 0 : Math.min(here + step, near.length - 1),
        ArrowLeft: here < 0 ? near.length - 1 : Math.max(here - step, 0),
        Home: 0,
        End: near.length - 1,
      }[event.key];
      if (target !== undefined) { if (near.length) read(near[target], true); }
      else if (event.key === "+" || event.key === "-") {
        const centre = x.place(state.at === null ? x.value((MARGIN.left + width - MARGIN.right) / 2) : state.at);
        const half = ((width - MARGIN.left - MARGIN.right) / 2) * (event.key === "+" ? 0.5 : 2);
        const [low, high] = limits(values(["x"]), state.logX, 0);
        const wanted = [Math.max(x.value(centre - half), low), Math.min(x.value(centre + half), high)];
        state.zoom = wanted[0] <= low && wanted[1] >= high ? null : { x: wanted, y: null };
        draw();
      } else if (event.key === "Escape") { state.zoom = null; draw(); }
      else return;
      event.preventDefault();
    });

    for (const [event, printing] of [["beforeprint", true], ["afterprint", false]]) {
      addEventListener(event, () => { state.printing = printing; draw(); });
    }
    let last = 0;
    new ResizeObserver(() => {
      if (root.clientWidth !== last) { last = root.clientWidth; draw(); }
    }).observe(root);
    draw();
  }

  for (const root of document.querySelectorAll(".curves")) start(root);
})();
