// A tree: its agents as they are, beside the conversation of the chosen one.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { batch, computed, signal } from "@preact/signals";
import { api, hear, may, notice, onSignedOut, signedInMay } from "./store.js";
import { plain, visible } from "./text.js";
import { Age, agentName, amount, clock, dollars, Glyph, go, html, Key, Link, Meter, phone, place, quantity, quoted, short, title, Words } from "./parts.js";
import { bind, overlay } from "./keys.js";
import { Rows } from "./rows.js";
import { rowOf } from "./trees.js";
import { Decided } from "./decided.js";
import { Export } from "./treeacts.js";
import { Changes } from "./changes.js";
import { Banner, Compare, here, minute, PastTalk, Slider, Then } from "./past.js";
import { Conversation, focusComposer, interrupt, takeBackWords } from "./conversation.js";

const MOST_READ = 128; // of more agents not all logs are read for a place in the past
const MARKS = /\*\*|__|`/g;

// One tree: its agents by number, and what stands in its head.
class Grown {
  constructor(id, past = false) {
    this.id = id;
    this.past = past; // whether it is shown as it was
    this.agents = new Map(); // number → signal of an agent
    this.order = signal([]); // {id, depth, guides}, as they are drawn: each below its parent
    this.keys = signal([]); // the same as texts
    this.places = new Map(); // text → the same
    this.more = { tree: this };
    this.head = signal({});
    this.loaded = signal(false);
    this.error = signal("");
    this.gone = signal(null); // what is known of its end: {deletedBy, deletedAtMs}
  }

  begin() {
    this.ends = hear(`tree:${this.id}`, (event) => this.on(event));
  }
  end() { this.ends(); }

  async read() {
    try {
      const { agents, ...head } = await api("tree/read", { treeId: this.id });
      this.on({ type: "all", data: agents, ...head });
    } catch (error) { if (error.status === 404) this.gone.value ??= {}; else this.error.value = error.message; }
  }
  on({ type, data, changed, gone, ...head }) {
    if (type === "gone") { this.gone.value = head; return; }
    if (type === "error") { if (!this.loaded.peek()) this.error.value = head.error?.message ?? ""; return; }
    if (type === "reset") { this.read(); return; }
    if (type === "all") {
      const there = new Set(data.map((agent) => agent.agentId));
      for (const id of this.agents.keys()) if (!there.has(id)) this.agents.delete(id);
      this.loaded.value = true;
      this.error.value = "";
    }
    // Agents keep their places while none comes, goes or has another parent.
    let moved = type === "all" || Boolean(gone?.length);
    for (const agent of data ?? changed ?? []) {
      const known = this.agents.get(agent.agentId);
      moved ||= known?.peek().parentId !== agent.parentId;
      if (known) known.value = agent; else this.agents.set(agent.agentId, signal(agent));
    }
    for (const one of gone ?? []) this.agents.delete(typeof one === "object" ? one.agentId : Number(one));
    if (Object.keys(head).length) this.head.value = { ...this.head.peek(), ...head };
    if (moved) this.sort();
  }
  sort() {
    const below = new Map();
    for (const agent of [...this.agents.values()].map((each) => each.peek()).sort((a, b) => a.agentId - b.agentId)) {
      const parent = this.agents.has(agent.parentId) && agent.agentId !== agent.parentId ? agent.parentId : null;
      if (below.has(parent)) below.get(parent).push(agent.agentId); else below.set(parent, [agent.agentId]);
    }
    const found = [];
    // For each level above an agent: whether a line passes it by, ends in it, or branches to it.
    const walk = (id, depth, guides, place, kin) => {
      found.push({ id, depth, guides, place, kin });
      const children = below.get(id) ?? [];
      children.forEach((child, n) => {
        const last = n === children.length - 1;
        const above = guides.map((guide) => (guide === "tee" ? "thru" : guide === "end" ? "none" : guide));
        walk(child, depth + 1, [...above, last ? "end" : "tee"], n + 1, children.length);
      });
    };
    (below.get(null) ?? []).forEach((root, n, roots) => walk(root, 0, [], n + 1, roots.length));
    this.places = new Map(found.map((one) => [`${one.id}`, one]));
    this.more = { tree: this };
    batch(() => { this.order.value = found; this.keys.value = found.map((one) => `${one.id}`); });
  }
}
const trees = new Map();
export const treeOf = (id) => trees.get(id);
onSignedOut(() => { trees.forEach((tree) => tree.end()); trees.clear(); });

// ── agents ───────────────────────────────────────────────────────────────────────────────────────

const AT_REST = new Set(["idle", "ready", "failed"]);
function waitWords(agent) {
  const { waitsFor: wait, state } = agent;
  if (state === "needs") return "asks you";
  if (agent.lostAtMs) return "lost";
  if (agent.canceling) return AT_REST.has(state) ? "was canceled" : "is being canceled";
  if (state === null) return "state not recorded";
  if (!wait) return "";
  return wait.agentIds?.length ? `waits for ${wait.agentIds.slice(0, 6).join(", ")}${wait.agentIds.length > 6 ? "…" : ""}` : `waits for ${wait.text}`;
}
// A row renders anew for its own agent and its own selection, and for nothing else.
function Row({ tree, id, at }) {
  const one = tree.places.get(id), agent = tree.agents.get(Number(id))?.value, on = chosenRow.value === id;
  if (!agent || !one) return null;
  const wait = waitWords(agent), then = tree.past;
  return html`<div role="treeitem" id=${`agent-${id}`} aria-level=${one.depth + 1} aria-posinset=${one.place} aria-setsize=${one.kin} aria-selected=${on} data-testid="agent" data-agent-id=${id} data-label=${agent.label ?? ""} data-state=${agent.state} class="agent ${on ? "on" : ""} ${agent.state}" onClick=${() => go(here(`/tree/${tree.id}/${id}`))} ...${at}>
    ${one.guides.map((guide, n) => html`<i key=${n} class="guide ${guide}" />`)}<${Glyph} state=${agent.state ?? "unknown"} /><div class="text"><div class="line"><b class="clip"><${Words} text=${agentName(agent)} most=${60} /></b><span class="no">${id}</span>${wait ? html`<span class="wait clip ${agent.state}">${plain(wait, 120)}</span>` : null}<span class="grow" />${agent.tokens ? html`<span class="num faint">${short(agent.tokens)}</span>` : null}<${Age} since=${agent.sinceAtMs} until=${then ? tree.head.value.atMs : undefined} class="num" /></div><div class="doing">${then && agent.last === null ? html`<i class="faint">${tree.agents.size > MOST_READ ? "" : "not recorded"}</i>` : visible(plain((agent.last ?? "").replace(MARKS, ""), 200), { breaks: false })}</div></div></div>`;
}

// The thread of the one who gave an agent its task; null for a root, and for a fork, which begins with its parent's words.
const parentOf = (tree, agent) => (agent.agentId && agent.origin !== "fork" ? tree.agents.get(agent.parentId)?.peek().threadId ?? null : null);

// ── the page ─────────────────────────────────────────────────────────────────────────────────────

const TABS = [["agents", "Agents"], ["changes", "Changes"], ["log", "Log"], ["proof", "Proof"]];
const chosenId = computed(() => Number(place.value.agent ?? 0));
const chosenRow = computed(() => `${chosenId.value}`);

// A link to the agent of a thread, by its name as soon as it is known.
function AgentOf({ tree, live, thread }) {
  tree.order.value; live.order.value;
  // What is named at a place may have come within the same moment: now it is known.
  const one = [...tree.agents.values(), ...live.agents.values()].find((each) => each.peek().threadId === thread)?.value;
  return one ? html`<${Link} to=${here(`/tree/${tree.id}/${one.agentId}`, place.value)} class="under"><${Words} text=${agentName(one)} most=${60} /><//>` : html`<code>${plain(thread, 40)}</code>`;
}

export function Tree() {
  const id = place.value.tree;
  if (!trees.has(id)) trees.set(id, new Grown(id));
  const live = trees.get(id), list = useRef(), { at } = place.value, then = useMemo(() => new Then(new Grown(id, true)), [id]);
  useEffect(() => {
    live.begin();
    return () => { live.end(); if (trees.size > 4) trees.delete(trees.keys().next().value); };
  }, [id]);
  useEffect(() => { then.want(at); }, [then, at]);
  const tree = at === null ? live : then.grown;
  const agent = tree.agents.get(chosenId.value)?.value, [naming, setNaming] = useState(false);
  useLayoutEffect(() => bind({
    j: () => step(tree, 1), k: () => step(tree, -1), m: (event) => { event.preventDefault(); focusComposer(); }, z: () => takeBackWords(),
    i: () => { const one = tree.agents.get(chosenId.peek())?.peek(); if (one && may("submit")) interrupt(one.threadId); },
    c: () => { if (may("submit")) overlay.value = "cancel"; },
    f: () => { if (place.peek().at !== null && then.drawn.peek() === place.peek().at && signedInMay("submit")) overlay.value = "fork"; },
    e: (event) => { if (may("submit")) { event.preventDefault(); setNaming(true); } },
    Escape: () => { if (phone.peek() && place.peek().agent !== undefined) go(here(`/tree/${id}`)); },
  }), [tree]);
  // A turn whose end is shown has been read.
  const threadId = at === null ? agent?.threadId : null, state = agent?.state;
  useEffect(() => {
    if (!threadId || state === "working" || document.hidden) return;
    api("thread/read", { threadId }).then(({ readState }) => { if (readState?.firstUnread) return api("thread/readState/update", { threadId, operation: { type: "read" }, expectedRevision: readState.revision }); return null; }).catch(() => {});
  }, [threadId, state]);
  const link = useMemo(() => (thread) => html`<${AgentOf} tree=${tree} live=${live} thread=${thread} />`, [tree]);
  const head = tree.head.value, row = rowOf(id), name = head.title || row?.title || "";
  if (live.gone.value || tree.gone.value) return html`<main class="empty" data-testid="tree"><div><${Deleted} ...${live.gone.value ?? tree.gone.value} /><p><${Link} to="/fleet" class="under">Fleet<//></p></div></main>`;
  if (tree.error.value) return html`<main class="empty" data-testid="tree"><div><h1>This tree cannot be read</h1><p>${tree.error.value}</p><p><button onClick=${() => tree.read()}>Try again</button></p></div></main>`;
  const agents = [...tree.agents.values()].map((each) => each.peek()), working = tree.order.value && agents.filter((one) => one.state === "working").length;
  const pane = phone.value && place.value.agent !== undefined;
  const tokens = agents.reduce((sum, one) => sum + (one.tokens ?? 0), 0), cost = agents.reduce((sum, one) => sum + (one.costMicro ?? 0), 0);
  const near = nearest(head.budget), { tab } = place.value, idle = agents.every((one) => ["idle", "ready", "failed"].includes(one.state));
  return html`<main class="treepage ${pane ? "pane" : ""}" data-testid="tree">
    <header><div class="grow"><div class="crumbs"><${Link} to="/fleet">Fleet<//><span>›</span><span class="mono">${plain(String(id).slice(0, 8))}</span></div>${naming ? html`<${Name} id=${id} name=${name} close=${() => setNaming(false)} done=${(next) => { tree.head.value = { ...tree.head.peek(), title: next }; }} />` : html`<h1 class="clip" title=${plain(name)} onDblClick=${() => may("submit") && setNaming(true)}><${Words} text=${title({ title: name, treeId: id })} most=${200} /></h1>`}</div>
      <div class="figures">${tree.loaded.value ? html`<div><small>Agents</small><b>${working}<i> of ${agents.length}</i></b></div>` : null}${tokens ? html`<div><small>Tokens</small><b>${short(tokens)}</b></div>` : null}${cost && near?.kind !== "cost" ? html`<div><small>Cost</small><b>${dollars(cost)}</b></div>` : null}${tree.past && tree.loaded.value && !head.budget ? html`<div><small>Budget</small><b class="faint">not recorded</b></div>` : null}${near ? html`<div class="budget"><small>Budget${near.kind === "cost" ? "" : ` · ${plain(near.kind.replaceAll("_", " "), 30)}`}</small><b>${near.spent === null ? html`<i>not recorded</i>` : amount(near.kind, near.spent)}<i> of ${amount(near.kind, near.limit)}</i></b>${near.spent === null ? null : html`<${Meter} spent=${near.spent} limit=${near.limit} />`}</div>` : null}${may("approve") && !phone.value ? html`<button class="mini" data-testid="budget-add" onClick=${() => { overlay.value = "budget"; }}>Add…</button>` : null}${may("submit") && at === null && !phone.value && working > 1 ? html`<button class="mini" data-testid="interrupt-all" onClick=${() => { overlay.value = "stop"; }}>Interrupt all…</button>` : null}${may("submit") && !phone.value && !idle ? html`<button class="mini danger" data-testid="cancel" onClick=${() => { overlay.value = "cancel"; }}>Cancel…</button>` : null}<button class="quiet" aria-label="This tree" data-testid="tree-more" onClick=${() => { overlay.value = "about"; }}>⋯</button></div></header>
    <nav class="tabs" aria-label="Views of the tree">${TABS.map(([name, words]) => html`<${Link} key=${name} to=${here(`/tree/${id}/${chosenId.value}${name === "agents" ? "" : `/${name}`}`, name === "changes" && chosenId.value === 0 ? { all: true } : {})} class=${tab === name ? "on" : ""} aria-current=${tab === name ? "page" : undefined} data-testid=${`tab-${name}`}>${words}<//>`)}</nav>
    ${at === null ? null : html`<${Banner} id=${id} then=${then} />`}${place.value.held === null ? null : html`<${Compare} id=${id} tree=${tree} at=${at} drawn=${at === null ? null : then.drawn.value} />`}
    ${tab === "changes" ? (agent ? html`<${Changes} key=${agent.threadId} id=${id} tree=${tree} agent=${agent} at=${at} seq=${head.treeSeq + agent.sinceAtMs} />` : html`<section class="wholly" data-testid="changes">${tree.loaded.value ? html`<p class="nothing">${noAgent(at)}</p>` : null}</section>`) : tab === "log" ? html`<${Log} key=${at} tree=${tree} at=${at} />` : tab === "proof" ? html`<${Proof} tree=${live} at=${at} />` : html`<div class="body">
      <section class="agents" ref=${list} role="tree" tabindex="0" aria-label="Agents" aria-activedescendant=${agent ? `agent-${chosenId.value}` : undefined} data-testid="agents"><${Rows} key=${`${id} ${tree.past}`} keys=${tree.keys.value} Row=${Row} more=${tree.more} box=${list} usual=${phone.value ? 60 : 52} chosen=${chosenRow} name=${`agents ${id}`} /></section>
      ${agent && (!phone.value || pane) ? html`<${at === null ? Conversation : PastTalk} key=${agent.threadId} at=${at} agent=${agent} name=${agentName(agent)} link=${link} tree=${id} parent=${parentOf(tree, agent)} facts=${[`agent ${agent.agentId}`, agent.model, agent.machine || agent.holder].filter(Boolean).map((one) => plain(one, 60)).join(" · ")} back=${html`<${Link} to=${here(`/tree/${id}`)} class="back">‹ Agents<//>`} />` : phone.value ? null : html`<section class="talk" aria-label="Conversation">${tree.loaded.value ? html`<p class="nothing">${noAgent(at)}</p>` : null}</section>`}
    </div>`}<${Slider} id=${id} seq=${live.head.value.treeSeq} then=${then} /></main>`;
}
// The end of a tree. The server tells it to whom it belonged, for 30 days.
function Deleted({ deletedBy, deletedAtMs }) {
  if (!deletedAtMs) return html`<h1>There is no such tree</h1><p>It was deleted, or it is not yours to see.</p>`;
  const at = minute(deletedAtMs);
  return deletedBy ? html`<h1>This tree was deleted by <${Words} text=${deletedBy} most=${60} /> at ${at}</h1><p>Its logs, its requests and its folders are gone; what was exported before can be imported.</p>`
    : html`<h1>This tree was deleted at ${at}</h1><p>It had ended, and the time for which ended trees are kept was over.</p>`;
}
const noAgent = (at) => { const number = plain(String(place.value.agent ?? 0), 20); return at === null ? `There is no agent ${number} in this tree.` : `There was no agent ${number} yet, or it was off the list.`; };
// The limit that is shown: the nearest one when more than half of it is spent, else that of cost or of tokens.
function nearest(budget) {
  const limits = Object.entries(budget ?? {}).filter(([, one]) => one?.limit).map(([kind, one]) => ({ kind, ...one, share: one.spent / one.limit }));
  const [first] = limits.sort((a, b) => b.share - a.share);
  return first?.share > 0.5 ? first : limits.find((one) => one.kind === "cost") ?? limits.find((one) => one.kind === "tokens");
}
function step(tree, by) {
  const ids = tree.order.peek().map((one) => one.id), at = ids.indexOf(chosenId.peek());
  const next = ids[Math.min(ids.length - 1, Math.max(0, at + by))];
  if (next !== undefined && next !== chosenId.peek()) go(here(`/tree/${tree.id}/${next}`), { replace: true });
}
// ── log and proof ────────────────────────────────────────────────────────────────────────────────

const LOG_PAGE = 100;
const nameOf = (tree, number) => { const one = tree.agents.get(number)?.value; return one ? agentName(one) : `agent ${number}`; };

// What happened to several agents, in words, the newest first.
function Log({ tree, at }) {
  const [rows, setRows] = useState(null), [next, setNext] = useState(null), [why, setWhy] = useState(""), seq = at ?? tree.head.value.treeSeq;
  const read = (before = at === null ? undefined : at + 1) => api("tree/log", { treeId: tree.id, limit: LOG_PAGE, ...(before ? { before } : {}) }).then(({ data, nextBefore }) => {
    setWhy("");
    setNext((known) => (before || known === null ? nextBefore ?? 0 : known));
    setRows((known) => { const all = new Map([...(known ?? []), ...data].map((row) => [row.treeSeq, row])); return [...all.values()].filter((row) => row.text && (at === null || row.treeSeq <= at)).sort((a, b) => b.treeSeq - a.treeSeq); });
  }, (error) => setWhy(error.message));
  useEffect(() => { read(); }, [tree, seq]);
  return html`<section class="wholly" aria-label="Log" data-testid="log" tabindex="0">${why ? html`<p class="error">The log cannot be read: ${why}. <button class="quiet" onClick=${() => read()}>Try again</button></p>` : null}
    ${rows ? html`<table class="facts-table"><thead><tr><th scope="col">Time</th><th scope="col">Entry</th><th scope="col">Agent</th><th scope="col">What</th><th scope="col">Who</th></tr></thead><tbody>${rows.map((row) => html`<tr key=${row.treeSeq} data-testid="log-row"><td class="num"><time datetime=${new Date(row.atMs).toISOString()} title=${new Date(row.atMs).toLocaleString()}>${clock(row.atMs)}</time></td><td class="num faint">${row.treeSeq.toLocaleString("en")}</td><td><${Link} to=${here(`/tree/${tree.id}/${row.agentId}`)} class="under"><${Words} text=${nameOf(tree, row.agentId)} most=${60} /><//></td><td>${visible(row.text, { breaks: false })}</td><td>${row.who ? html`<${Words} text=${row.who} most=${60} />` : ""}</td></tr>`)}</tbody></table>${next ? html`<button class="quiet more" onClick=${() => read(next)}>Earlier entries</button>` : null}` : null}</section>`;
}

// Whether the chains of all logs hold, with the place of the first fault.
function Proof({ tree, at }) {
  const [found, setFound] = useState(null), [why, setWhy] = useState("");
  const read = (full = false) => { setFound(null); setWhy(""); return api("tree/verify", { treeId: tree.id, full }).then(setFound, (error) => setWhy(error.message)); };
  useEffect(() => { read(); }, [tree]);
  tree.order.value; // agents may come behind the verdict
  const by = (thread) => [...tree.agents.values()].map((one) => one.value).find((one) => one.threadId === thread);
  const rows = found ? [...found.sessions, ...(found.treeLog ? [{ ...found.treeLog, threadId: "" }] : [])] : [], bad = rows.filter((row) => row.ok === false);
  const entries = rows.reduce((sum, row) => sum + (row.verifiedTo ?? 0), 0);
  const first = bad.find((row) => row.fault), where = !first ? "" : ` The first fault is entry ${first.fault.seq.toLocaleString("en")} of ${!first.threadId ? "the tree’s own log" : by(first.threadId) ? quoted(by(first.threadId)) : "a log"}.`;
  const verdict = !found ? "" : found.ok ? `Every entry is as it was written: ${quantity(entries, "entry", "entries")} in ${quantity(found.sessions.length, "session")}${found.keyed ? ", under this deployment’s key" : ", by chains that have no key"}.` : found.ok === false ? `${quantity(bad.length, "log")} ${bad.length === 1 ? "is" : "are"} not as ${bad.length === 1 ? "it was" : "they were"} written.${where}` : "Nothing is wrong that can be checked here; a part is under another key.";
  return html`<section class="wholly" aria-label="Proof" data-testid="proof" tabindex="0">${at === null ? null : html`<p class="faint">Logs are verified as they are now, with what came later.</p>`}${why ? html`<p class="error">Not verified: ${why}. <button class="quiet" onClick=${() => read()}>Try again</button></p>` : null}
    ${found ? html`<p class="verdict ${found.ok ? "ok" : found.ok === false ? "bad" : ""}" data-testid="proof-verdict" data-ok=${String(found.ok)}>${verdict} <button class="mini" onClick=${() => read(true)}>Verify again from the start</button></p>
    <table class="facts-table"><thead><tr><th scope="col">Log</th><th scope="col">Verified</th><th scope="col">Chain head</th><th scope="col">Finding</th><th scope="col"><span class="hidden">Export</span></th></tr></thead><tbody>${rows.map((row) => { const agent = by(row.threadId); return html`<tr key=${row.threadId}><td>${row.threadId ? (agent ? html`<${Words} text=${agentName(agent)} most=${60} />` : html`<code>${plain(row.threadId, 40)}</code>`) : "the tree’s own log"}</td><td class="num">${(row.verifiedTo ?? 0).toLocaleString("en")}${row.of ? html`<span class="faint"> of ${row.of.toLocaleString("en")}</span>` : null}</td><td>${row.head ? html`<code title=${row.head}>${row.head.slice(0, 16)}…</code> <button class="quiet" aria-label="Copy the chain head" onClick=${() => navigator.clipboard?.writeText(row.head).then(() => notice("Copied.", { forMs: 2000, key: "copied" }), () => {})}>Copy</button>` : ""}</td><td class=${row.ok === false ? "bad" : "faint"}>${row.fault ? html`entry ${row.fault.seq.toLocaleString("en")}: ${visible(row.fault.text, { breaks: false })}` : row.unchecked ? visible(row.unchecked, { breaks: false }) : "none"}</td><td>${row.threadId ? html`<${Export} thread=${row.threadId} name=${agent ? agentName(agent) : ""} />` : null}</td></tr>`; })}</tbody></table>` : why ? null : html`<p class="faint late-shown">Verifies the chains of all logs of this tree…</p>`}<${Decided} tree=${tree} /></section>`;
}

// ── limits and the end of agents ─────────────────────────────────────────────────────────────────

export function AddBudget({ close }) {
  const tree = trees.get(place.peek().tree), [tokens, setTokens] = useState(""), [cost, setCost] = useState(""), [why, setWhy] = useState(""), id = useRef(crypto.randomUUID());
  const budget = Object.entries(tree?.head.value.budget ?? {}).filter(([, one]) => one?.limit);
  const add = { ...(Number(tokens) > 0 ? { tokens: Math.round(Number(tokens)) } : {}), ...(Number(cost) > 0 ? { costMicro: Math.round(Number(cost) * 1e6) } : {}) };
  const submit = async (event) => {
    event.preventDefault();
    // Sent again after an error it counts once: the id stays.
    try { await api("budget/add", { treeId: tree.id, requestId: id.current, add }); close(); notice("Added.", { forMs: 3000 }); } catch (error) { setWhy(error.message); }
  };
  return html`<form onSubmit=${submit}><h3>Add to the budget</h3>${budget.length ? html`<p class="faint">${budget.map(([kind, one]) => `${kind}: ${amount(kind, one.spent)} of ${amount(kind, one.limit)}`).join(" · ")}</p>` : html`<p class="faint">This tree has no limits: what is added begins one.</p>`}
    <div class="fields"><label>Tokens<input data-testid="budget-tokens" inputmode="numeric" pattern="[0-9]*" value=${tokens} onInput=${(event) => setTokens(event.target.value)} /></label><label>Dollars<input data-testid="budget-cost" inputmode="decimal" pattern="[0-9.]*" value=${cost} onInput=${(event) => setCost(event.target.value)} /></label></div>
    ${why ? html`<p class="error" role="alert">${why}</p>` : null}<footer><button class="primary" data-testid="budget-save" disabled=${!Object.keys(add).length}>Add</button><span class="grow" /><button type="button" onClick=${close}>Not now <${Key} k="Esc" /></button></footer></form>`;
}

const DEATHS = { proved: "has ended, which is proved", presumed: "is presumed to have ended", none: "had ended before, or ends later" };
export function Cancel({ close }) {
  const tree = trees.get(place.peek().tree), agent = tree?.agents.get(chosenId.peek())?.peek(), [why, setWhy] = useState(""), [busy, setBusy] = useState(false);
  if (!agent) return null;
  const order = tree.order.peek(), at = order.findIndex((one) => one.id === agent.agentId), below = order.slice(at + 1), end = below.findIndex((one) => one.depth <= order[at].depth);
  const dying = (end < 0 ? below : below.slice(0, end)).map((one) => tree.agents.get(one.id).peek()).filter((one) => !["idle", "ready", "failed"].includes(one.state));
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const { agents } = await api("agent/cancel", { threadId: agent.threadId });
      close();
      notice(agents.length ? agents.slice(0, 4).map((one) => `${quoted(tree.agents.get(one.agentId)?.peek() ?? one)} ${DEATHS[one.death] ?? one.death}`).join("; ") : "The tree has ended.", { forMs: 10_000 });
    } catch (error) { setWhy(error.message); setBusy(false); }
  };
  return html`<form onSubmit=${submit}><h3>Cancel ${agent.agentId ? visible(agentName(agent), { breaks: false }) : "the whole tree"}</h3><p>${agent.agentId ? "It ends" : "Its root ends"}${dying.length ? html`, and with it ${quantity(dying.length, "agent")} below: ${plain(dying.map(agentName).join(", "), 300)}` : ""}. What runs is stopped; what was said and done stays.</p>
    ${why ? html`<p class="error" role="alert">${why}</p>` : null}<footer><button class="danger" data-testid="confirm" disabled=${busy}>Cancel ${dying.length + 1 > 1 ? `${dying.length + 1} agents` : "it"}</button><span class="grow" /><button type="button" onClick=${close}>Not now <${Key} k="Esc" /></button></footer></form>`;
}
function Name({ id, name, close, done }) {
  const box = useRef();
  // Not by `value`: what is typed stays when the tree is drawn anew.
  useLayoutEffect(() => { box.current.value = name; box.current.select(); }, []);
  const save = async (event) => {
    event.preventDefault();
    const next = box.current.value.trim();
    close();
    if (!next || next === name) return;
    done(next);
    try { await api("thread/name/set", { threadId: id, name: next }); } catch (error) { done(name); notice(error.message, { bad: true }); }
  };
  return html`<form class="naming" onSubmit=${save}><input ref=${box} aria-label="Title" maxlength="200" onKeyDown=${(event) => { if (event.key === "Escape") close(); }} onBlur=${close} /><span class="faint"><${Key} k="⏎" /></span></form>`;
}
