"use strict";
// Surfaces: plotly draws them; here they get the colours of the page, views that turn together,
// and buttons and keys that turn them.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const TURN = Math.PI / 12;

  const PRINTED = ["#000000", "#333333", "#bbbbbb"];

  function colours() {
    const style = getComputedStyle(document.documentElement);
    return ["--ink", "--soft", "--line"].map((name) => style.getPropertyValue(name).trim());
  }

  // The layout in the colours of the page, light or dark.
  function themed(scenes, [ink, soft, line] = colours()) {
    const found = {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      "font.color": ink,
      "modebar.bgcolor": "rgba(0,0,0,0)",
      "modebar.color": soft,
      "modebar.activecolor": ink,
    };
    for (const scene of scenes) {
      for (const name of ["xaxis", "yaxis", "zaxis"]) {
        Object.assign(found, {
          [`${scene}.${name}.color`]: ink,
          [`${scene}.${name}.gridcolor`]: line,
          [`${scene}.${name}.backgroundcolor`]: "rgba(0,0,0,0)",
        });
      }
    }
    return found;
  }

  // The eye around the vertical axis, upwards, and nearer.
  function moved(eye, turn, rise, zoom) {
    const distance = Math.hypot(eye.x, eye.y, eye.z) * zoom;
    const around = Math.atan2(eye.y, eye.x) + turn;
    const up = Math.min(Math.max(Math.asin(eye.z / Math.hypot(eye.x, eye.y, eye.z)) + rise, -1.5), 1.5);
    return {
      x: distance * Math.cos(up) * Math.cos(around),
      y: distance * Math.cos(up) * Math.sin(around),
      z: distance * Math.sin(up),
    };
  }

  function start(root) {
    const figure = JSON.parse(root.querySelector("script").textContent);
    const alt = root.getAttribute("aria-label");
    const plot = document.createElement("div");
    plot.className = "plot";
    plot.tabIndex = 0;
    for (const name of ["role", "aria-label"]) root.removeAttribute(name);
    plot.setAttribute("role", "application");
    plot.setAttribute("aria-roledescription", "surface");
    plot.setAttribute("aria-label", `${alt} Arrow keys turn it, plus and minus zoom, Escape turns it back.`);
    const tools = document.createElement("div");
    tools.className = "tools";
    root.append(plot, tools);

    const scenes = [...new Set(figure.data.map((trace) => trace.scene || "scene"))];
    const first = () => ({ ...(figure.layout[scenes[0]]?.camera?.eye || { x: 1.25, y: 1.25, z: 1.25 }) });
    let eye = first();
    let busy = false;

    function look(next) {
      eye = next;
      busy = true;
      const change = Object.fromEntries(scenes.map((scene) => [`${scene}.camera.eye`, eye]));
      return Plotly.relayout(plot, change).then(() => { busy = false; });
    }

    const MOVES = {
      ArrowLeft: ["◀", "turn left", () => moved(eye, -TURN, 0, 1)],
      ArrowRight: ["▶", "turn right", () => moved(eye, TURN, 0, 1)],
      ArrowUp: ["▲", "from higher up", () => moved(eye, 0, TURN, 1)],
      ArrowDown: ["▼", "from lower down", () => moved(eye, 0, -TURN, 1)],
      "+": ["+", "nearer", () => moved(eye, 0, 0, 1 / 1.15)],
      "-": ["−", "farther", () => moved(eye, 0, 0, 1.15)],
      Escape: ["⟲", "first view", first],
    };
    for (const [sign, name, next] of Object.values(MOVES)) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = sign;
      button.title = name;
      button.setAttribute("aria-label", name);
      button.addEventListener("click", () => look(next()));
      tools.append(button);
    }
    plot.addEventListener("keydown", (event) => {
      const move = MOVES[event.key];
      if (!move) return;
      look(move[2]());
      event.preventDefault();
    });

    const bars = figure.data.flatMap((trace, k) => (trace.colorbar && trace.showscale !== false ? [k] : []));

    // Side by side while there is room, below each other on a narrow window.
    function arrangement() {
      const narrow = root.clientWidth < 420 * scenes.length;
      const count = scenes.length;
      // Both, because plotly keeps the width it has once a height is set.
      const found = { width: root.clientWidth, height: narrow ? 380 * count : 480 };
      scenes.forEach((scene, k) => {
        const given = figure.layout[scene]?.domain || { x: [0, 1], y: [0, 1] };
        const y = [1 - (k + 1) / count, 1 - k / count - 0.16 / count];
        found[`${scene}.domain`] = narrow && count > 1 ? { x: [0, 1], y } : given;
      });
      (figure.layout.annotations || []).forEach((note, k) => {
        if (count < 2 || k >= count) return;
        found[`annotations[${k}].x`] = narrow ? 0.5 : note.x;
        found[`annotations[${k}].y`] = narrow ? 1 - k / count - 0.16 / count : note.y;
      });
      return found;
    }

    // The vertical axis says what the colours do, so that a narrow window can do without their bar.
    function arrange(more) {
      const showscale = root.clientWidth >= 520;
      return Plotly.update(plot, bars.length ? { showscale } : {}, { ...more, ...arrangement() }, bars);
    }

    // Named one by one, because plotly also has buttons that send the figure to a server.
    const buttons = [["toImage"], ["orbitRotation", "pan3d", "zoom3d", "resetCameraDefault3d"]];
    const config = { displaylogo: false, modeBarButtons: buttons };
    // A copy, because plotly writes into what it is given.
    const layout = { ...structuredClone(figure.layout), template: {}, autosize: true };
    const ready = Plotly.newPlot(plot, figure.data, layout, config)
      .then(() => arrange(themed(scenes)))
      .then(() => {
        plot.on("plotly_relayout", (change) => {
          const turned = scenes.find((scene) => change[`${scene}.camera`]);
          if (busy || !turned) return;
          look(change[`${turned}.camera`].eye);
        });
        let last = root.clientWidth;
        new ResizeObserver(() => {
          if (root.clientWidth === last) return;
          last = root.clientWidth;
          arrange();
        }).observe(root);
        root.dataset.ready = "true";
      });
    const paint = (palette) => ready.then(() => Plotly.relayout(plot, themed(scenes, palette)));
    dark.addEventListener("change", () => paint());
    addEventListener("beforeprint", () => paint(PRINTED));
    addEventListener("afterprint", () => paint());
  }

  for (const root of document.querySelectorAll(".surface")) start(root);
})();
