// A tree: its agents as they are, beside the conversation of the chosen one.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { computed, signal } from "@preact/signals";
import { api, hear, may, notice, onSignedOut } from "./store.js";
import { plain, visible } from "./text.js";
import { Age, agentName, dollars, Glyph, go, html, Key, Link, phone, place, short, title, Words } from "./parts.js";
import { bind } from "./keys.js";
import { amount, Meter, rowOf } from "./fleet.js";
import { Conversation, focusComposer, interrupt, takeBackWords } from "./conversation.js";

const MARKS = /\*\*|__|`/g;

// One tree: its agents by number, and what stands in its head.
class Grown {
  constructor(id) {
    this.id = id;
    this.agents = new Map(); // number → signal of an agent
    this.order = signal([]); // [number, parent], as they are drawn: each below its parent
    this.head = signal({});
    this.loaded = signal(false);
    this.error = signal("");
    this.gone = signal(false);
  }

  begin() {
    this.ends = hear(`tree:${this.id}`, (event) => this.on(event));
  }
  end() { this.ends(); }

  async read() {
    try {
      const { agents, ...head } = await api("tree/read", { treeId: this.id });
      this.on({ type: "all", data: agents, ...head });
    } catch (error) { if (error.status === 404) this.gone.value = true; else this.error.value = error.message; }
  }
  on({ type, data, changed, gone, ...head }) {
    if (type === "gone") { this.gone.value = true; return; }
    if (type === "error") { if (!this.loaded.peek()) this.error.value = head.error?.message ?? ""; return; }
    if (type === "reset") { this.read(); return; }
    if (type === "all") {
      const there = new Set(data.map((agent) => agent.agentId));
      for (const id of this.agents.keys()) if (!there.has(id)) this.agents.delete(id);
      this.loaded.value = true;
      this.error.value = "";
    }
    for (const agent of data ?? changed ?? []) {
      const known = this.agents.get(agent.agentId);
      if (known) known.value = agent; else this.agents.set(agent.agentId, signal(agent));
    }
    for (const one of gone ?? []) this.agents.delete(typeof one === "object" ? one.agentId : Number(one));
    if (Object.keys(head).length) this.head.value = { ...this.head.peek(), ...head };
    this.sort();
  }
  sort() {
    const below = new Map();
    for (const agent of [...this.agents.values()].map((each) => each.peek()).sort((a, b) => a.agentId - b.agentId)) {
      const parent = this.agents.has(agent.parentId) && agent.agentId !== agent.parentId ? agent.parentId : null;
      below.set(parent, [...(below.get(parent) ?? []), agent.agentId]);
    }
    const found = [];
    // For each level above an agent: whether a line passes it by, ends in it, or branches to it.
    const walk = (id, depth, guides) => {
      found.push({ id, depth, guides });
      const children = below.get(id) ?? [];
      children.forEach((child, n) => {
        const last = n === children.length - 1;
        const above = guides.map((guide) => (guide === "tee" ? "thru" : guide === "end" ? "none" : guide));
        walk(child, depth + 1, [...above, last ? "end" : "tee"]);
      });
    };
    for (const root of below.get(null) ?? []) walk(root, 0, []);
    if (JSON.stringify(found) !== JSON.stringify(this.order.peek())) this.order.value = found;
  }
}
const trees = new Map();
onSignedOut(() => { trees.forEach((tree) => tree.end()); trees.clear(); });

// ── agents ───────────────────────────────────────────────────────────────────────────────────────

function waitWords(agent) {
  const { waitsFor: wait, state } = agent;
  if (state === "needs") return "asks you";
  if (agent.lostAtMs) return "lost";
  if (agent.canceling) return "is being canceled";
  if (!wait) return "";
  return wait.agentIds?.length ? `waits for ${wait.agentIds.slice(0, 6).join(", ")}${wait.agentIds.length > 6 ? "…" : ""}` : `waits for ${wait.text}`;
}
// A row renders anew for its own agent and its own selection, and for nothing else.
function Row({ tree, at, chosen }) {
  const agent = tree.agents.get(at.id)?.value, on = chosen.value === at.id, self = useRef();
  useEffect(() => { if (on) self.current?.scrollIntoView({ block: "nearest" }); }, [on]);
  if (!agent) return null;
  const wait = waitWords(agent);
  return html`<div role="treeitem" ref=${self} id=${`agent-${at.id}`} aria-level=${at.depth + 1} aria-selected=${on} data-testid="agent" data-agent-id=${at.id} data-label=${agent.label ?? ""} data-state=${agent.state} class="agent ${on ? "on" : ""} ${agent.state}" onClick=${() => go(`/tree/${tree.id}/${at.id}`)}>
    ${at.guides.map((guide, n) => html`<i key=${n} class="guide ${guide}" />`)}<${Glyph} state=${agent.state} /><div class="text"><div class="line"><b class="clip"><${Words} text=${agentName(agent)} most=${60} /></b><span class="no">${at.id}</span>${wait ? html`<span class="wait clip ${agent.state}">${plain(wait, 120)}</span>` : null}<span class="grow" />${agent.tokens ? html`<span class="num faint">${short(agent.tokens)}</span>` : null}<${Age} since=${agent.sinceAtMs} class="num" /></div><div class="doing">${visible(plain((agent.last ?? "").replace(MARKS, ""), 200), { breaks: false })}</div></div></div>`;
}

// ── the page ─────────────────────────────────────────────────────────────────────────────────────

const chosenId = computed(() => Number(place.value.agent ?? 0));

export function Tree() {
  const id = place.value.tree;
  if (!trees.has(id)) trees.set(id, new Grown(id));
  const tree = trees.get(id), list = useRef();
  useEffect(() => {
    tree.begin();
    return () => { tree.end(); if (trees.size > 4) trees.delete(trees.keys().next().value); };
  }, [id]);
  const agent = tree.agents.get(chosenId.value)?.value, [naming, setNaming] = useState(false);
  useEffect(() => bind({
    j: () => step(tree, 1), k: () => step(tree, -1), m: (event) => { event.preventDefault(); focusComposer(); }, z: () => takeBackWords(),
    i: () => { const one = tree.agents.get(chosenId.peek())?.peek(); if (one && may("submit")) interrupt(one.threadId); },
    e: (event) => { if (may("submit")) { event.preventDefault(); setNaming(true); } },
    Escape: () => { if (phone.peek() && place.peek().agent !== undefined) go(`/tree/${id}`); },
  }), [id]);
  // A turn whose end is shown has been read.
  const threadId = agent?.threadId, at = agent?.state;
  useEffect(() => {
    if (!threadId || at === "working" || document.hidden) return;
    api("thread/read", { threadId }).then(({ readState }) => { if (readState?.firstUnread) return api("thread/readState/update", { threadId, operation: { type: "read" }, expectedRevision: readState.revision }); return null; }).catch(() => {});
  }, [threadId, at]);
  const head = tree.head.value, row = rowOf(id), name = head.title || row?.title || "";
  if (tree.gone.value) return html`<main class="empty" data-testid="tree"><div><h1>There is no such tree</h1><p>It was deleted, or it is not yours to see.</p><p><${Link} to="/fleet" class="under">Fleet<//></p></div></main>`;
  if (tree.error.value) return html`<main class="empty" data-testid="tree"><div><h1>This tree cannot be read</h1><p>${tree.error.value}</p><p><button onClick=${() => tree.read()}>Try again</button></p></div></main>`;
  const agents = [...tree.agents.values()].map((each) => each.peek()), working = tree.order.value && agents.filter((one) => one.state === "working").length;
  const pane = phone.value && place.value.agent !== undefined;
  const tokens = agents.reduce((sum, one) => sum + (one.tokens ?? 0), 0), cost = agents.reduce((sum, one) => sum + (one.costMicro ?? 0), 0);
  const near = nearest(head.budget);
  const link = (thread) => { const one = [...tree.agents.values()].find((each) => each.peek().threadId === thread)?.peek(); return one ? html`<${Link} to=${`/tree/${id}/${one.agentId}`} class="under"><${Words} text=${agentName(one)} most=${60} /><//>` : html`<code>${plain(thread, 40)}</code>`; };
  return html`<main class="treepage ${pane ? "pane" : ""}" data-testid="tree">
    <header><div class="grow"><div class="crumbs"><${Link} to="/fleet">Fleet<//><span>›</span><span class="mono">${plain(String(id).slice(0, 8))}</span></div>${naming ? html`<${Name} id=${id} name=${name} close=${() => setNaming(false)} done=${(next) => { tree.head.value = { ...tree.head.peek(), title: next }; }} />` : html`<h1 class="clip" title=${plain(name)} onDblClick=${() => may("submit") && setNaming(true)}><${Words} text=${title({ title: name, treeId: id })} most=${200} /></h1>`}</div>
      <div class="figures">${tree.loaded.value ? html`<div><small>Agents</small><b>${working}<i> of ${agents.length}</i></b></div>` : null}${tokens ? html`<div><small>Tokens</small><b>${short(tokens)}</b></div>` : null}${cost && near?.kind !== "cost" ? html`<div><small>Cost</small><b>${dollars(cost)}</b></div>` : null}${near ? html`<div class="budget"><small>Budget</small><b>${amount(near.kind, near.spent)}<i> of ${amount(near.kind, near.limit)}</i></b><${Meter} spent=${near.spent} limit=${near.limit} /></div>` : null}</div></header>
    <div class="body">
      <section class="agents" ref=${list} role="tree" tabindex="0" aria-label="Agents" aria-activedescendant=${`agent-${chosenId.value}`} data-testid="agents">${tree.order.value.map((one) => html`<${Row} key=${one.id} tree=${tree} at=${one} chosen=${chosenId} />`)}</section>
      ${agent && (!phone.value || pane) ? html`<${Conversation} key=${agent.threadId} agent=${agent} name=${agentName(agent)} link=${link} facts=${[`agent ${agent.agentId}`, agent.model, agent.machine || agent.holder].filter(Boolean).map((one) => plain(one, 60)).join(" · ")} back=${html`<${Link} to=${`/tree/${id}`} class="back">‹ Agents<//>`} />` : phone.value ? null : html`<section class="talk" aria-label="Conversation">${tree.loaded.value ? html`<p class="nothing">There is no agent ${plain(String(place.value.agent), 20)} in this tree.</p>` : null}</section>`}
    </div></main>`;
}
// Of the limits the one that is nearest.
function nearest(budget) {
  const limits = Object.entries(budget ?? {}).filter(([, one]) => one?.limit).map(([kind, one]) => ({ kind, ...one }));
  return limits.sort((a, b) => b.spent / b.limit - a.spent / a.limit)[0];
}
function step(tree, by) {
  const ids = tree.order.peek().map((one) => one.id), at = ids.indexOf(chosenId.peek());
  const next = ids[Math.min(ids.length - 1, Math.max(0, at + by))];
  if (next !== undefined && next !== chosenId.peek()) go(`/tree/${tree.id}/${next}`, { replace: true });
}
function Name({ id, name, close, done }) {
  const box = useRef();
  useLayoutEffect(() => { box.current?.select(); }, []);
  const save = async (event) => {
    event.preventDefault();
    const next = box.current.value.trim();
    close();
    if (!next || next === name) return;
    done(next);
    try { await api("thread/name/set", { threadId: id, name: next }); } catch (error) { done(name); notice(error.message, { bad: true }); }
  };
  return html`<form class="naming" onSubmit=${save}><input ref=${box} aria-label="Title" maxlength="200" value=${name} onKeyDown=${(event) => { if (event.key === "Escape") close(); }} onBlur=${close} /><span class="faint"><${Key} k="⏎" /></span></form>`;
}
