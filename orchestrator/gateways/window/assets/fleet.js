// Fleet: every tree by its state, and new ones.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { computed, signal } from "@preact/signals";
import { api, may, now, onSignedOut, session } from "./store.js";
import { plain, visible } from "./text.js";
import { Age, canopy, dollars, Glyph, go, html, Key, Link, Meter, phone, place, quantity, short, Stat, STATES, title, Words } from "./parts.js";
import { bind, overlay } from "./keys.js";
import { Rows } from "./rows.js";
import { counts, damaged, failed, loaded, ORDER, order, readAll, readMore, rows, rowsNow } from "./trees.js";

const FOLDED = 20, HEAD = 34, MARKS = /\*\*|__|`/g;
const chosen = signal(null), unfolded = signal(false);
onSignedOut(() => { chosen.value = null; });

const lastWords = (row) => plain((row.waitsFor?.text && !row.last ? `waits for ${row.waitsFor.text}` : row.last ?? "").replace(MARKS, ""), 200);
// What a tree did in the last hour: the model requests that ended in each five minutes of it, up to now. The line that
// a count is as high as is that of the tree's own busiest time, and of ten at least.
const SLOT_MS = 300_000, slotNow = computed(() => Math.floor(now.value / SLOT_MS));
function Hour({ activity }) {
  const found = Array(12).fill(0), late = activity ? slotNow.value - Math.floor(activity.lastAtMs / SLOT_MS) : 12;
  activity?.requests.forEach((count, n) => { const at = n - Math.max(0, late); if (at >= 0) found[at] = count; });
  const sum = found.reduce((all, one) => all + one, 0), most = Math.max(10, ...found), words = activity === null ? "Not counted yet" : sum ? `${quantity(sum, "model request")} in the last hour` : "No model request in the last hour";
  return html`<svg class="hour" width="70" height="22" viewBox="0 0 70 22" role="img" aria-label=${words} data-testid="activity"><title>${words}</title>${sum ? found.map((count, n) => html`<rect key=${n} class=${count ? "" : "none"} x=${n * 6} y=${count ? (20 - 18 * Math.sqrt(count / most)).toFixed(1) : 20} width="4" height=${count ? (1 + 18 * Math.sqrt(count / most)).toFixed(1) : 1} />`) : null}</svg>`;
}
// A row renders anew for its own tree and its own selection, and for nothing else.
function Row({ id, index, at, before }) {
  const row = rows.get(id)?.value, on = chosen.value === id;
  if (!row) return null;
  const { total = 1, working = 0 } = row.agents ?? {};
  return html`<div role="row" aria-rowindex=${before + index + 1} aria-selected=${on} data-testid="tree-row" data-tree=${id} data-state=${row.state} class="cols tree-row ${on ? "on" : ""} ${row.unread ? "unread" : ""}" onClick=${(event) => { if (!event.target.closest("a")) go(`/tree/${id}`); }} ...${at}>
    <span role="gridcell"><${Glyph} state=${row.state} /></span>
    <span role="gridcell" class="title"><b><${Link} to=${`/tree/${id}`} tabindex="-1"><${Words} text=${title(row)} most=${140} /><//></b><small class=${row.state}>${visible(lastWords(row), { breaks: false })}</small></span>
    <span role="gridcell" class="can">${canopy(row.shape?.length ? row.shape : [[0, null, row.state]], 92, 26)}</span>
    <span role="gridcell" class="act"><${Hour} activity=${row.activity ?? null} /></span>
    <span role="gridcell" class="r num work"><b>${working}</b><i>/${total}</i></span>
    <span role="gridcell" class="r num tok">${short(row.tokens ?? 0)}</span>
    <span role="gridcell" class="r num cost">${row.costMicro ? dollars(row.costMicro) : html`<i>–</i>`}${row.budget && (row.budget.kind === "cost" || row.budget.spent > row.budget.limit / 2) ? html`<${Meter} kind=${row.budget.kind} spent=${row.budget.spent} limit=${row.budget.limit} />` : null}</span>
    <span role="gridcell" class="r chg">${row.change ? html`<${Stat} added=${row.change.added} removed=${row.change.removed} />` : null}</span>
    <span role="gridcell" class="pool faint clip">${plain(row.pool ?? "", 40)}</span>
    <span role="gridcell" class="r num faint age"><${Age} since=${row.lastAtMs} /></span>
  </div>`;
}

const wanted = () => {
  const { query } = place.value;
  return { q: (query.get("q") ?? "").trim().toLowerCase(), state: query.get("state"), pool: query.get("pool"), mine: query.has("mine") };
};
function filtered() {
  const { q, state, pool, mine } = wanted(), me = session.value.who;
  return order.value.filter(([id, is]) => {
    const row = rows.get(id).peek();
    return (!state || is === state) && (!pool || row.pool === pool) && (!mine || row.who === me) && (!q || `${row.title} ${row.last} ${row.who} ${row.pool} ${row.treeId}`.toLowerCase().includes(q));
  });
}
function to(changes) {
  const { q, state, pool, mine } = { ...wanted(), ...changes }, query = new URLSearchParams();
  if (q) query.set("q", q);
  if (state) query.set("state", state);
  if (pool) query.set("pool", pool);
  if (mine) query.set("mine", "");
  return `/fleet${query.size ? `?${query.toString().replace("mine=", "mine")}` : ""}`;
}

// The rows of one state.
function Group({ name, shown, before, box }) {
  const more = useMemo(() => ({ before }), [before]);
  return html`<${Rows} keys=${shown.map(([id]) => id)} Row=${Row} more=${more} box=${box} usual=${phone.value ? 62 : 48} chosen=${chosen} name=${`fleet ${name} ${place.value.query}`} above=${HEAD} />`;
}

export function Fleet() {
  const filter = useRef(), box = useRef();
  useLayoutEffect(() => bind({
    j: () => step(1), k: () => step(-1), n: (event) => { if (may("submit")) { event.preventDefault(); overlay.value = "tree"; } },
    Enter: () => { if (chosen.peek() && !document.activeElement?.closest("a, button")) go(`/tree/${chosen.peek()}`); },
    "/": (event) => { event.preventDefault(); filter.current?.focus(); }, Escape: () => { if (document.activeElement === filter.current) filter.current.blur(); },
  }), []);
  if (failed.value && !loaded.value) return html`<main class="empty" data-testid="fleet"><div><h1>The fleet cannot be read</h1><p>${failed.value}</p><p><button onClick=${readAll}>Try again</button></p></div></main>`;
  const list = filtered(), { q, state, pool, mine } = wanted(), bare = !q && !state && !pool && !mine;
  const pools = [...new Set([...rows.values()].map((row) => row.peek().pool).filter(Boolean))].sort().slice(0, 6);
  const total = Object.entries(counts.value).reduce((sum, [name, n]) => sum + (name === "archived" ? 0 : n), 0) || order.value.length;
  let above = 0;
  const groups = ORDER.map((name) => [name, list.filter(([, is]) => is === name)]).filter(([, found]) => found.length);
  return html`<main class="fleet" data-testid="fleet">
    <header><h1>Fleet</h1><span class="count">${loaded.value ? total : ""}</span><span class="grow" /><div class="filters"><${Link} class="chip ${bare ? "on" : ""}" to="/fleet">All<//><${Link} class="chip ${mine ? "on" : ""}" to=${to({ mine: !mine })}>Mine<//>${pools.length > 1 ? pools.map((name) => html`<${Link} key=${name} class="chip pools ${pool === name ? "on" : ""}" to=${to({ pool: pool === name ? null : name })}>${plain(name, 30)}<//>`) : null}<input ref=${filter} data-testid="filter" aria-label="Filter" placeholder="Filter…  /" value=${place.value.query.get("q") ?? ""} onInput=${(event) => go(to({ q: event.target.value }), { replace: true })} /></div>${may("submit") ? html`<button class="mini new" onClick=${() => { overlay.value = "tree"; }}>New tree <${Key} k="n" /></button>` : null}</header>
    ${damaged.value.length ? html`<p class="error" role="alert" data-testid="damaged">${quantity(damaged.value.length, "tree")} cannot be read: <code>dendro verify ${damaged.value[0]}</code></p>` : null}
    ${loaded.value && !order.value.length ? html`<${First} />` : html`<div class="cols head" aria-hidden="true"><span></span><span>Tree</span><span>Agents</span><span class="act">Last hour</span><span class="r">Working</span><span class="r">Tokens</span><span class="r">Cost</span><span class="r chg">Changes</span><span class="pool">Pool</span><span class="r">Last</span></div>
    <div role="grid" aria-label="Trees" aria-rowcount=${list.length} class="rows" tabindex="0" ref=${box}>${groups.map(([name, found]) => {
      const before = above;
      above += found.length;
      const folded = name === "idle" && bare && !unfolded.value, shown = folded ? found.slice(0, FOLDED) : found, all = bare ? Math.max(counts.value[name] ?? 0, found.length) : found.length;
      return html`<section key=${name} role="rowgroup" aria-label=${STATES[name]}><div class="group" aria-hidden="true">${STATES[name]}<span>${all}</span></div><${Group} name=${name} shown=${shown} before=${before} box=${box} /></section>${name === "idle" && (found.length > shown.length || all > found.length) ? html`<button class="quiet more" onClick=${() => { unfolded.value = true; if (all > found.length) readMore(); }}>Older trees</button>` : null}`;
    })}${loaded.value && !list.length ? html`<p class="nothing">No tree is like this. <${Link} to="/fleet" class="under">All<//></p>` : null}</div>`}
  </main>`;
}
function step(by) {
  const ids = filtered().map(([id]) => id), at = ids.indexOf(chosen.peek());
  chosen.value = ids[at < 0 ? 0 : Math.min(ids.length - 1, Math.max(0, at + by))] ?? null;
}
const First = () => html`<div class="empty"><div>${canopy([[0, null], [1, 0], [2, 0], [3, 0]], 160, 80, true)}<h1>No tree has grown here yet</h1><p>Press <kbd>n</kbd>, or begin one on the command line:</p><pre class="command">cd your/project\ndendro run "Find the flaky test"\ndendro</pre></div></div>`;

// ── a new tree ───────────────────────────────────────────────────────────────────────────────────

// A pool of one machine has an id for a name: its machine says more.
const poolWords = (name, its) => { const [one] = its, machine = name.startsWith("host:") && one.machine ? `${plain(one.machine, 30)} · ` : ""; return `${machine}${plain(name, machine ? 22 : 40)} · ${quantity(its.length, "worker")}`; };
// What was written for a new tree stays until it is begun.
const draft = { words: "", folder: null };
onSignedOut(() => { draft.words = ""; draft.folder = null; });
export function NewTree({ close }) {
  const newest = rowsNow()[0], [words, setWords] = useState(draft.words), [folder, setFolder] = useState(draft.folder ?? newest?.cwd ?? ""), [model, setModel] = useState(""), [models, setModels] = useState([]), [why, setWhy] = useState(""), [busyNow, setBusy] = useState(false), [portable, setPortable] = useState(false), [pool, setPool] = useState(""), [workers, setWorkers] = useState([]), box = useRef();
  useEffect(() => { api("model/list").then(({ data }) => setModels(data), () => {}); }, []);
  useEffect(() => { if (may("approve")) api("worker/list").then(({ data }) => setWorkers(data.filter((one) => one.status === "serving")), () => {}); }, []);
  // A portable session is for any machine.
  const pools = new Map();
  for (const one of workers) for (const name of one.pools) if (!portable || !name.startsWith("host:")) pools.set(name, [...(pools.get(name) ?? []), one]);
  const chosen = pools.has(pool) ? pool : "";
  const submit = async (event) => {
    event?.preventDefault();
    const said = box.current.value.trim();
    if (!said || busyNow) return;
    setBusy(true);
    try {
      const place = folder.trim(), where = portable ? { workspace: place ? { folder: place } : { empty: true } } : place ? { cwd: place } : {};
      const { thread } = await api("thread/start", { ...where, ...(model ? { model } : {}), ...(chosen ? { config: { pool: chosen } } : {}) });
      await api("turn/start", { threadId: thread.id, input: [{ type: "text", text: said }], clientUserMessageId: crypto.randomUUID() });
      draft.words = "";
      draft.folder = null;
      close();
      go(`/tree/${thread.id}`);
    } catch (error) { setWhy(error.message); setBusy(false); }
  };
  return html`<form onSubmit=${submit} data-testid="new-tree"><label>What is to be done<textarea ref=${box} rows="4" maxlength="400000" value=${words} onInput=${(event) => { draft.words = event.target.value; setWords(event.target.value); }} onKeyDown=${(event) => { if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) submit(event); }} /></label>
    <div class="fields"><label>Folder<input value=${folder} placeholder="as the server has it" onInput=${(event) => { draft.folder = event.target.value; setFolder(event.target.value); }} /></label><label>Model<select value=${model} onChange=${(event) => setModel(event.target.value)}><option value="">default</option>${models.map((one) => html`<option key=${one.id} value=${one.model ?? one.id}>${plain(one.displayName ?? one.id, 60)}</option>`)}</select></label>${may("approve") ? html`<label>Pool<select value=${chosen} data-testid="new-tree-pool" onChange=${(event) => setPool(event.target.value)}><option value="">${portable ? "any worker" : "this server’s"}</option>${[...pools].sort(([one], [other]) => one.localeCompare(other)).map(([name, its]) => html`<option key=${name} value=${name}>${poolWords(name, its)}</option>`)}</select></label>` : null}</div>
    <label class="row check"><input type="checkbox" data-testid="portable" checked=${portable} onChange=${(event) => setPortable(event.target.checked)} /> Portable: a copy of the folder, or an empty one, that any worker can make</label>
    ${why ? html`<p class="error" role="alert">${why}</p>` : null}<footer><button class="primary" disabled=${busyNow || !words.trim()}>Begin <${Key} k="⌘⏎" /></button><span class="grow" /><button type="button" onClick=${close}>Not now</button></footer></form>`;
}
