"use strict";

const COLOURS = ["#2f5bd0", "#d0592f", "#168a63", "#8a3fc4", "#b58900", "#0f8ea3", "#c4326a", "#5d6778"];
const RUNS = DATA.runs.map((run, i) => ({ ...run, colour: COLOURS[i % COLOURS.length] }));
const MAIN = document.getElementById("main");

/** An element with attributes and children; text children are never read as HTML. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

function dot(run) {
  return el("span", { class: "dot", style: `background:${run.colour}` });
}

/** A section of the page, and its place in the navigation. */
function section(id, title, ...children) {
  document.getElementById("nav").append(el("a", { href: `#${id}` }, title));
  const node = el("section", { id }, el("h2", {}, title), ...children);
  MAIN.append(node);
  return node;
}

function first(values) { return values[0]; }
function last(values) { return values[values.length - 1]; }

/** The metric that says how good a policy is. */
function score(run) {
  const names = ["eval/accuracy", "eval/success", "eval/reward", "train/success", "train/reward"];
  return names.find((name) => run.curves[name]) ?? Object.keys(run.curves).find((name) => name.startsWith("eval/"));
}

function header() {
  const head = document.getElementById("header");
  head.append(el("h1", {}, RUNS.length > 1 ? `${RUNS.length} runs` : RUNS[0].name));
  for (const run of RUNS) {
    const setting = (key) => run.settings[`${key}.name`] ?? run.settings[key];
    const chips = ["algo", "backend", "rollout", "model", "data", "simulator", "mode", "seed"]
      .filter((key) => setting(key))
      .map((key) => el("span", { class: "chip" }, `${key} ${setting(key)}`));
    if (RUNS.length > 1) head.append(el("h3", {}, dot(run), run.name));
    head.append(el("div", { class: "chips" }, chips), numbers(run));
    if (run.wanted) {
      const share = Math.min(100, (100 * run.steps) / run.wanted);
      head.append(el("div", { class: "progress" }, el("i", { style: `width:${share}%` })));
    }
  }
}

function numbers(run) {
  const found = [["step", run.wanted ? `${run.steps} / ${run.wanted}` : String(run.steps)]];
  const name = score(run);
  if (name) {
    const values = run.curves[name].values;
    found.push([`${name}, first → last`, `${number(first(values))} → ${number(last(values))}`]);
  }
  for (const key of ["time/step", "util/tokens_per_s", "util/env_steps_per_s", "bubble_ratio"]) {
    const values = run.curves[key]?.values;
    if (values?.length) found.push([`${key}, mean`, number(values.reduce((a, b) => a + b, 0) / values.length)]);
  }
  return el("div", { class: "numbers" }, found.map(([label, value]) =>
    el("div", { class: "number" }, el("b", {}, value), el("span", {}, label))));
}

/* Curves ------------------------------------------------------------------------------------------------- */

/** Exponential moving average, corrected for its start. */
function smooth(values, weight) {
  if (!weight) return values;
  let mean = 0, norm = 0;
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    mean = weight * mean + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return mean / norm;
  });
}

function groupOf(name) {
  return name.includes("/") ? name.split("/")[0] : "other";
}

function curves() {
  const names = [...new Set(RUNS.flatMap((run) => Object.keys(run.curves)))].sort();
  if (!names.length) return;
  const state = { weight: 0, wanted: "" };
  const filter = el("input", { type: "search", placeholder: "filter, e.g. reward", "aria-label": "filter metrics" });
  const slider = el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, "aria-label": "smoothing" });
  const node = section("curves", "Curves", el("div", { class: "controls" }, filter, el("label", {}, "smoothing", slider)));
  if (RUNS.length > 1)
    node.append(el("div", { class: "chips" }, RUNS.map((run) => el("span", { class: "chip" }, dot(run), run.name))));
  const groups = new Map();
  for (const name of names) {
    if (!groups.has(groupOf(name))) groups.set(groupOf(name), []);
    groups.get(groupOf(name)).push(name);
  }
  const FIRST = /reward$|success$|accuracy$|response_length$|episode_length$|entropy$|grad_norm$|kl$|loss$/;
  for (const [group, own] of groups) groups.set(group, [...own.filter((n) => FIRST.test(n)), ...own.filter((n) => !FIRST.test(n))]);
  const order = ["eval", "train", ...[...groups.keys()].filter((key) => key !== "eval" && key !== "train")];
  const plots = [];
  for (const group of order.filter((key) => groups.has(key))) {
    const grid = el("div", { class: "grid" });
    const box = el("details", {}, el("summary", {}, `${group} (${groups.get(group).length})`), grid);
    const still = [];
    for (const name of groups.get(group)) {
      const value = constant(name);
      if (value !== null) { still.push(`${name.split("/").slice(1).join("/") || name} ${number(value)}`); continue; }
      const plot = { name, box, node: el("div", { class: "plot" }), drawn: false };
      grid.append(plot.node);
      plots.push(plot);
    }
    if (still.length) box.append(el("p", { class: "soft" }, `the same all the time: ${still.join(", ")}`));
    node.append(box);
    box.addEventListener("toggle", () => update());
    if (group === "eval" || group === "train") box.open = true;
  }
  function update(again = false) {
    for (const plot of plots) {
      const hidden = !plot.name.includes(state.wanted);
      plot.node.style.display = hidden ? "none" : "";
      if (!hidden && plot.box.open && (again || !plot.drawn)) draw(plot, state.weight);
    }
  }
  filter.addEventListener("input", () => { state.wanted = filter.value.trim(); update(); });
  slider.addEventListener("change", () => { state.weight = Number(slider.value); plots.forEach((p) => { p.drawn = false; }); update(); });
  update();
}

/** The one value that a metric had in all runs; null if it changed. */
function constant(name) {
  const values = RUNS.flatMap((run) => run.curves[name]?.values ?? []);
  return values.length > 1 && values.every((value) => value === values[0]) ? values[0] : null;
}

function draw(plot, weight) {
  plot.drawn = true;
  const meaning = DATA.meanings[plot.name];
  plot.node.replaceChildren(el("p", meaning ? { title: meaning, class: "known" } : {}, plot.name), el("div"));
  const traces = [];
  for (const run of RUNS) {
    const curve = run.curves[plot.name];
    if (!curve) continue;
    const lone = curve.steps.length === 1;
    if (weight) traces.push({ x: curve.steps, y: curve.values, mode: "lines", line: { color: run.colour, width: 1 }, opacity: 0.25, hoverinfo: "skip" });
    traces.push({ x: curve.steps, y: smooth(curve.values, weight), mode: lone ? "markers" : "lines", line: { color: run.colour, width: 1.6 }, marker: { color: run.colour }, name: run.name });
  }
  const layout = { height: 180, margin: { l: 48, r: 12, t: 8, b: 28 }, showlegend: false, font: { size: 11 },
    xaxis: { gridcolor: "#eef0f3", zeroline: false }, yaxis: { gridcolor: "#eef0f3", zeroline: false, exponentformat: "e" }, hovermode: "x" };
  Plotly.newPlot(plot.node.lastChild, traces, layout, { displayModeBar: false, responsive: true });
}

/* Samples ------------------------------------------------------------------------------------------------ */

const SHADES = {
  advantage: { field: "advantages", signed: true, what: "advantage of each token" },
  mismatch: { field: "mismatch", signed: false, what: "difference of the trainer's and the rollout's log-probability" },
  surprise: { field: "logprobs", signed: false, what: "how unlikely each token was when it was drawn" },
};

function samples() {
  const runs = RUNS.filter((run) => run.samples.length);
  if (!runs.length) return;
  const pick = el("select", { "aria-label": "run" }, runs.map((run, i) => el("option", { value: i }, run.name)));
  const step = el("select", { "aria-label": "step" });
  const colour = el("select", { "aria-label": "colour" });
  const list = el("div");
  const scale = el("span", { class: "soft" });
  section("samples", "Samples", el("div", { class: "controls" },
    runs.length > 1 ? el("label", {}, "run", pick) : null, el("label", {}, "step", step), el("label", {}, "colour", colour), scale), list);
  const chosen = () => runs[Number(pick.value) || 0];
  function steps() {
    const known = [...new Set(chosen().samples.map((sample) => sample.step))];
    step.replaceChildren(...known.map((value) => el("option", { value }, String(value))));
    step.value = last(known);
    const shades = Object.keys(SHADES).filter((key) => chosen().samples.some((s) => s[SHADES[key].field]?.length));
    colour.replaceChildren(...[...shades, "none"].map((key) => el("option", { value: key }, key)));
    show();
  }
  function show() {
    const found = chosen().samples.filter((sample) => sample.step === Number(step.value));
    const shade = SHADES[colour.value];
    const values = shade ? found.flatMap((sample) => sample[shade.field] ?? []).map(Math.abs) : [];
    const most = Math.max(1e-9, ...values);
    scale.replaceChildren(...(shade ? [bar(shade), ` ${shade.what}, up to ${number(most)}`] : []));
    list.replaceChildren(...found.map((sample) => card(sample, shade, most)));
  }
  pick.addEventListener("change", steps);
  step.addEventListener("change", show);
  colour.addEventListener("change", show);
  steps();
}

function bar(shade) {
  const ends = shade.signed ? `${tint(-1, true)}, #fff, ${tint(1, true)}` : `#fff, ${tint(1, false)}`;
  return el("span", { class: "legend", style: `background:linear-gradient(90deg, ${ends})` });
}

function tint(share, signed) {
  const strength = Math.min(1, Math.abs(share)) * 0.75;
  const [r, g, b] = !signed ? [240, 140, 0] : share < 0 ? [208, 50, 50] : [20, 140, 80];
  return `rgba(${r},${g},${b},${strength.toFixed(3)})`;
}

function card(sample, shade, most) {
  const reward = sample.reward ?? null;
  const facts = [`group ${sample.group}`, `replica ${sample.replica}`, `length ${sample.length}`, sample.finish, `weights ${sample.weight_version}`];
  for (const [name, value] of Object.entries(sample.reward_parts ?? {})) facts.push(`${name} ${number(value)}`);
  if (sample.success !== undefined) facts.push(sample.success ? "success" : "no success");
  if (sample.error) facts.push(`error: ${sample.error}`);
  const head = el("div", { class: "head" }, el("b", { class: reward > 0 ? "good" : "bad" }, `reward ${number(reward)}`), facts.filter(Boolean).map((fact) => el("span", {}, String(fact))));
  const body = sample.prompt === undefined ? [] : [
    el("div", { class: "prompt text" }, sample.prompt),
    response(sample, shade, most),
    sample.answer ? el("div", { class: "soft" }, `answer: ${sample.answer}`) : null,
  ];
  const others = Object.entries(sample.others ?? {}).map(([name, other]) => el("div", {},
    el("div", { class: "head" }, el("b", { class: other.reward > 0 ? "good" : "bad" }, `${name}: reward ${number(other.reward ?? null)}`), other.error ? el("span", {}, `error: ${other.error}`) : ""),
    el("div", { class: "text" }, other.response ?? "")));
  return el("div", { class: "sample" }, head, body, others);
}

function response(sample, shade, most) {
  const values = shade && sample[shade.field];
  if (!values || !sample.tokens) return el("div", { class: "text" }, sample.response ?? "");
  const heard = new Set(sample.heard);
  return el("div", { class: "text" }, sample.tokens.map((token, i) => heard.has(i)
    ? el("span", { class: "token heard", title: "said by a tool, not trained" }, token)
    : el("span", {
      class: "token",
      style: `background:${tint((shade.field === "logprobs" ? -values[i] : values[i]) / most, shade.signed)}`,
      title: ["advantages", "logprobs", "mismatch"].filter((key) => sample[key]).map((key) => `${key} ${number(sample[key][i])}`).join(", "),
    }, token)));
}

/* Videos, timeline, plan, settings, notes ------------------------------------------------------------------- */

function videos() {
  const found = RUNS.flatMap((run) => run.videos.map((video) => ({ ...video, run })));
  if (!found.length) return;
  const inside = found.filter((video) => video.source);
  const outside = found.filter((video) => !video.source);
  const node = section("videos", "Episodes", el("div", { class: "grid videos" }, inside.map((video) => {
    const picture = video.source.startsWith("data:image")
      ? el("img", { src: video.source, alt: video.name })
      : el("video", { src: video.source, controls: "", loop: "", muted: "", preload: "metadata" });
    return el("figure", {}, picture, el("figcaption", {}, RUNS.length > 1 ? dot(video.run) : "", video.name));
  })));
  if (outside.length) node.append(el("p", { class: "soft" }, `${outside.length} more in the runs' folders`));
}

function timeline() {
  const runs = RUNS.filter((run) => run.timeline.length);
  if (!runs.length) return;
  const choices = runs.flatMap((run) => run.timeline.map((bars) => ({ run, bars })));
  const pick = el("select", { "aria-label": "step" }, choices.map((each, i) =>
    el("option", { value: i }, `${runs.length > 1 ? `${each.run.name}, ` : ""}step ${each.bars.step}`)));
  pick.value = choices.length - 1;
  const place = el("div");
  section("timeline", "Timeline", el("div", { class: "controls" }, el("label", {}, "show", pick),
    el("span", { class: "soft" }, "one lane a worker; pale = it waits, white = idle; drag to zoom, double click to leave")), place);
  const show = () => bars(place, choices[Number(pick.value)].bars);
  pick.addEventListener("change", show);
  show();
}

function bars(place, step) {
  const lanes = [...new Set(step.bars.map((bar) => bar.lane))].reverse();
  const names = [...new Set(step.bars.map((bar) => bar.name))];
  const traces = names.map((name, i) => {
    const own = step.bars.filter((bar) => bar.name === name);
    const waits = own.every((bar) => bar.waits);
    return { type: "bar", orientation: "h", name, y: own.map((bar) => bar.lane), x: own.map((bar) => bar.seconds), base: own.map((bar) => bar.begin),
      marker: { color: waits ? "#e3e6eb" : COLOURS[i % COLOURS.length], line: { width: 0 } },
      hovertemplate: "%{fullData.name}: %{x:.4f} s<extra></extra>" };
  });
  const narrow = place.clientWidth < 560;
  const layout = { barmode: "overlay", height: 120 + 34 * lanes.length, margin: { l: narrow ? 96 : 170, r: 12, t: 8, b: 60 }, font: { size: 11 },
    xaxis: { title: { text: "seconds of the step" }, range: [0, step.seconds] },
    yaxis: { categoryorder: "array", categoryarray: lanes, ticktext: lanes.map((lane) => (narrow ? last(lane.split(" · ")) : lane)), tickvals: lanes },
    legend: { orientation: "h", y: -0.35 - 0.4 / Math.max(1, lanes.length) } };
  Plotly.newPlot(place, traces, layout, { displayModeBar: false, responsive: true });
}

function plan() {
  const runs = RUNS.filter((run) => run.plans.length);
  if (!runs.length) return;
  section("plan", "Plan", runs.flatMap((run) => [
    RUNS.length > 1 ? el("h3", {}, dot(run), run.name) : null,
    ...run.plans.flatMap(([step, text]) => [el("h3", {}, step ? `from step ${step} on` : "from the start"), el("pre", {}, text)]),
    ...why(run),
  ]));
}

/** What the run's measurements predict of the plans it could have, on the devices where the report was made. */
function why(run) {
  if (run.not_considered) return [el("p", { class: "soft" }, `no prediction: ${run.not_considered}`)];
  if (!run.considered.length) return [];
  return [el("h3", {}, "what its measurements predict"), table(["mode", "step", "idle", "placement", "why not"], run.considered.map((each) =>
    [each.mode, `${number(each.step_s)} s`, `${Math.round(100 * each.idle)} %`, each.placement, each.reason]))];
}

function table(heads, rows) {
  return el("div", { class: "scroll" }, el("table", {},
    el("tr", {}, heads.map((head) => el("th", {}, head))), rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell))))));
}

function settings() {
  const node = section("settings", "Settings");
  if (RUNS.length > 1)
    node.append(DATA.differences.length
      ? table(["differs", ...RUNS.map((run) => run.name)], DATA.differences.map(([key, values]) => [key, ...values]))
      : el("p", {}, "The runs have the same settings."));
  for (const run of RUNS)
    node.append(el("details", {}, el("summary", {}, `all of ${run.name}`), table(["setting", "value"], Object.entries(run.settings))));
}

function line(note) {
  return el("div", { class: `note ${note.kind}` }, el("b", {}, note.kind === "warning" ? "warning" : ""),
    note.step === null || note.step === undefined ? "" : el("span", { class: "soft" }, `step ${note.step} `), note.text);
}

function notes() {
  const runs = RUNS.filter((run) => run.notes.length);
  if (!runs.length) return;
  section("notes", "Notes and warnings", runs.map((run) => [
    RUNS.length > 1 ? el("h3", {}, dot(run), run.name) : null, run.notes.map(line)].flat()).flat());
}

header();
curves();
samples();
videos();
timeline();
plan();
settings();
notes();
document.getElementById("footer").textContent = `written ${DATA.written} by rlinf ${DATA.version}`;

/* A live page ---------------------------------------------------------------------------------------------- */

/** Loads the page again once its runs have gone on and nobody has touched it for a while. */
function live(everyMs = 3000, quietMs = 10000) {
  let touched = 0, stamp = null;
  for (const kind of ["pointerdown", "keydown", "wheel", "touchmove"])
    window.addEventListener(kind, () => { touched = Date.now(); }, { passive: true });
  window.setInterval(async () => {
    try {
      const now = await (await fetch("stamp", { cache: "no-store" })).text();
      if (stamp !== null && now !== stamp && Date.now() - touched > quietMs) location.reload();
      stamp = stamp ?? now;
    } catch {
      document.getElementById("footer").textContent = "the server of this page has ended";
    }
  }, everyMs);
}

if (DATA.live) live();
