// The conversation of one agent: its items, what waits for a person in it, and the composer.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { computed, signal } from "@preact/signals";
import { api, hear, line, may, notice, onLeaving, onOpened, onSignedOut } from "./store.js";
import { plain, visible } from "./text.js";
import { Item } from "./items.js";
import { Glyph, html, Key, place, quantity } from "./parts.js";
import { endsOf, InPlace, requestsOf } from "./needs.js";
import { Find } from "./find.js";
import { bind } from "./keys.js";
import { Rows } from "./rows.js";
import { endOf, fromOf, isMark, Marked, Settled, useBeside, withMarks } from "./past.js";

const PAGE = 60, MOST_PAGE = 200, MOST_ITEMS = 5000, HELD_MS = 5000, NEAR = 80, AHEAD = 1200;
const ASK = "ask"; // in place of a cursor: what came before is looked for from the newest page

// One thread: its items by id, in the order in which they began. At most `MOST_ITEMS` of them are kept, those around
// what is read; the others are dropped by whole pages, and read again when somebody comes to them.
class Talk {
  constructor(thread) {
    this.thread = thread;
    this.items = new Map(); // id → signal of an item
    this.order = signal([]);
    this.pages = []; // from the oldest: `count` ids of the order, the cursors that go on `older` and `newer`; behind them, what was told
    this.behind = signal(false); // whether the newest items are not kept
    this.underway = new Map(); // id → signal of an item that has begun: no list has it before its end
    this.reads = new Set(); // for each reading of the newest page: the ids that were told meanwhile
    this.turn = signal(null); // the turn that runs
    this.queue = signal([]);
    this.error = signal("");
    this.loaded = signal(false);
    this.older = null; // the cursor of what came before
    this.fault = signal("");
    this.loading = null;
    this.atEnd = { current: true };
  }

  begin() {
    this.ends = [hear(`thread:${this.thread}`, (event) => this.on(event)), onOpened(() => this.read())];
    this.read();
  }
  end() { this.ends.forEach((each) => each()); }

  async page(sortDirection, cursor, limit = PAGE) {
    const { data, nextCursor, backwardsCursor } = await api("thread/items/list", { threadId: this.thread, limit, sortDirection, ...(cursor ? { cursor } : {}) });
    const items = data.map((entry) => entry.item ?? entry), [older, newer] = sortDirection === "desc" ? [nextCursor, backwardsCursor] : [backwardsCursor, nextCursor];
    return { items: sortDirection === "desc" ? items.reverse() : items, older: older ?? null, newer: newer ?? null, more: Boolean(nextCursor) };
  }
  // Reads the newest page; what is there stays, and is renewed.
  async read(anew = false) {
    const meanwhile = new Set();
    this.reads.add(meanwhile);
    try {
      const [{ items, older, newer }, turns] = await Promise.all([
        this.page("desc"), api("thread/turns/list", { threadId: this.thread, limit: 1, itemsView: "notLoaded" }),
      ]);
      const ids = items.map((item) => item.id), known = this.order.peek(), at = anew ? -1 : known.indexOf(ids[0]);
      // What stands before the page is kept where the page joins it, and dropped where there is a gap; who reads
      // far above is left there. Behind the page stands what was told while it came.
      const behind = [...meanwhile].filter((id) => !ids.includes(id) && this.items.has(id));
      if (at >= 0) {
        while (this.paged() > at) this.pages.pop();
        this.behind.value = false;
        this.take(items);
        this.keep([...known.slice(0, at), ...ids, ...behind]);
      } else if (anew || !this.behind.peek()) {
        this.older = older;
        this.pages = ids.length ? [{ count: ids.length, older, newer }] : [];
        this.behind.value = false;
        this.take(items);
        this.keep([...ids, ...behind]);
      }
      const [turn] = turns.data;
      this.turn.value = turn?.status === "inProgress" ? turn.id : null;
      this.fault.value = turn?.status === "failed" ? turn.error?.message ?? "The turn has failed." : "";
      this.error.value = "";
      this.loaded.value = true;
      this.readQueue();
    } catch (error) { this.error.value = error.message; }
    this.reads.delete(meanwhile);
  }
  paged() { return this.pages.reduce((sum, page) => sum + page.count, 0); }
  take(items) { items.forEach((item) => this.put(item)); }
  // These ids are the order from now on, and what is under way behind them; the texts of others are let go.
  keep(ids) {
    if (!this.behind.peek()) for (const [id, item] of this.underway) if (!ids.includes(id)) { this.items.set(id, item); ids = [...ids, id]; }
    const kept = new Set(ids);
    for (const id of this.items.keys()) if (!kept.has(id)) this.items.delete(id);
    this.order.value = ids;
  }
  readOlder(limit = PAGE) { return this.once(async () => { if (this.older) await this.addOlder(limit); }); }
  async addOlder(limit) {
    let cursor = this.older === ASK ? null : this.older;
    for (;;) {
      const found = await this.page("desc", cursor, this.older === ASK ? MOST_PAGE : limit), known = this.order.peek();
      const at = found.items.findIndex((item) => item.id === known[0]);
      // After items that were only told, and dropped, the place is looked for from the newest.
      if (this.older === ASK && at < 0 && found.more) { cursor = found.older; continue; }
      const items = found.items.slice(0, at < 0 ? undefined : at).filter((item) => !this.items.has(item.id));
      this.older = found.more ? found.older : null;
      this.take(items);
      if (items.length) this.pages.unshift({ count: items.length, older: this.older, newer: found.newer });
      this.order.value = [...items.map((item) => item.id), ...known];
      break;
    }
    this.dropNewest();
  }
  readNewer() {
    return this.once(async () => {
      const last = this.pages.at(-1);
      if (!this.behind.peek() || !last?.newer) return;
      const found = await this.page("asc", last.newer), items = found.items.filter((item) => !this.items.has(item.id));
      this.take(items);
      if (items.length) this.pages.push({ count: items.length, older: found.older, newer: found.newer });
      this.order.value = [...this.order.peek(), ...items.map((item) => item.id)];
      this.dropOldest();
      // What was told meanwhile comes with the newest page.
      if (!found.more) { this.behind.value = false; await this.read(); }
    });
  }
  // One reading at a time; the same promise for all who ask for it meanwhile.
  once(read) {
    this.loading ??= read().catch((error) => notice(error.message, { bad: true, key: "older" })).finally(() => { this.loading = null; });
    return this.loading;
  }
  dropNewest() {
    const ids = this.order.peek();
    if (ids.length <= MOST_ITEMS || !this.pages.length) return;
    let left = this.paged();
    while (left > MOST_ITEMS && this.pages.length > 1) left -= this.pages.pop().count;
    if (left === ids.length) return;
    this.behind.value = true;
    this.keep(ids.slice(0, left));
  }
  dropOldest() {
    const ids = this.order.peek();
    let gone = 0;
    while (ids.length - gone > MOST_ITEMS && this.pages.length) { gone += this.pages.shift().count; this.older = this.pages[0]?.older ?? ASK; }
    if (ids.length - gone > MOST_ITEMS) { gone = ids.length - MOST_PAGE; this.older = ASK; }
    if (gone) this.keep(ids.slice(gone));
  }
  // Reads back until an item is as it should be; its id, or null at the beginning, or where no more are kept.
  async lookBack(wanted) {
    while (this.older && this.order.peek().length < MOST_ITEMS) {
      const [first] = this.order.peek();
      await this.readOlder(MOST_PAGE);
      const ids = this.order.peek(), fresh = ids.slice(0, Math.max(0, ids.indexOf(first)));
      if (!fresh.length && this.older) return null;
      const found = fresh.findLast((id) => wanted(this.items.get(id).peek()));
      if (found) return found;
    }
    return null;
  }
  // Reads back until an item is there, as far as items are kept.
  async reach(id) {
    if (!this.items.has(id)) await this.lookBack((item) => item.id === id);
    if (!this.items.has(id)) notice("The item of this address is not here: it is older, or of another agent.", { key: "item" });
  }
  async readQueue() {
    try { this.queue.value = (await api("thread/queue/list", { threadId: this.thread })).data; } catch { this.queue.value = []; }
  }
  put(item) {
    const known = this.items.get(item.id);
    if (known) known.value = item; else this.items.set(item.id, signal(item));
  }

  on({ type, method, params, error }) {
    if (type === "reset") { this.underway.clear(); this.read(true); return; }
    if (type === "error") { this.fault.value = `Not followed: ${error?.message ?? ""}`; return; }
    switch (method) {
      case "turn/started": this.turn.value = params.turn.id; this.fault.value = ""; return;
      case "turn/completed": this.turn.value = null; this.underway.clear(); this.fault.value = params.turn.status === "failed" ? params.turn.error?.message ?? "" : ""; return;
      case "item/started": case "item/completed": {
        const { item } = params, known = this.items.has(item.id);
        const begins = method === "item/started", kept = known || !this.behind.peek();
        if (kept) this.put(item);
        if (begins) this.underway.set(item.id, this.items.get(item.id) ?? signal(item)); else this.underway.delete(item.id);
        for (const read of this.reads) read.add(item.id);
        if (!kept || known) return;
        this.order.value = [...this.order.peek(), item.id];
        if (this.order.peek().length > MOST_ITEMS) { if (this.atEnd.current) this.dropOldest(); else this.dropNewest(); }
        return;
      }
      case "thread/queue/changed": this.readQueue(); return;
      case "thread/reverted": this.underway.clear(); this.read(true); return;
      case "error": if (!params.willRetry) this.fault.value = params.error?.message ?? ""; return;
      default: if (method?.endsWith("elta")) this.grow(method, params);
    }
  }
  // A piece of a text that is being written.
  grow(method, { itemId, delta, summaryIndex, contentIndex }) {
    const found = this.items.get(itemId) ?? this.underway.get(itemId), item = found?.peek();
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
onSignedOut(() => { talks.forEach((talk) => talk.end()); talks.clear(); for (const one of mine.peek()) clearTimeout(one.timer); mine.value = []; drafts.clear(); });
onLeaving(() => Promise.all(mine.peek().filter((one) => one.timer).map((one) => sendWords(one))));

// The number of items is unknown to screen readers (-1) while there are older ones.
function Row({ id, index, count, at, ...more }) {
  if (isMark(id)) return html`<${Marked} row=${id} beside=${more.beside} index=${index} of=${more.talk.older ? -1 : count} at=${at} tree=${more.tree} thread=${more.talk.thread} />`;
  return html`<${Said} id=${id} index=${index} count=${count} at=${at} ...${more} />`;
}
function Said({ talk, id, index, count, at, to, link, parent, beside, asks }) {
  const item = talk.items.get(id)?.value, from = fromOf(item, !index && !talk.older ? parent : null), ended = endOf(beside, id), asked = item?.status === "inProgress" && asks.includes(`${talk.thread} ${id}`), drawn = useMemo(() => item && html`<${Item} item=${asked ? { ...item, status: "asked" } : item} to=${to} link=${link} from=${from} />`, [item, asked, to, link, from]);
  if (!item) return null;
  return html`<article class="item ${item.type} ${chosenItem.value === id ? "at" : ""}" data-testid="item" data-item-id=${item.id} data-type=${item.type} aria-posinset=${index + 1} aria-setsize=${talk.older ? -1 : count} ...${at}>${drawn}${ended && !asked ? html`<${Settled} mark=${ended} />` : null}</article>`;
}
const chosenItem = computed(() => place.value.query.get("item")); // `?item=ID`: the item that a link leads to

// ── own words: sent after five seconds, so that they can be taken back ───────────────────────────

const mine = signal([]); // { thread, text, queued, id, timer, error }
export function takeBackWords() {
  const last = mine.peek().findLast((one) => one.timer);
  if (!last) return false;
  clearTimeout(last.timer);
  mine.value = mine.peek().filter((one) => one !== last);
  // What was begun meanwhile stays behind it.
  drafts.set(last.thread, signal([last.text, drafts.get(last.thread)?.peek()].filter(Boolean).join("\n")));
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
  const drop = (id) => api("thread/queue/delete", { threadId: talk.thread, queuedSubmissionId: id }).then(({ deleted }) => { if (!deleted) notice("Not taken back: these words have begun meanwhile.", { key: "queue" }); return talk.readQueue(); }, (error) => notice(error.message, { bad: true }));
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
export function Conversation({ agent, name, facts, link, back, tree, parent }) {
  const thread = agent.threadId, root = useRef(), atEnd = useRef(true), [below, setBelow] = useState(0), known = useRef({ length: 0, last: undefined });
  if (!talks.has(thread)) talks.set(thread, new Talk(thread));
  const talk = talks.get(thread);
  useEffect(() => {
    talk.begin();
    talk.atEnd = atEnd;
    atEnd.current = true; known.current = { length: 0, last: undefined }; setBelow(0);
    return () => { talk.end(); if (talks.size > 8) { talks.delete(talks.keys().next().value); } };
  }, [thread]);
  const order = talk.order.value, asks = requestsOf(thread), own = mine.value.filter((one) => one.thread === thread), after = useRef();
  // How a request ended is told here before the tree's log is read again.
  const logged = useBeside(tree, agent.agentId), told = endsOf(thread), beside = useMemo(() => { const known = new Set(logged.map((mark) => mark.callId)), news = told.filter((mark) => !known.has(mark.callId)); return news.length ? [...logged, ...news] : logged; }, [logged, told]);
  const asking = asks.join(), row = useMemo(() => ({ talk, to: name, link, parent, beside, asks, tree }), [talk, name, link, parent, beside, asking, tree]);
  const keys = useMemo(() => withMarks(order, beside, (id) => talk.items.get(id)?.peek().startedAtMs, { first: !talk.older, last: !talk.behind.peek() }), [order, beside]);
  // Newest below, anchored there; who reads above is not moved.
  useLayoutEffect(() => {
    const box = root.current;
    if (!box) return undefined;
    const watch = new ResizeObserver(() => { if (atEnd.current) box.scrollTop = box.scrollHeight; });
    watch.observe(after.current);
    return () => watch.disconnect();
  }, [thread]);
  // An item that a link leads to is looked for among the older ones.
  useEffect(() => { if (chosenItem.value && talk.loaded.value) talk.reach(chosenItem.value); }, [talk, chosenItem.value, talk.loaded.value]);
  useLayoutEffect(() => {
    const last = order.at(-1);
    if (!atEnd.current && known.current.length && order.length > known.current.length && last !== known.current.last) setBelow((n) => n + 1);
    known.current = { length: order.length, last };
  }, [order]);
  const [finding, setFinding] = useState(false), leaveFind = () => { setFinding(false); root.current?.focus(); };
  // Pressed again in its box, the key is the browser's own.
  useLayoutEffect(() => bind({ "$mod+f": (event) => { if (event.target.closest?.(".finding")) return; event.preventDefault(); setFinding(true); document.querySelector(".finding input")?.select(); } }), []);
  const readOn = (box) => {
    if (box.scrollTop < AHEAD && talk.older) talk.readOlder();
    if (talk.behind.peek() && box.scrollHeight - box.scrollTop - box.clientHeight < AHEAD) talk.readNewer();
  };
  // Also where what came is too low to scroll in.
  useEffect(() => { if (root.current && talk.loaded.peek()) readOn(root.current); }, [order]);
  const onScroll = (event) => {
    const box = event.currentTarget;
    atEnd.current = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
    if (atEnd.current && below) setBelow(0);
    readOn(box);
  };
  const busy = talk.turn.value !== null;
  return html`<section class="talk" aria-label="Conversation" data-testid="conversation">${back}
    <header><${Glyph} state=${agent.state} /><b class="clip">${visible(name, { breaks: false })}</b><span class="faint clip">${facts}</span><span class="grow" />${may("submit") ? html`${busy ? html`<button class="mini" data-testid="interrupt" onClick=${() => interrupt(thread)}>Interrupt <${Key} k="i" /></button>` : null}<button class="mini" onClick=${focusComposer}>Message <${Key} k="m" /></button>` : null}</header>
    ${finding ? html`<${Find} talk=${talk} close=${leaveFind} />` : null}
    <div class="items" ref=${root} onScroll=${onScroll} tabindex="0" role=${order.length ? "feed" : "group"} aria-label="Items" aria-busy=${!talk.loaded.value}><div class="column">
      ${talk.error.value && !talk.loaded.value ? html`<p class="error">This conversation cannot be read: ${plain(talk.error.value)}. <button class="quiet" onClick=${() => talk.read()}>Try again</button></p>` : null}
      ${talk.loaded.value && !order.length ? html`<p class="faint">Nothing has been said here yet.</p>` : null}
      <${Rows} key=${thread} keys=${keys} Row=${Row} more=${row} box=${root} usual=${90} chosen=${chosenItem} end=${atEnd} />
      <div class="after" ref=${after}>${talk.fault.value ? html`<p class="error">${visible(talk.fault.value, { mild: true })}</p>` : null}
      ${asks.map((key) => html`<${InPlace} key=${key} id=${key} />`)}
      ${own.map((one) => html`<${Own} key=${one.id} one=${one} />`)}</div>
    </div></div>
    ${below || talk.behind.value ? html`<button class="newer" onClick=${() => { atEnd.current = true; if (talk.behind.peek()) talk.read(true); root.current.scrollTop = root.current.scrollHeight; setBelow(0); }}>${below ? quantity(below, "new item") : "Newest"} ↓</button>` : null}
    ${may("submit") ? html`<${Composer} talk=${talk} to=${agent.agentId === undefined ? plain(name, 60) : `${plain(name, 60)} (agent ${agent.agentId})`} key=${thread} />` : null}
  </section>`;
}
