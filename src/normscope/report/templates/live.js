"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  let WIDTH = 900; // of a chart in its own units: fewer on a small screen, so that its letters stay legible
  const HEIGHT = 260, LEFT = 62, RIGHT = 16, TOP = 16, BOTTOM = 34;
  const at = (id) => document.getElementById(id);
  // Every text is set as text, never as markup: names come from models and files.
  const make = (tag, attributes = {}, ...children) => {
    const svg = ["svg", "g", "path", "line", "text", "rect", "title", "circle"].includes(tag);
    const node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  // What stands between backticks is a name.
  const prose = (text) => text.split("`").map((piece, index) => (index % 2 ? make("code", {}, piece) : piece));
  const state = { version: -1, low: null, high: null, smoothing: 0, layers: "", hidden: new Set(), data: null, asked: "" };
  const open = new Set(["Loss", "Rates and products"]);

  const theme = document.querySelector("button.theme");
  theme.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  const tip = make("div", { class: "tip", role: "tooltip", hidden: "" });
  document.body.append(tip);

  const short = (value) => (typeof value === "string" ? value : Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(+value.toPrecision(4)));
  const smooth = (points) => {
    let mean = null;
    return points.map(([x, y]) => {
      if (typeof y !== "number") return [x, y];
      mean = mean === null ? y : state.smoothing * mean + (1 - state.smoothing) * y;
      return [x, mean];
    });
  };
  const ticks = (low, high, about) => {
    const rough = (high - low) / about || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough);
    const found = [];
    for (let k = Math.ceil(low / step); k * step <= high + 1e-9 * step; k++) found.push(+(k * step).toPrecision(12));
    return found;
  };
  const colour = (curve) => (state.data.runs.length > 1 ? `s${curve.run % 6}` : curve.depth === null ? `s${curve.number % 6}` : `d${Math.min(Math.floor(curve.depth * 10), 9)}`);
  // The curves of one of several runs share its colour: those behind its first are dashed.
  const dash = (curve) => (curve.second && state.data.runs.length > 1 ? "line faint" : "line");
  const wanted = (curve) => !state.hidden.has(curve.run) && (curve.depth === null || curve.name.toLowerCase().includes(state.layers));

  const draw = (chart) => {
    const curves = chart.curves.map((curve, number) => ({ ...curve, number, second: curve.depth === null && chart.curves.findIndex((other) => other.run === curve.run) < number })).filter(wanted).map((curve) => ({ ...curve, points: smooth(curve.points) }));
    const points = curves.flatMap((curve) => curve.points);
    const values = [...points.map((p) => p[1]), ...chart.rules.map((r) => r[1])].filter((y) => typeof y === "number");
    const figure = make("figure", { "data-chart": chart.id }, make("h3", {}, chart.title));
    if (!values.length) {
      figure.append(make("p", { class: "caption" }, "Nothing to show here: no such layer, or nothing measured yet."));
      return figure;
    }
    const xs = points.map((p) => p[0]);
    const marks = chart.marks.filter((mark) => !state.hidden.has(mark.run));
    let [low, high] = [state.low ?? Math.min(...xs), state.high ?? Math.max(...xs, ...marks.map((m) => m.x))];
    if (low >= high) [low, high] = [low - 0.5, low + 0.5];
    let [least, most] = [Math.min(...values), Math.max(...values)];
    const room = (most - least) * 0.06 || Math.abs(most) * 0.1 || 0.5;
    [least, most] = [least - room, most + room];
    const px = (x) => LEFT + ((x - low) / (high - low)) * (WIDTH - LEFT - RIGHT);
    const py = (y) => TOP + ((most - y) / (most - least)) * (HEIGHT - TOP - BOTTOM);
    const svg = make("svg", { class: "chart curves" + (curves.length > 8 ? " thin" : ""), viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${chart.title}: ${curves.length} curves, steps ${short(low)} to ${short(high)}` });
    for (const y of ticks(least, most, 5)) {
      svg.append(make("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: py(y), y2: py(y) }));
      svg.append(make("text", { x: LEFT - 6, y: py(y) + 4, "text-anchor": "end" }, short(y)));
    }
    for (const x of ticks(low, high, WIDTH < 600 ? 4 : 8)) {
      if (!Number.isInteger(x)) continue;
      svg.append(make("text", { x: px(x), y: HEIGHT - 14, "text-anchor": "middle" }, x.toLocaleString("en")));
    }
    svg.append(make("text", { x: LEFT, y: 11 }, chart.axis));
    for (const [name, y] of chart.rules) {
      svg.append(make("line", { class: "rule", x1: LEFT, x2: WIDTH - RIGHT, y1: py(y), y2: py(y) }));
      svg.append(make("text", { class: "rule-name", x: WIDTH - RIGHT, y: py(y) - 4, "text-anchor": "end" }, name));
    }
    for (const curve of curves) {
      const group = make("g", { class: `curve ${colour(curve)}`, "data-run": curve.run, "data-name": curve.name });
      let path = "", down = false, broken = false;
      for (const [x, y] of curve.points) {
        const inside = typeof y === "number" && x >= low && x <= high;
        if (inside) path += `${down ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}` + (down ? "" : "l0 0");
        else if (y === "NaN" && x >= low && x <= high) {
          if (!broken) group.append(make("text", { class: "nan", x: px(x), y: TOP + 11, "text-anchor": "middle" }, "NaN"));
        } else if (typeof y === "string" && x >= low && x <= high) {
          const edge = y === "inf" ? TOP : HEIGHT - BOTTOM;
          group.append(make("circle", { class: "infinite", cx: px(x), cy: edge, r: 3 }));
        }
        [down, broken] = [inside, y === "NaN"];
      }
      group.append(make("path", { class: dash(curve), d: path }));
      svg.append(group);
    }
    for (const mark of marks) {
      if (mark.x < low || mark.x > high) continue;
      const x = px(mark.x).toFixed(1), base = HEIGHT - BOTTOM;
      const head = make("path", { d: `M${x} ${base}l-5 9h10z` });
      const line = make("line", { x1: x, x2: x, y1: TOP, y2: base });
      svg.append(make("g", { class: `happened ${mark.level}` }, make("title", {}, `step ${mark.x}: ${mark.name}`), line, head));
    }
    brush(svg, curves, low, high);
    figure.append(svg, legend(curves, chart.id));
    if (chart.caption) figure.append(make("p", { class: "caption" }, chart.caption));
    return figure;
  };

  const label = (curve) => (state.data.runs.length > 1 ? `${state.data.runs[curve.run].name}: ${curve.name}` : curve.name);
  const unfolded = new Set();
  const legend = (curves, id) => {
    const several = state.data.runs.length > 1;
    const list = make("ul", { class: "legend" });
    if (several && curves.length > 12) return list; // the colours are those of the runs, which stand above
    for (const curve of curves) {
      const line = make("svg", { class: `swatch ${colour(curve)}`, viewBox: "0 0 22 14", width: 22, height: 14, "aria-hidden": "true" }, make("path", { class: dash(curve), d: "M1 7H21" }));
      list.append(make("li", {}, line, make("span", { class: "names" }, label(curve))));
    }
    if (curves.length <= 12) return list;
    const box = make("details", {}, make("summary", {}, `${curves.length} layers, from the first to the last`), list);
    box.open = unfolded.has(id);
    box.addEventListener("toggle", () => (box.open ? unfolded.add(id) : unfolded.delete(id)));
    return box;
  };

  // Zoom by dragging; what is under the pointer is read out beside it.
  const brush = (svg, curves, low, high) => {
    const step = (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * WIDTH;
      return low + (Math.max(0, Math.min(1, (x - LEFT) / (WIDTH - LEFT - RIGHT)))) * (high - low);
    };
    const px = (x) => LEFT + ((x - low) / (high - low)) * (WIDTH - LEFT - RIGHT);
    let from = null;
    const band = make("rect", { class: "brush", y: TOP, height: HEIGHT - TOP - BOTTOM, x: 0, width: 0 });
    svg.append(band);
    svg.addEventListener("pointerdown", (event) => {
      from = step(event);
      state.dragging = true;
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => {
      const here = step(event);
      if (from !== null) {
        band.setAttribute("x", px(Math.min(from, here)));
        band.setAttribute("width", Math.abs(px(here) - px(from)));
      }
      const near = curves.flatMap((curve) => {
        let best = null;
        for (const p of curve.points) if (!best || Math.abs(p[0] - here) < Math.abs(best[0] - here)) best = p;
        return best ? [[label(curve), best]] : [];
      });
      if (!near.length) return;
      const shown = near.slice(0, 8).map(([name, p]) => `${name}: ${short(p[1])}`);
      tip.textContent = [`step ${Math.round(here).toLocaleString("en")}`, ...shown, ...(near.length > 8 ? [`and ${near.length - 8} more`] : [])].join("\n");
      tip.hidden = false;
      tip.style.left = `${Math.min(event.clientX + 14, innerWidth - 260)}px`;
      tip.style.top = `${event.clientY + 14}px`;
    });
    svg.addEventListener("pointerleave", () => (tip.hidden = true));
    svg.addEventListener("pointerup", (event) => {
      const [a, b] = [from, step(event)].sort((x, y) => x - y);
      from = null;
      state.dragging = false;
      if (b - a > 0.01 * (high - low)) zoom(Math.floor(a), Math.ceil(b));
      else show();
    });
    svg.addEventListener("pointercancel", () => {
      from = null;
      state.dragging = false;
    });
    svg.addEventListener("dblclick", () => zoom(null, null));
  };

  const spreads = () => {
    const grid = make("div", { class: "spreads" });
    for (const item of state.data.histograms) {
      if (state.hidden.has(item.run) || !item.layer.toLowerCase().includes(state.layers)) continue;
      const [size, ...shares] = item.shares;
      const most = Math.max(...shares, 1e-9);
      const svg = make("svg", { viewBox: "0 0 198 60", class: `chart s${item.run % 6}`, role: "img", "aria-label": `${item.what} of ${item.layer}` });
      shares.forEach((share, index) => {
        const height = (56 * share) / most;
        svg.append(make("rect", { class: "bar", x: index * 6, y: 58 - height, width: 5, height }));
      });
      const name = `${label({ run: item.run, name: item.layer })}, ${item.what}`;
      grid.append(make("figure", { "data-spread": item.what }, svg, make("figcaption", {}, `${name}: ±4 times ${short(size)}, step ${item.step}`)));
    }
    return grid;
  };

  const show = () => {
    const data = state.data;
    if (!data || state.dragging) return;
    WIDTH = Math.max(360, Math.min(900, at("parts").clientWidth || 900));
    at("runs").replaceChildren(...data.runs.map((run, index) => {
      const box = make("input", { type: "checkbox" });
      box.checked = !state.hidden.has(index);
      box.addEventListener("change", () => {
        box.checked ? state.hidden.delete(index) : state.hidden.add(index);
        show();
      });
      const swatch = make("svg", { class: `swatch s${index % 6}`, viewBox: "0 0 22 14", width: 22, height: 14, "aria-hidden": "true" }, make("path", { class: "line", d: "M1 7H21" }));
      return make("li", {}, make("label", {}, box, ...(data.runs.length > 1 ? [swatch] : []), make("b", {}, run.name), make("span", {}, ...prose(`${run.state} ${run.verdict}`))));
    }));
    const tiles = data.runs.length > 1 ? [] : data.runs[0].figures.map(([name, value, note]) => make("div", {}, make("dt", {}, name), make("dd", {}, value, make("small", {}, ...prose(note)))));
    at("figures").replaceChildren(...tiles);
    at("alarms").replaceChildren(...data.alarms.filter((alarm) => !state.hidden.has(alarm.run)).map((alarm) => {
      const place = [data.runs.length > 1 ? data.runs[alarm.run].name : "", alarm.step === null ? "" : `step ${alarm.step.toLocaleString("en")}`].filter(Boolean).join(", ");
      const head = make("div", { class: "head" }, make("span", { class: "level" }, alarm.level), make("strong", {}, ...prose(alarm.seen)), make("span", { class: "where" }, alarm.where), make("span", { class: "code" }, alarm.code));
      const lines = [["why it matters", alarm.why], ["what to do", alarm.advice]].filter(([, text]) => text);
      const more = make("dl", {}, ...lines.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, ...prose(text))]));
      return make("div", { class: `notice ${alarm.level}` }, make("span", { class: "where" }, place), " ", head, more);
    }));
    for (const part of data.parts) {
      let box = [...at("parts").children].find((node) => node.dataset.part === part);
      if (!box) {
        box = make("details", { class: "part", "data-part": part }, make("summary", {}, make("h2", {}, part)), make("div"));
        box.open = open.has(part);
        box.addEventListener("toggle", () => {
          box.open ? open.add(part) : open.delete(part);
          ask();
        });
        at("parts").append(box);
      }
      if (!box.open) continue;
      const charts = data.charts.filter((chart) => chart.part === part).map(draw);
      box.lastChild.replaceChildren(...(part === "Histograms" ? [spreads()] : charts));
    }
  };

  const zoom = (low, high) => {
    [state.low, state.high] = [low, high];
    at("low").value = low ?? "";
    at("high").value = high ?? "";
    show();
    ask();
  };
  at("smoothing").addEventListener("input", (event) => {
    state.smoothing = +event.target.value;
    at("smoothed").textContent = event.target.value;
    show();
  });
  at("layers").addEventListener("input", (event) => {
    state.layers = event.target.value.toLowerCase();
    show();
  });
  for (const id of ["low", "high"]) {
    at(id).addEventListener("change", () => zoom(...["low", "high"].map((one) => (at(one).value === "" ? null : +at(one).value))));
  }
  at("reset").addEventListener("click", () => zoom(null, null));
  at("controls").addEventListener("submit", (event) => event.preventDefault());

  // The server says how old the last record was when it answered; since then time has passed here.
  const age = () => {
    const ages = state.data.runs.filter((run) => run.age !== null).map((run) => run.age);
    if (!ages.length) return "ended";
    const seconds = Math.round(Math.min(...ages) + (performance.now() - state.answered) / 1000);
    return `live, last written ${seconds < 120 ? `${seconds} s` : `${Math.round(seconds / 60)} min`} ago`;
  };

  // Ask again a second after the last answer, later if answers take long; nothing is asked while nobody looks.
  let timer = null, asking = false, again = false;
  const ask = async () => {
    clearTimeout(timer);
    if (asking) return void (again = true);
    asking = true;
    const began = performance.now();
    const query = new URLSearchParams({ parts: [...open].join("\n") });
    if (state.low !== null) query.set("low", state.low);
    if (state.high !== null) query.set("high", state.high);
    const same = query.toString() === state.asked;
    if (same) query.set("seen", state.version);
    try {
      const answer = await fetch(`data?${query}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.status);
      if (answer.status === 200) {
        state.data = await answer.json();
        state.answered = performance.now();
        state.version = state.data.version;
        query.delete("seen");
        state.asked = query.toString();
        show();
      }
      at("state").className = "";
      at("state").textContent = age();
    } catch {
      at("state").className = "lost";
      at("state").textContent = "the server does not answer: what is shown is the last that was known";
    }
    asking = false;
    const pause = again ? 0 : Math.max(1000, 4 * (performance.now() - began));
    again = false;
    timer = setTimeout(() => (document.hidden ? 0 : ask()), pause);
  };
  addEventListener("resize", () => show());
  document.addEventListener("visibilitychange", () => document.hidden || ask());
  ask();
})();
