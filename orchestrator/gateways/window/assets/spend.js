// Spend: what the days, models, people and trees of this namespace have cost, as a picture, a table, and a file.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { api, notice, onSignedOut, saveAs } from "./store.js";
import { plain } from "./text.js";
import { dollars, html, Link, place, quantity, scheme, short, title, Words } from "./parts.js";

const SPANS = [[7, "7 days"], [30, "30 days"], [90, "90 days"], [365, "A year"]], USUAL = 30;
const BY = [["day", "Day"], ["model", "Model"], ["who", "Person"], ["tree", "Tree"]];
const SHOWN = 5, TREES = 50, HEIGHT = 220, REST = "others";
const SHADES = [85, 62, 45, 32, 22, 13]; // how much ink is in the bars of each model: colours mean states

const found = signal(null), failed = signal("");
let asked = 0;
onSignedOut(() => { found.value = null; failed.value = ""; asked += 1; });

async function read(days) {
  const mine = ++asked;
  try {
    const [models, people, costly] = await Promise.all([
      api("spend/list", { days, by: ["day", "model"] }), api("spend/list", { days, by: ["who"] }), api("fleet/list", { sort: "cost", limit: TREES }),
    ]);
    if (mine !== asked) return;
    found.value = { days, from: models.from, to: models.to, models: models.data, people: people.data, trees: costly.data };
    failed.value = "";
  } catch (error) { if (mine === asked && error.status !== 401) failed.value = error.message; }
}

// ── figures ──────────────────────────────────────────────────────────────────────────────────────

const NOTHING = { tokens: 0, costMicro: 0, requests: 0 };
const plus = (a, b) => ({ tokens: a.tokens + b.tokens, costMicro: a.costMicro + b.costMicro, requests: a.requests + b.requests });
function summed(rows, name) {
  const sums = new Map();
  for (const row of rows) sums.set(row[name] ?? REST, plus(sums.get(row[name] ?? REST) ?? NOTHING, row));
  return [...sums].map(([key, sum]) => ({ name: key, ...sum }));
}
const costliest = (rows) => rows.sort((a, b) => b.costMicro - a.costMicro || b.tokens - a.tokens);
function daysOf({ from, to }) {
  const all = [];
  for (let at = Date.parse(from); at <= Date.parse(to); at += 86_400_000) all.push(new Date(at).toISOString().slice(0, 10));
  return all;
}
const dayWords = (day) => new Date(day).toLocaleDateString("en", { month: "short", day: "numeric", timeZone: "UTC" });

// ── the picture ──────────────────────────────────────────────────────────────────────────────────

let library = null;
function loadLibrary() {
  if (!document.querySelector("link[data-uplot]")) {
    const sheet = Object.assign(document.createElement("link"), { rel: "stylesheet", href: new URL("vendor/uplot.css", import.meta.url).href });
    sheet.dataset.uplot = "";
    document.head.append(sheet);
  }
  library ??= import("uplot").then(({ default: uPlot }) => uPlot);
  return library;
}

// The bars of the days, a shade a model; what the pointer is over stands in words beside them.
function Bars({ told, unit }) {
  const box = useRef(), [uPlot, setLibrary] = useState(null), [at, setAt] = useState(null), [dark, setDark] = useState(0);
  useEffect(() => {
    loadLibrary().then((loaded) => setLibrary(() => loaded), (error) => notice(`the picture cannot be drawn: ${error.message}`, { bad: true }));
    const scheming = matchMedia("(prefers-color-scheme: dark)"), anew = () => setDark((n) => n + 1);
    scheming.addEventListener("change", anew);
    return () => scheming.removeEventListener("change", anew);
  }, []);
  const days = daysOf(told), names = costliest(summed(told.models, "model")).map((row) => row.name);
  const models = names.length > SHOWN ? [...names.slice(0, SHOWN).filter((name) => name !== REST), REST] : names;
  const place = new Map(days.map((day, n) => [day, n])), values = models.map(() => days.map(() => 0));
  for (const row of told.models) {
    const model = models.indexOf(row.model ?? REST), n = place.get(row.day);
    if (n !== undefined) values[model < 0 ? models.length - 1 : model][n] += unit === "cost" ? row.costMicro : row.tokens;
  }
  useLayoutEffect(() => {
    if (!uPlot || !box.current) return undefined;
    // Each is drawn as high as it and all behind it, and in front of them.
    const stacked = values.map((_, n) => days.map((__, day) => values.slice(n).reduce((sum, one) => sum + one[day], 0)));
    const probe = box.current.querySelector(".probe"), colour = (css) => { probe.style.color = css; return getComputedStyle(probe).color; };
    const faint = colour("var(--faint)"), lines = colour("var(--line)"), font = '11.5px Geist, ui-sans-serif, system-ui, sans-serif';
    const axis = { stroke: faint, font, ticks: { show: false }, border: { show: false } };
    const chart = new uPlot({
      width: box.current.clientWidth, height: HEIGHT, padding: [8, 8, 0, 0], legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      scales: { x: { time: false, range: [-0.6, days.length - 0.4] }, y: { range: (_, __, most) => [0, (most || 1) * 1.06] } },
      axes: [
        { ...axis, grid: { show: false }, size: 30, incrs: [1, 2, 7, 14, 30, 60], values: (_, splits) => splits.map((n) => (Number.isInteger(n) && days[n] ? dayWords(days[n]) : "")) },
        { ...axis, grid: { stroke: lines, width: 1 }, size: 62, values: (_, splits) => splits.map((n) => (unit === "cost" ? dollars(n) : short(n))) },
      ],
      series: [{}, ...models.map((name, n) => ({ label: name, width: 0, fill: colour(`color-mix(in srgb, var(--text) ${SHADES[n]}%, var(--surface))`), paths: uPlot.paths.bars({ size: [0.74, 42] }), points: { show: false } }))],
      hooks: { setCursor: [(drawn) => setAt(drawn.cursor.idx ?? null)] },
    }, [days.map((_, n) => n), ...stacked], box.current);
    const resizes = new ResizeObserver(() => { if (box.current) chart.setSize({ width: box.current.clientWidth, height: HEIGHT }); });
    resizes.observe(box.current);
    return () => { resizes.disconnect(); chart.destroy(); };
  }, [uPlot, told, unit, scheme.value, dark]);
  const amount = unit === "cost" ? dollars : short, day = at === null ? null : days[at];
  const total = (n) => values[n].reduce((sum, one, where) => sum + (day === null || where === at ? one : 0), 0);
  return html`<figure class="bars-figure" data-testid="spend-chart"><figcaption><b>${day === null ? `${dayWords(told.from)} to ${dayWords(told.to)}` : dayWords(day)}</b>${models.map((name, n) => html`<span key=${name} class="legend"><i class=${`shade shade${n}`} aria-hidden="true"></i><${Words} text=${name} most=${60} /> <span class="num">${amount(total(n))}</span></span>`)}</figcaption>
    <div ref=${box} class="chart" role="img" aria-label=${`Bars of ${quantity(days.length, "day")}; the table below has the same figures`}><i class="probe" hidden></i></div></figure>`;
}

// ── the table and the file ───────────────────────────────────────────────────────────────────────

function rowsBy(by, told) {
  if (by === "day") return summed(told.models, "day").sort((a, b) => (a.name < b.name ? 1 : -1));
  if (by === "model") return costliest(summed(told.models, "model"));
  if (by === "who") return costliest(summed(told.people, "who"));
  return told.trees.filter((row) => row.tokens || row.costMicro).map((row) => ({ name: row.treeId, tree: row, tokens: row.tokens ?? 0, costMicro: row.costMicro ?? 0, requests: null }));
}
function Table({ by, told }) {
  const rows = rowsBy(by, told), most = Math.max(1, ...rows.map((row) => row.costMicro || 0)), mostTokens = Math.max(1, ...rows.map((row) => row.tokens));
  const words = BY.find(([name]) => name === by)[1], costs = rows.some((row) => row.costMicro);
  return html`<div class="wide" role="region" tabindex="0" aria-label=${`Spend by ${words.toLowerCase()}`}><table class="figures-table"><thead><tr><th scope="col">${words}</th><th scope="col" class="r">Cost</th><th scope="col" class="r">Tokens</th>${by === "tree" ? null : html`<th scope="col" class="r">Requests</th>`}<th scope="col" class="share"><span class="hidden">Share</span></th></tr></thead><tbody>${rows.map((row) => html`<tr key=${row.name} data-testid="spend-row" data-name=${row.name}><th scope="row">${row.tree ? html`<${Link} to=${`/tree/${row.name}`} class="under"><${Words} text=${title(row.tree)} most=${80} /><//>` : by === "day" ? html`<time datetime=${row.name}>${row.name}</time>` : html`<${Words} text=${row.name} most=${80} />`}</th><td class="r num">${row.costMicro ? dollars(row.costMicro) : "–"}</td><td class="r num">${row.tokens.toLocaleString("en")}</td>${by === "tree" ? null : html`<td class="r num">${row.requests.toLocaleString("en")}</td>`}<td class="share"><progress class="meter" aria-label="Beside the largest" max="1" value=${costs ? row.costMicro / most : row.tokens / mostTokens}></progress></td></tr>`)}</tbody></table></div>
    ${by === "tree" ? html`<p class="faint note">Trees have all that they ever used; the ${TREES} costliest are here.</p>` : null}`;
}

// A cell of a table file. One that a spreadsheet would take for a formula begins with a quote.
const cell = (value) => {
  const text = /^[=+\-@\t\r]/.test(`${value}`) && typeof value !== "number" ? `'${value}` : `${value}`;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};
async function save(days) {
  try {
    const { data, from, to } = await api("spend/list", { days, by: ["day", "model", "who"] });
    const rows = [["day", "model", "who", "cost_micro", "tokens", "requests"], ...data.map((row) => [row.day, row.model ?? "", row.who ?? "", row.costMicro, row.tokens, row.requests])];
    saveAs(new Blob([rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("")], { type: "text/csv;charset=utf-8" }), `dendro-spend-${from}-${to}.csv`);
  } catch (error) { notice(`no file was made: ${error.message}`, { bad: true }); }
}

// ── the page ─────────────────────────────────────────────────────────────────────────────────────

export function Spend() {
  const { query } = place.value, days = SPANS.map(([n]) => n).find((n) => `${n}` === query.get("days")) ?? USUAL;
  const by = BY.map(([name]) => name).find((name) => name === query.get("by")) ?? "day";
  useEffect(() => { read(days); }, [days]);
  const to = (changes) => { const next = new URLSearchParams({ days: `${days}`, by, ...changes }); return `/spend?${next}`; };
  const told = found.value?.days === days ? found.value : null, total = told?.models.reduce(plus, NOTHING), unit = total?.costMicro ? "cost" : "tokens";
  return html`<main class="fleet workers spend" data-testid="spend"><header><h1>Spend</h1><span class="faint" data-testid="spend-total">${told ? [total.costMicro ? dollars(total.costMicro) : "", `${short(total.tokens)} tokens`, quantity(total.requests, "request")].filter(Boolean).join(" · ") : ""}</span><span class="grow" /><div class="filters">${SPANS.map(([n, words]) => html`<${Link} key=${n} class="chip ${days === n ? "on" : ""}" aria-current=${days === n ? "true" : undefined} to=${to({ days: n })}>${words}<//>`)}</div><button class="mini" data-testid="spend-csv" disabled=${!told?.models.length} onClick=${() => save(days)}>CSV</button></header>
    ${failed.value ? html`<p class="error" role="alert">${failed.value} <button class="quiet" onClick=${() => read(days)}>Try again</button></p>` : null}
    <div class="scroll">${!told ? null : html`${told.models.length ? html`<${Bars} told=${told} unit=${unit} />` : html`<p class="nothing" data-testid="spend-empty">Nothing was spent from ${told.from} to ${told.to}. Each model request counts on the day on which it ends.</p>`}
      <div class="filters by" role="group" aria-label="Spend by">${BY.map(([name, words]) => html`<${Link} key=${name} class="chip ${by === name ? "on" : ""}" aria-current=${by === name ? "true" : undefined} data-testid=${`by-${name}`} to=${to({ by: name })}>${words}<//>`)}</div>
      <${Table} by=${by} told=${told} />
      ${told.models.length && !total.costMicro ? html`<p class="faint note">No costs: the workers have no <code>model_prices</code> for these models.</p>` : null}<p class="faint note">Days are UTC’s.</p>`}</div></main>`;
}
