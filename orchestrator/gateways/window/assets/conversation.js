// The conversation of one agent: its items, what waits for a person in it, and the composer.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { api, hear, line, may, notice, onOpened, onSignedOut } from "./store.js";
import { plain, visible } from "./text.js";
import { Item } from "./items.js";
import { Glyph, html, Key, quantity } from "./parts.js";
import { requestsOf, InPlace } from "./needs.js";

const PAGE = 60, MOST_ITEMS = 5000, HELD_MS = 5000, NEAR = 80;

// One thread: its items by id, in the order in which they began.
class Talk {
  constructor(thread) {
    this.thread = thread;
    this.items = new Map(); // id → signal of an item
    this.order = signal([]);
    this.turn = signal(null); // the turn that runs
    this.queue = signal([]);
    this.error = signal("");
    this.loaded = signal(false);
    this.older = null; // the cursor of what came before
    this.fault = signal("");
    this.loading = false;
  }

  begin() {
    this.ends = [hear(`thread:${this.thread}`, (event) => this.on(event)), onOpened(() => this.read())];
    this.read();
  }
  end() { this.ends.forEach((each) => each()); }

  // Reads the newest page; what is there stays, and is renewed.
  async read() {
    try {
      const [page, turns] = await Promise.all([
        api("thread/items/list", { threadId: this.thread, limit: PAGE, sortDirection: "desc" }),
        api("thread/turns/list", { threadId: this.thread, limit: 1, itemsView: "notLoaded" }),
      ]);
      const items = page.data.map((entry) => entry.item ?? entry).reverse(), ids = items.map((item) => item.id);
      const known = this.order.peek(), at = known.indexOf(ids[0]);
      items.forEach((item) => this.put(item));
      // What stands before the page is kept where the page joins it, and dropped where there is a gap.
      if (at < 0) this.older = page.nextCursor ?? null;
      this.order.value = at < 0 ? ids : [...known.slice(0, at), ...ids];
      const [turn] = turns.data;
      this.turn.value = turn?.status === "inProgress" ? turn.id : null;
      this.fault.value = turn?.status === "failed" ? turn.error?.message ?? "The turn has failed." : "";
      this.error.value = "";
      this.loaded.value = true;
      this.readQueue();
    } catch (error) { this.error.value = error.message; }
  }
  async readOlder() {
    if (!this.older || this.loading || this.order.peek().length >= MOST_ITEMS) return;
    this.loading = true;
    try {
      const page = await api("thread/items/list", { threadId: this.thread, limit: PAGE, sortDirection: "desc", cursor: this.older });
      const items = page.data.map((entry) => entry.item ?? entry).reverse();
      items.forEach((item) => this.put(item));
      this.older = page.nextCursor ?? null;
      const known = new Set(this.order.peek());
      this.order.value = [...items.map((item) => item.id).filter((id) => !known.has(id)), ...this.order.peek()];
    } catch (error) { notice(error.message, { bad: true, key: "older" }); }
    this.loading = false;
  }
  async readQueue() {
    try { this.queue.value = (await api("thread/queue/list", { threadId: this.thread })).data; } catch { this.queue.value = []; }
  }
  put(item) {
    const known = this.items.get(item.id);
    if (known) known.value = item; else this.items.set(item.id, signal(item));
  }

  on({ type, method, params }) {
    if (type === "reset") { this.read(); return; }
    switch (method) {
      case "turn/started": this.turn.value = params.turn.id; this.fault.value = ""; return;
      case "turn/completed": this.turn.value = null; this.fault.value = params.turn.status === "failed" ? params.turn.error?.message ?? "" : ""; return;
      case "item/started": case "item/completed": {
        const { item } = params;
        this.put(item);
        if (!this.order.peek().includes(item.id)) this.order.value = [...this.order.peek(), item.id].slice(-MOST_ITEMS);
        return;
      }
      case "thread/queue/changed": this.readQueue(); return;
      case "thread/reverted": this.order.value = []; this.read(); return;
      case "error": if (!params.willRetry) this.fault.value = params.error?.message ?? ""; return;
      default: if (method?.endsWith("elta")) this.grow(method, params);
    }
  }
  // A piece of a text that is being written.
  grow(method, { itemId, delta, summaryIndex, contentIndex }) {
    const found = this.items.get(itemId), item = found?.peek();
    if (!item || typeof delta !== "string") return;
    if (method === "item/commandExecution/outputDelta") found.value = { ...item, aggregatedOutput: (item.aggregatedOutput ?? "") + delta };
    else if (method.startsWith("item/reasoning/")) {
      const name = method.includes("summary") ? "summary" : "content", parts = [...(item[name] ?? [])], n = summaryIndex ?? contentIndex ?? 0;
      parts[n] = (parts[n] ?? "") + delta;
      found.value = { ...item, [name]: parts };
    } else found.value = { ...item, text: (item.text ?? "") + delta };
  }
}

const talks = new Map();
onSignedOut(() => { talks.forEach((talk) => talk.end()); talks.clear(); mine.value = []; });

function Row({ talk, id, to, link }) {
  const item = talk.items.get(id).value;
  return html`<article class="item ${item.type}" data-testid="item" data-item-id=${item.id} data-type=${item.type}><${Item} item=${item} to=${to} link=${link} /></article>`;
}

// ── own words: sent after five seconds, so that they can be taken back ───────────────────────────

const mine = signal([]); // { thread, text, queued, id, timer, error }
export function takeBackWords() {
  const last = mine.peek().findLast((one) => one.timer);
  if (!last) return false;
  clearTimeout(last.timer);
  mine.value = mine.peek().filter((one) => one !== last);
  drafts.set(last.thread, signal(last.text));
  drafted.value += 1;
  return true;
}
async function sendWords(one, more) {
  clearTimeout(one.timer);
  one.timer = 0;
  mine.value = [...mine.peek()];
  const params = { threadId: one.thread, input: [{ type: "text", text: one.text }], clientUserMessageId: one.id };
  try {
    await api(one.queued ? "thread/queue/add" : "turn/start", params, more);
    mine.value = mine.peek().filter((each) => each !== one);
  } catch (error) {
    one.error = error.message;
    mine.value = [...mine.peek()];
  }
}
addEventListener("pagehide", () => { for (const one of mine.peek()) if (one.timer) sendWords(one, { keepalive: true }); });

const drafts = new Map(), drafted = signal(0); // what is being written, kept while other agents are looked at
function Composer({ talk, to }) {
  drafted.value;
  const box = useRef();
  if (!drafts.has(talk.thread)) drafts.set(talk.thread, signal(""));
  const draft = drafts.get(talk.thread), queue = talk.queue.value, busy = talk.turn.value !== null;
  useLayoutEffect(() => { if (box.current) { box.current.style.height = "auto"; box.current.style.height = `${Math.min(240, box.current.scrollHeight)}px`; } });
  const send = (queued) => {
    const text = draft.peek().trim();
    if (!text) return;
    if (line.peek() === "lost") { notice("No line to the server: nothing was sent.", { bad: true, key: "held" }); return; }
    const one = { thread: talk.thread, text, queued, id: crypto.randomUUID() };
    one.timer = setTimeout(() => sendWords(one), HELD_MS);
    mine.value = [...mine.peek(), one];
    draft.value = "";
  };
  const onKey = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(event.altKey && busy); } else if (event.key === "Escape") event.target.blur();
  };
  const drop = (id) => api("thread/queue/delete", { threadId: talk.thread, queuedSubmissionId: id }).then(() => talk.readQueue(), (error) => notice(error.message, { bad: true }));
  const first = (id) => api("thread/queue/reorder", { threadId: talk.thread, queuedSubmissionIds: [id, ...queue.map((one) => one.id).filter((each) => each !== id)] }).then(() => talk.readQueue(), (error) => notice(error.message, { bad: true }));
  const words = (one) => (one.input ?? []).map((part) => part.text ?? `[${part.type}]`).join(" ");
  return html`<div class="below">
    ${queue.length ? html`<ul class="queue" aria-label="Queued">${queue.map((one, n) => html`<li key=${one.id} data-testid="queued"><span class="from">next ${n + 1}</span><span class="clip grow">${visible(words(one), { breaks: false })}</span>${n ? html`<button class="quiet" aria-label="Move to the front" onClick=${() => first(one.id)}>↑</button>` : null}<button class="quiet" aria-label="Take back" onClick=${() => drop(one.id)}>×</button></li>`)}</ul>` : null}
    <div class="composer" data-testid="composer"><textarea ref=${box} rows="1" maxlength="400000" aria-label=${`Message to ${to}`} placeholder=${`Write to ${to}…`} value=${draft.value} onInput=${(event) => { draft.value = event.target.value; }} onKeyDown=${onKey}></textarea>
      <button class="quiet send" onClick=${() => send(false)} disabled=${!draft.value.trim()}>${busy ? "Join" : "Send"} <${Key} k="⏎" /></button>${busy ? html`<button class="quiet" onClick=${() => send(true)} disabled=${!draft.value.trim()}>Queue <${Key} k="⌥⏎" /></button>` : null}</div></div>`;
}

function Own({ one }) {
  return html`<article class="item own" data-testid="own-words"><div class="letter"><span class="from">${one.error ? html`<span class="error">not sent: ${one.error}</span>` : one.timer ? "sent in a moment" : "sent"}${one.timer ? html` <button class="quiet" onClick=${takeBackWords}>Take back <${Key} k="z" /></button>` : one.error ? html` <button class="quiet" onClick=${() => { one.error = ""; sendWords(one); }}>Try again</button>` : null}</span><p class="asis">${visible(one.text, { mild: true })}</p></div></article>`;
}

// ── the conversation ─────────────────────────────────────────────────────────────────────────────

export async function interrupt(thread) {
  const turn = talks.get(thread)?.turn.peek();
  if (!turn) { notice("No turn runs here.", { key: "interrupt", forMs: 3000 }); return; }
  try { await api("turn/interrupt", { threadId: thread, turnId: turn }); } catch (error) { notice(error.message, { bad: true }); }
}
export const focusComposer = () => document.querySelector(".composer textarea")?.focus();

// `agent` is `{threadId, state, agentId}`, `name` its name for people, `facts` what stands beside it.
export function Conversation({ agent, name, facts, link, back }) {
  const thread = agent.threadId, root = useRef(), atEnd = useRef(true), height = useRef(0), [below, setBelow] = useState(0), known = useRef({ length: 0, last: undefined });
  if (!talks.has(thread)) talks.set(thread, new Talk(thread));
  const talk = talks.get(thread);
  useEffect(() => {
    talk.begin();
    atEnd.current = true; known.current = { length: 0, last: undefined }; setBelow(0);
    return () => { talk.end(); if (talks.size > 8) { talks.delete(talks.keys().next().value); } };
  }, [thread]);
  const order = talk.order.value, asks = requestsOf(thread), own = mine.value.filter((one) => one.thread === thread);
  // Newest below, anchored there; who reads above is not moved.
  useLayoutEffect(() => {
    const box = root.current;
    if (!box) return undefined;
    const keep = () => { if (atEnd.current) box.scrollTop = box.scrollHeight; };
    const watch = new ResizeObserver(keep);
    watch.observe(box.firstElementChild);
    keep();
    return () => watch.disconnect();
  }, [thread, talk.loaded.value]);
  useLayoutEffect(() => {
    const last = order.at(-1);
    if (!atEnd.current && known.current.length && order.length > known.current.length && last !== known.current.last) setBelow((n) => n + 1);
    known.current = { length: order.length, last };
  }, [order]);
  const onScroll = (event) => {
    const box = event.currentTarget;
    atEnd.current = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
    if (atEnd.current && below) setBelow(0);
    if (box.scrollTop < 400 && talk.older && !talk.loading) { height.current = box.scrollHeight - box.scrollTop; talk.readOlder().then(() => requestAnimationFrame(() => { if (!atEnd.current) box.scrollTop = box.scrollHeight - height.current; })); }
  };
  const busy = talk.turn.value !== null;
  return html`<section class="talk" aria-label="Conversation" data-testid="conversation">${back}
    <header><${Glyph} state=${agent.state} /><b class="clip">${visible(name, { breaks: false })}</b><span class="faint clip">${facts}</span><span class="grow" />${may("submit") ? html`${busy ? html`<button class="mini" data-testid="interrupt" onClick=${() => interrupt(thread)}>Interrupt <${Key} k="i" /></button>` : null}<button class="mini" onClick=${focusComposer}>Message <${Key} k="m" /></button>` : null}</header>
    <div class="items" ref=${root} onScroll=${onScroll} tabindex="0" aria-label="Items"><div class="column">
      ${talk.error.value && !talk.loaded.value ? html`<p class="error">This conversation cannot be read: ${plain(talk.error.value)}. <button class="quiet" onClick=${() => talk.read()}>Try again</button></p>` : null}
      ${talk.loaded.value && !order.length ? html`<p class="faint">Nothing has been said here yet.</p>` : null}
      ${order.map((id) => html`<${Row} key=${id} talk=${talk} id=${id} to=${name} link=${link} />`)}
      ${talk.fault.value ? html`<p class="error">${visible(talk.fault.value, { mild: true })}</p>` : null}
      ${asks.map((key) => html`<${InPlace} key=${key} id=${key} />`)}
      ${own.map((one) => html`<${Own} key=${one.id} one=${one} />`)}
    </div></div>
    ${below ? html`<button class="newer" onClick=${() => { atEnd.current = true; root.current.scrollTop = root.current.scrollHeight; setBelow(0); }}>${quantity(below, "new item")} ↓</button>` : null}
    ${may("submit") ? html`<${Composer} talk=${talk} to=${agent.agentId === undefined ? plain(name, 60) : `${plain(name, 60)} (agent ${agent.agentId})`} key=${thread} />` : null}
  </section>`;
}
