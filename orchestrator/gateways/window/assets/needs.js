// Needs you: everything that waits for a person, over all trees, oldest first; answered in place.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { computed, signal } from "@preact/signals";
import { api, hear, line, may, notice, onLeaving, onOpened, onSignedOut, Refused, session } from "./store.js";
import { counted, plain, visible } from "./text.js";
import { File, linesOf, Prose, Ran } from "./items.js";
import { Age, agentName, canopy, folder, Glyph, go, html, Key, Link, phone, place, quantity, quoted, Stat, title, Words } from "./parts.js";
import { bind } from "./keys.js";
import { atWork } from "./trees.js";

const LATE_S = 600, HELD_MS = 5000, GUARD_MS = 400, TOLD_MS = 3000, HISTORY = 20, STORY = 40, MOST_TOGETHER = 100;

// ── what is open ─────────────────────────────────────────────────────────────────────────────────

const rows = new Map(); // key → signal of { request, gone, error }
export const order = signal([]); // keys, oldest first
const taken = new Map(); // key → its answer, while it is held back or on its way
const chosen = signal(null), marked = signal(new Set());
const guarded = signal(false); // a row has moved under the selection just now
const seen = signal(new Set()); // what was shown to its end
export const loaded = signal(false);
const failed = signal("");
export const history = signal(null);
export const count = computed(() => order.value.filter((key) => !rows.get(key)?.value.gone).length);

const keyOf = (one) => `${one.threadId} ${one.callId}`;
const requestOf = (key) => rows.get(key)?.peek().request;
export const openRequests = () => order.value.map((key) => rows.get(key).value).filter((row) => !row.gone).map((row) => row.request);

onSignedOut(() => {
  for (const batch of holding) clearTimeout(batch.timer);
  holding.length = 0;
  rows.clear(); taken.clear(); stories.clear(); drafts.clear(); replying.value = null;
  order.value = []; ends.value = new Map(); marked.value = new Set(); seen.value = new Set(); chosen.value = null; history.value = null; loaded.value = false;
});

let guardTimer = 0;
function guard() {
  guarded.value = true;
  clearTimeout(guardTimer);
  guardTimer = setTimeout(() => { guarded.value = false; }, GUARD_MS);
}

function put(request) {
  const key = keyOf(request);
  if (taken.has(key)) { taken.get(key).request = request; return; }
  const row = rows.get(key);
  if (row) { row.value = { ...row.peek(), request, gone: null }; return; }
  rows.set(key, signal({ request, gone: null, error: "" }));
  sort();
}
function sort() {
  const before = order.peek();
  const after = [...rows.keys()].sort((a, b) => requestOf(a).openedAtMs - requestOf(b).openedAtMs || (a < b ? -1 : 1));
  if (before.some((key, n) => after[n] !== key)) guard();
  order.value = after;
}
// Takes a row away; what is below it moves up, and keys do not answer for a moment.
function drop(key) {
  if (!rows.has(key)) return;
  if (!taken.has(key)) for (const kind of ["reply", "answers"]) drafts.delete(`${kind} ${key}`);
  const at = order.peek().indexOf(key), last = at === order.peek().length - 1;
  rows.delete(key);
  order.value = order.peek().filter((one) => one !== key);
  if (marked.peek().has(key)) marked.value = new Set([...marked.peek()].filter((one) => one !== key));
  if (chosen.peek() === key) { chosen.value = order.peek()[Math.min(at, order.peek().length - 1)] ?? null; guard(); } else if (!last) guard();
}

function onNeeds(event) {
  if (event.type === "all") {
    const there = new Set(event.data.map(keyOf));
    for (const key of [...rows.keys()]) if (!there.has(key) && !rows.get(key).peek().gone) drop(key);
    event.data.forEach(put);
    loaded.value = true;
    failed.value = "";
  } else if (event.type === "changed") {
    event.changed.forEach(put);
    event.gone.forEach(ended);
  } else if (event.type === "error") failed.value = event.error?.message ?? "the requests cannot be read";
  else if (event.type === "reset") readAll();
}
// How requests ended that this window has seen the end of, by their threads: the newest last.
const ends = signal(new Map());
const NONE = [];
function note(end) {
  if (!end.atMs || ends.peek().get(end.threadId)?.some((one) => one.callId === end.callId)) return;
  const next = new Map(ends.peek()), told = [...(next.get(end.threadId) ?? NONE), { kind: "decision", seq: 0, atMs: end.atMs, callId: end.callId, decision: end.decision, outcome: end.text, who: end.who }];
  next.delete(end.threadId);
  next.set(end.threadId, told.slice(-MOST_TOGETHER));
  if (next.size > MOST_TOGETHER) next.delete(next.keys().next().value);
  ends.value = next;
}
export const endsOf = (thread) => ends.value.get(thread) ?? NONE;
// A request has ended. If it was not this window's answer, its row says for a moment how it did.
function ended(end) {
  const key = typeof end === "string" ? end : keyOf(end), row = rows.get(key);
  readHistory();
  note(end);
  if (!row) return;
  row.value = { ...row.peek(), gone: { text: endWords(end) } };
  if (marked.peek().has(key)) marked.value = new Set([...marked.peek()].filter((one) => one !== key));
  setTimeout(() => { if (rows.get(key)?.peek().gone) drop(key); }, TOLD_MS);
}
async function readAll() {
  try { onNeeds({ type: "all", data: (await api("approval/list")).data }); } catch (error) { if (!loaded.peek()) failed.value = error.message; }
}
let historyTimer = 0;
function readHistory() {
  clearTimeout(historyTimer);
  historyTimer = setTimeout(async () => {
    if (session.peek().state !== "in") return;
    try { history.value = (await api("approval/history", { limit: HISTORY })).data; } catch { /* the list without it is whole */ }
  }, 150);
}
let begun = false;
export function begin() {
  if (begun) return;
  begun = true;
  hear("needs", onNeeds);
  onOpened(readHistory);
  readHistory();
}

// ── words ────────────────────────────────────────────────────────────────────────────────────────

// The end of a request in the server's words: "allowed by jo".
export const endWords = (end) => `${plain(end.text || end.decision || "withdrawn", 120)}${end.who ? ` by ${end.who === session.peek().who ? "you" : plain(end.who, 60)}` : ""}`;
const VERBS = { command: "wants to run", patch: "wants to change", plan: "puts a plan", question: "asks", elicitation: "asks through a server", clientTool: "waits for a program" };
const verb = (one) => VERBS[one.kind] ?? "asks for what this version does not know";
const fileCount = (one) => Object.keys(one.changes ?? {}).length + (one.changesLeftOut ?? 0);

// The changes of a patch as a list, whether they come as one or by path.
function changesOf(one) {
  const { changes } = one;
  return Array.isArray(changes) ? changes : Object.entries(changes ?? {}).map(([path, change]) => ({ path, ...change }));
}
function statOf(one) {
  const totals = changesOf(one).map((change) => counted(linesOf(change)));
  return [totals.reduce((sum, [plus]) => sum + plus, 0), totals.reduce((sum, [, minus]) => sum + minus, 0)];
}
// A path of the folder that is named beside it is shown from there on.
const within = (one, path) => (one.cwd && path.startsWith(`${one.cwd}/`) ? path.slice(one.cwd.length + 1) : path);
const subjectOf = (one) => (one.kind === "patch" ? changesOf(one).map((change) => within(one, change.path)).join(", ") : one.kind === "plan" ? one.proposal?.title ?? one.subject : one.kind === "question" ? one.questions?.map((each) => each.question).join(" · ") ?? one.subject : one.subject);

// ── what is alike: same kind, same program and first argument, same folder ───────────────────────

// The words of one plain command; null for what is more than that: pipes, lists, expansions, variables, comments.
export function plainWords(command) {
  if (!Array.isArray(command) || !command.length) return null;
  const [program, flag, script] = command, shell = /^(?:.*\/)?(?:ba|z|da|k|c|tc|fi)?sh$/.test(program);
  if (!shell) return command.every((word) => typeof word === "string") ? command : null;
  if (command.length !== 3 || !/^-l?c$/.test(flag)) return null;
  const found = [];
  let rest = script;
  while ((rest = rest.replace(/^ +/, ""))) {
    let word = "", any = false;
    for (let part; (part = /^(?:([\w@%+=:,./-]+)|'([^']*)'|"([^"$`\\!]*)")/.exec(rest)); rest = rest.slice(part[0].length)) { word += part[1] ?? part[2] ?? part[3]; any = true; }
    if (!any || (rest && rest[0] !== " ")) return null;
    found.push(word);
  }
  return found.length && !/^\w+=/.test(found[0]) ? found : null;
}
function likeness(one) {
  if (one?.kind !== "command" || Object.keys(one.variables ?? {}).length) return null;
  const words = plainWords(one.command);
  return words && words.length > 1 && !/[\n\r]/.test(words.join("")) ? JSON.stringify([one.kind, words[0], words[1], one.cwd, one.pool, one.outside]) : null;
}
function alikeOf(key) {
  const mine = likeness(requestOf(key));
  if (mine === null) return [];
  return order.peek().filter((other) => !rows.get(other).peek().gone && answerable(requestOf(other)) && likeness(requestOf(other)) === mine).slice(0, MOST_TOGETHER);
}

// ── answers ──────────────────────────────────────────────────────────────────────────────────────

const answerable = (one) => one?.mayAnswer !== false && may("approve");
const seenKey = (keys) => keys.join("\n");
const isSeen = (keys) => seen.value.has(seenKey(keys));
const acted = () => (marked.peek().size ? [...marked.peek()] : chosen.peek() ? [chosen.peek()] : []);
// Why nothing is answered now; empty if all is well.
const held = () => (line.value === "lost" ? "No line to the server: nothing was sent." : "");

// Answers requests that were shown to their end; `answer` is that of `approval/answer`.
function give(keys, answer, { words, then = null, whole = isSeen(keys) } = {}) {
  const open = keys.filter((key) => rows.has(key) && !rows.get(key).peek().gone && answerable(requestOf(key)));
  if (!open.length || guarded.peek()) return false;
  if (held()) { notice(held(), { bad: true, key: "held" }); return false; }
  const refuses = ["decline", "cancel"].includes(answer.decision);
  if (!whole && !refuses) { notice("Read it to its end first.", { key: "unseen" }); return false; }
  const given = open.map((key) => ({ key, request: requestOf(key), answer, then }));
  for (const one of given) { taken.set(one.key, one); drop(one.key); }
  marked.value = new Set();
  if (phone.peek() && place.peek().query.has("request")) go("/", { replace: true });
  if (!refuses) { send(given); return true; }
  const batch = { given, timer: setTimeout(() => letGo(batch), HELD_MS) };
  holding.push(batch);
  batch.drop = notice(`${words} ${given.length === 1 ? quoted(given[0].request) : quantity(given.length, "request")}`, { act: ["Take back", () => takeBack(batch), "z"], forMs: HELD_MS });
  return true;
}

const holding = [];
function letGo(batch, more) {
  const at = holding.indexOf(batch);
  if (at < 0) return null;
  holding.splice(at, 1);
  clearTimeout(batch.timer);
  batch.drop?.();
  return send(batch.given, more);
}
function takeBack(batch = holding.at(-1)) {
  if (!batch) return;
  holding.splice(holding.indexOf(batch), 1);
  clearTimeout(batch.timer);
  batch.drop?.();
  batch.given.forEach((one) => { if (one.then) drafts.set(`reply ${one.key}`, one.then); back(one, ""); });
  chosen.value = batch.given[0].key;
}
// A page that is left sends what it holds back.
addEventListener("pagehide", () => { for (const batch of [...holding]) letGo(batch, { keepalive: true }); });
onLeaving(() => Promise.all([...holding].map((batch) => letGo(batch))));

// Brings a row back, with the reason.
function back({ key, request }, error) {
  if (!taken.delete(key)) return;
  rows.set(key, signal({ request, gone: null, error }));
  sort();
  if (error || chosen.peek() === null) chosen.value = key;
}

async function send(given, more = {}) {
  const requests = given.map(({ request, answer }) => ({ threadId: request.threadId, callId: request.callId, answer }));
  let answered;
  try {
    answered = (await api("approval/answer", { requests }, more)).data;
  } catch (error) {
    for (const one of given) back(one, `Not sent: ${error.message}`);
    notice(`Not sent: ${error.message}`, { bad: true });
    return;
  }
  for (const one of given) {
    const end = answered.find((each) => each.threadId === one.request.threadId && each.callId === one.request.callId);
    if (!end) { back(one, "The server said nothing about this answer."); continue; }
    taken.delete(one.key);
    note(end);
    if (end.outcome === "already") notice(`${quoted(one.request)}: already ${endWords(end)}`);
    else if (end.outcome === "withdrawn") notice(`${quoted(one.request)}: ${plain(end.text ?? "withdrawn", 120)}`);
    else if (end.outcome === "kept" || end.outcome === "refused") notice(`${quoted(one.request)}: ${plain(end.text ?? "kept", 160)}`);
    if (one.then && end.outcome !== "already") tell(one.request, one.then);
  }
  readHistory();
}
async function tell(request, text) {
  try {
    await api("turn/start", { threadId: request.threadId, input: [{ type: "text", text }], clientUserMessageId: crypto.randomUUID() });
  } catch (error) {
    notice(`Your words were not sent: ${error instanceof Refused ? error.message : "the server does not answer"}`, { bad: true, act: ["Try again", () => tell(request, text)], forMs: 20_000 });
  }
}

// ── the list ─────────────────────────────────────────────────────────────────────────────────────

function choose(key) {
  chosen.value = key;
  const id = requestOf(key)?.requestId;
  if (id) go(`/?request=${encodeURIComponent(id)}`, { replace: !phone.peek() });
}
function mark(key) {
  const one = requestOf(key);
  if (!answerable(one) || !["command", "patch"].includes(one.kind)) return;
  const next = new Set(marked.peek().size ? marked.peek() : chosen.peek() && chosen.peek() !== key ? [chosen.peek()] : []);
  if (!next.delete(key) && next.size < MOST_TOGETHER) next.add(key);
  marked.value = next;
}
function markAlike() {
  if (marked.peek().size) { marked.value = new Set(); return; }
  const alike = alikeOf(chosen.peek());
  if (alike.length > 1) marked.value = new Set(alike); else notice("Nothing else here is alike.", { key: "alike", forMs: 3000 });
}

function What({ one, refer }) {
  const code = one.kind === "command" || one.kind === "patch";
  return html`<div class=${`what ${code ? "code" : ""}`} ref=${refer} data-testid="request-what">${visible(String(subjectOf(one) ?? "").slice(0, 1200), { breaks: false })}</div>`;
}
const Where = ({ one }) => html`<span class=${one.outside ? "outside" : ""}>${one.outside ? "outside of its sandbox" : one.outside === false ? "in its sandbox" : null}</span>`;

// A row renders anew for its own request and its own selection, and for nothing else.
function Row({ id }) {
  const { request: one, gone, error } = rows.get(id)?.value ?? {};
  const on = chosen.value === id, many = marked.value.has(id), text = useRef(), [clipped, setClipped] = useState(true);
  useEffect(() => { if (phone.value && text.current) setClipped(text.current.scrollHeight > text.current.clientHeight + 1 || String(subjectOf(one) ?? "").length > 1200); }, [one, phone.value]);
  const self = useRef();
  useEffect(() => { if (on && !phone.value) self.current?.scrollIntoView({ block: "nearest" }); }, [on]);
  if (!one) return null;
  const [added, removed] = one.kind === "patch" ? statOf(one) : [0, 0];
  const pick = (event) => { if (gone) return; if (event.metaKey || event.ctrlKey) { mark(id); return; } marked.value = new Set(); choose(id); };
  const role = phone.value ? {} : { role: "option", "aria-selected": on };
  return html`<li id=${`row-${one.requestId}`} ref=${self} ...${role} data-testid="request" data-request-id=${one.requestId} data-thread=${one.threadId} data-call=${one.callId} data-opened-ms=${one.openedAtMs}
      class="request ${on && !phone.value ? "on" : ""} ${many ? "many" : ""} ${gone ? "gone" : ""}" onClick=${pick}>
    <div class="line"><span class="who"><${Words} text=${agentName(one)} most=${60} /></span><span class="verb">${verb(one)}</span><span class="grow" />${gone ? html`<span class="told" data-testid="answered-by">${gone.text}</span>` : html`<${Age} since=${one.openedAtMs} lateS=${LATE_S} />`}</div>
    <div class="fold"><${What} one=${one} refer=${text} />
    <div class="line faint"><span class="clip"><${Words} text=${title(one)} most=${120} /></span>${one.outside ? html`<span class="dot" aria-hidden="true">·</span><${Where} one=${one} />` : null}<span class="grow" />${one.kind === "patch" ? html`<${Stat} added=${added} removed=${removed} />` : null}</div>
    ${error ? html`<div class="error" role="alert">${error}</div>` : null}
    ${phone.value && !gone ? html`<${Card} id=${id} one=${one} clipped=${clipped} />` : null}</div>
  </li>`;
}

// On a phone a row is a card: it allows where the whole text and its place are seen, and else opens the request.
function Card({ id, one, clipped }) {
  const read = (event) => { event.stopPropagation(); choose(id); };
  const deny = (event) => { event.stopPropagation(); give([id], { decision: "decline" }, { words: DENIED[one.kind] ?? "Denied" }); };
  const allow = (event) => { event.stopPropagation(); give([id], { decision: "accept" }, { whole: !clipped }); };
  const can = answerable(one), whole = one.kind === "command" && !clipped && typeof one.cwd === "string";
  const off = guarded.value || line.value === "lost";
  const first = whole && can ? html`<button class="tint" data-testid="allow" disabled=${off} onClick=${allow}>Allow</button>`
    : html`<button class="tint" data-testid="read" onClick=${read}>${{ question: "Answer…", plan: "Read the plan" }[one.kind] ?? "Read"}</button>`;
  return html`${whole ? html`<div class="at"><code>${visible(folder(one.cwd), { breaks: false })}</code>${one.machine || one.pool ? html` · ${plain([one.machine, one.pool].filter(Boolean).join(" · "), 80)}` : null}</div>` : null}
    <div class="thumb">${first}${can && one.kind !== "question" ? html`<button data-testid="deny" disabled=${off} onClick=${deny}>${{ plan: "Reject", elicitation: "No", clientTool: "End" }[one.kind] ?? "Deny"}</button>` : null}</div>`;
}
const DENIED = { plan: "Rejected the plan of", elicitation: "Said no for", clientTool: "Ends the call of", question: "Leaves the question of" };

function List() {
  const keys = order.value, alike = chosen.value && !marked.value.size ? alikeOf(chosen.value) : [];
  const active = requestOf(chosen.value)?.requestId;
  return html`<section class="list" aria-label="Needs you" data-testid="needs">
    <${Head} />
    <ul role=${phone.value ? "list" : "listbox"} aria-label="Requests" tabindex=${phone.value ? undefined : 0} aria-activedescendant=${!phone.value && active ? `row-${active}` : undefined}>${keys.map((key) => html`<${Row} key=${key} id=${key} />`)}</ul>
    ${marked.value.size ? html`<${Selection} />` : alike.length > 1 ? html`<footer><span class="clip"><${Key} k="x" /> ${alike.length} alike: ${names(alike)}</span><button class="quiet" onClick=${markAlike}>${alike.length === 2 ? "Select both" : `Select all ${alike.length}`}</button></footer>` : null}
  </section>`;
}
const names = (keys) => plain(keys.map((key) => agentName(requestOf(key))).join(", "), 120);
function Head() {
  const old = place.value.query.has("answered");
  return html`<header><h1>Needs you</h1><span class="count">${count.value || ""}</span><span class="grow" /><div class="switch"><${Link} to="/" class=${old ? "" : "on"} aria-current=${old ? undefined : "page"}>Open<//><${Link} to="/?answered" class=${old ? "on" : ""} aria-current=${old ? "page" : undefined} data-testid="answered">Answered<//></div></header>`;
}
// What is chosen together, in words: how many and which.
function Selection() {
  const keys = [...marked.value];
  return html`<footer class="selection" data-testid="selection"><span class="clip"><b>${quantity(keys.length, "request")}</b>: ${names(keys)}</span><button class="quiet" onClick=${() => { marked.value = new Set(); }}>Clear <${Key} k="Esc" /></button></footer>`;
}

function Answered() {
  const list = history.value;
  return html`<section class="list" aria-label="Answered" data-testid="needs"><${Head} />
    ${list === null ? null : !list.length ? html`<p class="nothing">Nothing has been answered yet. What people decide is kept in each session's log, and the last ${HISTORY} stand here.</p>` : html`<ul class="past">${list.map((one) => html`<li key=${`${keyOf(one)} ${one.atMs}`} class="request answered" data-testid="answered-row">
      <div class="line"><span class="who"><${Words} text=${agentName(one)} most=${60} /></span><span class="verb">${endWords(one)}</span><span class="grow" /><${Age} since=${one.atMs} suffix=" ago" /></div>
      <${What} one=${one} /><div class="line faint"><${Link} to=${`/tree/${one.treeId}`} class="clip"><${Words} text=${title(one)} most=${120} /><//></div></li>`)}</ul>`}
  </section>`;
}

// The open requests of a thread, and one of them as it stands in the thread's conversation.
export const requestsOf = (thread) => order.value.filter((key) => requestOf(key)?.threadId === thread);
export function InPlace({ id }) {
  const { request: one, gone, error } = rows.get(id)?.value ?? {}, text = useRef(), [clipped, setClipped] = useState(true);
  useLayoutEffect(() => { if (text.current) setClipped(text.current.scrollHeight > text.current.clientHeight + 1 || String(subjectOf(one) ?? "").length > 1200); }, [one]);
  if (!one || gone) return null;
  return html`<article class="item ask" data-testid="item" data-type="request" data-item-id=${one.callId}><div class="line"><${Glyph} state="needs" /><b>Asks you, for <${Age} since=${one.openedAtMs} /></b></div>
    <${What} one=${one} refer=${text} /><div class="line">${one.outside ? html`<${Where} one=${one} />` : null}</div>${error ? html`<p class="error" role="alert">${error}</p>` : null}<${Card} id=${id} one=${one} clipped=${clipped} /></article>`;
}

// ── the request ──────────────────────────────────────────────────────────────────────────────────

// Says once that its place has come into view: what is above it has been shown.
function End({ keys, root }) {
  const mark = useRef(), id = seenKey(keys);
  useEffect(() => {
    // What lies under the bar of answers, which stays in view, is not seen.
    const under = (root.current.querySelector(".answers")?.offsetHeight ?? 0) + 2;
    const watch = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      seen.value = new Set([...seen.peek(), id]);
      watch.disconnect();
    }, { root: root.current, rootMargin: `0px 0px -${under}px 0px` });
    watch.observe(mark.current);
    return () => watch.disconnect();
  }, [id]);
  return html`<div class="end" ref=${mark} />`;
}

function Detail() {
  const many = [...marked.value], keys = many.length ? many : chosen.value ? [chosen.value] : [], root = useRef();
  useEffect(() => { root.current?.scrollTo(0, 0); }, [seenKey(keys)]);
  const list = keys.map((key) => rows.get(key)?.value).filter(Boolean);
  if (!list.length) return html`<section class="detail" aria-label="Request" />`;
  const [{ request: one, gone, error }] = list;
  return html`<section class="detail" aria-label="Request" data-testid="request-detail" ref=${root} tabindex="0">
    <button class="back" onClick=${() => go("/")}>‹ Needs you</button>
    ${list.length > 1 ? html`<header><span class="faint">${list.length} requests together</span></header><h2>${plain(list.map((row) => agentName(row.request)).join(", "), 300)}</h2>`
      : html`<header><div class="crumbs"><${Link} to=${`/tree/${one.treeId}`}><${Words} text=${title(one)} most=${120} /><//>${one.agentId ? html`<span>›</span><span class="mono">${plain(one.agentPath ?? "", 60)}</span>` : null}<span>›</span><b><${Link} to=${`/tree/${one.treeId}/${one.agentId}`}><${Words} text=${agentName(one)} most=${60} /><//></b></div><span class="grow" /><span class="faint">asked <${Age} since=${one.openedAtMs} lateS=${LATE_S} suffix=" ago" /></span></header>`}
    ${list.map((row) => html`<${Body} key=${keyOf(row.request)} one=${row.request} several=${list.length > 1} />`)}
    ${error ? html`<p class="error" role="alert">${error}</p>` : null}
    <${End} keys=${keys} root=${root} key=${seenKey(keys)} />
    ${gone ? html`<p class="over" role="status">${gone.text}</p>` : list.every((row) => answerable(row.request)) ? html`<${Answers} keys=${keys} one=${one} many=${list.length} key=${seenKey(keys)} />`
      : html`<p class="over">${may("approve") ? "This request is not yours to answer." : html`You are signed in to <b>${session.value.scope}</b>. Who may approve signs in with a code of <code>dendro token code --scope approve</code>.`}</p>`}
    ${list.length === 1 ? html`<${Story} one=${one} key=${keyOf(one)} />` : null}
  </section>`;
}

const HEADS = {
  command: (one) => (one.outside ? "wants to run a command outside of its sandbox" : "wants to run a command"),
  patch: (one) => `wants to change ${quantity(fileCount(one), "file")}`,
  plan: () => "puts a plan", question: () => "asks you", elicitation: () => "asks you, through an MCP server", clientTool: () => "waits for a program",
};
function Body({ one, several }) {
  return html`<div class="ask-body">
    <h2 class=${several ? "small" : ""}><span class="who"><${Words} text=${agentName(one)} most=${60} /></span> ${(HEADS[one.kind] ?? verb.bind(null, one))(one)}</h2>
    <div data-testid="request-text"><${Text} one=${one} /></div>
    ${one.reason ? html`<p class="reason">${visible(one.reason)}</p>` : null}
    ${one.kind === "question" ? null : html`<${Facts} one=${one} />`}
  </div>`;
}
function Text({ one }) {
  switch (one.kind) {
    case "command": return html`<pre class="command"><span class="prompt" aria-hidden="true">$ </span>${visible(one.subject)}</pre>`;
    case "patch": return html`${changesOf(one).map((change) => html`<${File} key=${change.path} change=${change} />`)}${one.changesLeftOut ? html`<p class="error">${quantity(one.changesLeftOut, "file")} more would be changed, and ${one.changesLeftOut === 1 ? "is" : "are"} not shown.</p>` : null}`;
    case "plan": return html`<${Plan} one=${one} />`;
    case "question": return null;
    case "elicitation": return html`<div class="quote"><span class="from">${plain(one.serverName ?? "server")} asks</span><p>${visible(one.message ?? one.subject)}</p></div>`;
    case "clientTool": return html`<p class="soft">${visible(one.subject)}</p>${one.arguments === undefined ? null : html`<pre class="command">${visible(JSON.stringify(one.arguments, null, 2))}</pre>`}`;
    default: return html`<pre class="command">${visible(one.subject)}</pre>`;
  }
}
function Plan({ one }) {
  const { title: name, summary, plan } = one.proposal ?? {}, steps = plan?.plan ?? [];
  return html`<div class="plan"><h3 class="name">${visible(name ?? one.subject, { breaks: false })}</h3>${summary ? html`<${Prose} text=${summary} />` : null}${plan?.explanation ? html`<${Prose} text=${plan.explanation} />` : null}${steps.length ? html`<ol>${steps.map((step) => html`<li>${visible(step.step)}</li>`)}</ol>` : null}</div>`;
}
function Facts({ one }) {
  const fact = (name, value, bad = false) => (value ? html`<div><dt>${name}</dt><dd class=${bad ? "outside" : ""}>${value}</dd></div>` : null);
  return html`<dl class="facts">
    ${fact("Runs", one.where ? visible(one.where, { breaks: false }) : null, one.outside)}
    ${fact("Folder", one.cwd ? html`<code>${visible(folder(one.cwd), { breaks: false })}</code>` : null)}
    ${fact("Machine · pool", [one.machine, one.pool].filter(Boolean).length ? html`<${Words} text=${[one.machine, one.pool].filter(Boolean).join(" · ")} />` : null)}
    ${fact("Policy", one.policy ? plain(one.policy) : null)}
  </dl>`;
}

// ── its answers ──────────────────────────────────────────────────────────────────────────────────

const replying = signal(null); // the key whose reply is being written
// What is being written or chosen for requests, by their keys: it outlives a look at another request or page.
const drafts = new Map();

// A button of the answers. It is the same element for as long as its request is shown: a click that began goes on.
function Act({ keys, id, k, to, words, kind = "", whole = true, children }) {
  return html`<button class=${kind} data-testid=${id} disabled=${guarded.value || line.value === "lost" || !whole} onClick=${() => give(keys, { decision: to }, { words })}>${children} <${Key} k=${k} /></button>`;
}
function Answers({ keys, one, many }) {
  const whole = isSeen(keys), off = guarded.value || line.value === "lost", n = many > 1 ? ` ${many}` : "", hint = !whole && one.kind !== "clientTool";
  const act = (id, k, to, name, { words, kind, sees = false } = {}) => html`<${Act} keys=${keys} id=${id} k=${k} to=${to} words=${words} kind=${kind} whole=${whole || !sees}>${name}${to === "accept" || to === "decline" ? n : ""}<//>`;
  const allow = (name) => act("allow", "a", "accept", name, { kind: "primary", sees: true });
  if (replying.value === seenKey(keys)) return html`<${Reply} keys=${keys} one=${one} />`;
  if (one.kind === "question") return html`<${Questions} keys=${keys} one=${one} off=${off} />`;
  const prefix = one.kind === "command" && many === 1 && one.proposedExecpolicyAmendment?.length;
  return html`<div class="answers" role="group" aria-label="Answer">${hint ? html`<span class="unread-end">Read on to its end ↓</span>` : null}
    ${one.kind === "plan" ? html`${allow("Approve")}<button data-testid="reply" onClick=${() => { replying.value = seenKey(keys); }}>Send back… <${Key} k="r" /></button>${act("deny", "d", "decline", "Reject", { words: DENIED.plan })}`
      : one.kind === "elicitation" ? html`${allow("Yes")}${act("deny", "d", "decline", "No", { words: DENIED.elicitation })}${act("deny-stop", "i", "cancel", "Leave it", { words: "Leaves unanswered" })}`
      : one.kind === "clientTool" ? act("deny", "d", "decline", "End the call", { kind: "danger", words: DENIED.clientTool })
      : html`${allow("Allow")}${act("allow-session", "s", "acceptForSession", "For the session", { sees: true })}${act("deny", "d", "decline", "Deny", { words: "Denied" })}${act("deny-stop", "i", "cancel", "Deny and stop", { kind: "danger", words: "Denied and stopped" })}${prefix ? html`<button class="prefix" data-testid="allow-prefix" disabled=${off || !whole} onClick=${() => give(keys, { decision: "acceptWithExecpolicyAmendment" })}>And all that begin with <code>${visible(one.proposedExecpolicyAmendment.join(" "), { breaks: false })}</code></button>` : null}`}
    <span class="grow" />${many === 1 && ["command", "patch"].includes(one.kind) && may("submit") ? html`<button class="quiet" data-testid="reply" onClick=${() => { replying.value = seenKey(keys); }}>Reply… <${Key} k="r" /></button>` : null}
  </div>`;
}

function Reply({ keys, one }) {
  const box = useRef(), mine = `reply ${seenKey(keys)}`, [text, setText] = useState(drafts.get(mine) ?? ""), plan = one.kind === "plan";
  useLayoutEffect(() => { box.current?.focus(); }, []);
  const close = () => { replying.value = null; }, write = (next) => { drafts.set(mine, next); setText(next); };
  const submit = (event) => {
    event.preventDefault();
    const said = box.current.value.trim();
    if (!said) return;
    const done = plan ? give(keys, { feedback: said }, { whole: true }) : give(keys, { decision: "decline" }, { words: "Denied, with your words to", then: said });
    if (done) { drafts.delete(mine); close(); }
  };
  const onKey = (event) => { if (event.key === "Escape") { event.stopPropagation(); close(); } else if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) submit(event); };
  return html`<form class="answers reply" onSubmit=${submit}><label class="wide">${plan ? "What to change in the plan" : `Deny, and tell ${quoted(one)}`}<textarea ref=${box} rows="3" maxlength="20000" value=${text} onInput=${(event) => write(event.target.value)} onKeyDown=${onKey} /></label>
    <button class="primary" data-testid="answer" disabled=${!text.trim() || guarded.value || line.value === "lost"}>${plan ? "Send back" : "Deny and send"} <${Key} k="⌘⏎" /></button><button type="button" onClick=${close}>Not now <${Key} k="Esc" /></button></form>`;
}

// Questions with options: one or several of each, or own words.
function Questions({ keys, one, off }) {
  const mine = `answers ${seenKey(keys)}`, [given, setGiven] = useState(drafts.get(mine) ?? {}), questions = one.questions ?? [];
  const texts = (question) => { const { picked = [], own = "" } = given[question.id] ?? {}; return [...picked, ...(own.trim() ? [own.trim()] : [])]; };
  const set = (id, change) => setGiven((before) => { const next = { ...before, [id]: { ...before[id], ...change } }; drafts.set(mine, next); return next; });
  const complete = questions.length && questions.every((question) => question.isOptional || texts(question).length) && questions.some((question) => texts(question).length);
  const submit = (event) => {
    event.preventDefault();
    if (!complete) return;
    give(keys, { answers: Object.fromEntries(questions.filter((question) => texts(question).length).map((question) => [question.id, { answers: texts(question) }])) }, { whole: true });
  };
  return html`<form class="questions" onSubmit=${submit}>${questions.map((question, n) => {
    const several = question.isMultiple, { picked = [], own = "" } = given[question.id] ?? {}, options = question.options ?? [], open = question.isOther !== false || !options.length;
    return html`<fieldset key=${question.id}><legend>${question.header ? html`<span class="from">${visible(question.header, { breaks: false })}</span>` : null}${visible(question.question)}</legend>
      ${options.map((option, m) => html`<label class="option ${picked.includes(option.label) ? "on" : ""}"><input type=${several ? "checkbox" : "radio"} name=${`q${n}`} data-testid="option" checked=${picked.includes(option.label)} onChange=${(event) => set(question.id, { picked: several ? (event.target.checked ? [...picked, option.label] : picked.filter((each) => each !== option.label)) : [option.label], ...(several ? {} : { own: "" }) })} /><span><b>${visible(option.label, { breaks: false })}</b>${option.description ? html`<small>${visible(option.description)}</small>` : null}</span></label>`)}
      ${open ? html`<input class="own" type=${question.isSecret ? "password" : "text"} autocomplete="off" maxlength="10000" aria-label=${options.length ? "Other words" : "Your answer"} placeholder=${options.length ? "Other…" : "Your answer"} value=${own} onInput=${(event) => set(question.id, { own: event.target.value, ...(several ? {} : { picked: [] }) })} />` : null}</fieldset>`;
  })}<${Facts} one=${one} /><div class="answers" role="group" aria-label="Answer"><button class="primary" data-testid="answer" disabled=${off || !complete}>Answer <${Key} k="⏎" /></button><button type="button" data-testid="deny" disabled=${off} onClick=${() => give(keys, { decision: "cancel" }, { words: DENIED.question })}>Leave unanswered <${Key} k="d" /></button></div></form>`;
}

// ── what led here: the last message and the last two commands of that agent ──────────────────────

const stories = new Map(); // key → signal of items, null while they are read, or the reason why they cannot be
function readStory(one) {
  const key = keyOf(one), found = stories.get(key) ?? signal(null);
  stories.set(key, found);
  api("thread/items/list", { threadId: one.threadId, limit: STORY, sortDirection: "desc" }).then(({ data }) => {
    const items = data.map((entry) => entry.item ?? entry).filter((item) => item.id !== one.callId);
    const said = items.find((item) => item.type === "agentMessage" && item.text), ran = items.filter((item) => item.type === "commandExecution" && item.status !== "inProgress").slice(0, 2);
    found.value = items.filter((item) => item === said || ran.includes(item)).reverse();
  }, (error) => { found.value = error.message; });
  return found;
}
function Story({ one }) {
  const found = (stories.get(keyOf(one)) ?? readStory(one)).value;
  if (found === null) return null;
  if (typeof found === "string") return html`<p class="faint part-error">What led here cannot be read: ${found}. <button class="quiet" onClick=${() => readStory(one)}>Try again</button></p>`;
  if (!found.length) return null;
  return html`<h3>What led here</h3><div class="story">${found.map((item) => (item.type === "agentMessage" ? html`<div class="said" key=${item.id}><${Prose} text=${item.text} /></div>` : html`<${Ran} key=${item.id} item=${item} />`))}</div>`;
}
// ── the page ─────────────────────────────────────────────────────────────────────────────────────

const STILL = [[0, null], [1, 0], [2, 0], [3, 0], [4, 0], [5, 0], [6, 0], [7, 0], [8, 4], [9, 8], [10, 6]];
function Empty() {
  const last = history.value?.[0];
  return html`<main class="empty" data-testid="needs-empty"><div>${canopy(STILL, 240, 120, true)}<h1>Nobody waits for you</h1><p>${atWork.value || "You will be called when an agent asks."}</p>
    ${last ? html`<p class="faint">Last answer: <${Age} since=${last.atMs} suffix=" ago" />, <b>${endWords(last)}</b> for <${Words} text=${agentName(last)} most=${60} /> in “<${Words} text=${title(last)} most=${80} />”. <${Link} to="/?answered" class="under">Answered<//></p>` : null}</div></main>`;
}

export function Needs() {
  const { query } = place.value, asked = query.get("request"), old = query.has("answered");
  // What the address names is chosen; else the oldest.
  useEffect(() => {
    const named = asked && order.value.find((key) => requestOf(key)?.requestId === asked);
    if (named) { if (chosen.peek() !== named) chosen.value = named; } else if (!rows.has(chosen.peek())) chosen.value = order.value[0] ?? null;
  }, [asked, order.value]);
  useLayoutEffect(() => bind({
    j: () => step(1), k: () => step(-1), ArrowDown: (event) => inList(event, 1), ArrowUp: (event) => inList(event, -1),
    a: () => act("accept"), s: () => act("acceptForSession"), d: () => act("decline"), i: () => act("cancel"), r: reply, x: markAlike, z: () => takeBack(),
    Enter: () => { if (document.activeElement?.closest("button, a")) return; document.querySelector("[data-testid=request-detail]")?.focus(); },
    Escape: () => { if (replying.peek()) replying.value = null; else if (marked.peek().size) marked.value = new Set(); else if (phone.peek() && place.peek().query.has("request")) go("/"); },
  }), []);
  if (failed.value && !loaded.value) return html`<main class="empty"><div><h1>The requests cannot be read</h1><p>${failed.value}</p><p><button onClick=${readAll}>Try again</button></p></div></main>`;
  if (old) return html`<main class="split past"><${Answered} /></main>`;
  if (!order.value.length) return loaded.value ? html`<${Empty} />` : html`<main class="split"><section class="list" data-testid="needs"><${Head} /></section><section class="detail" /></main>`;
  const pane = phone.value && asked && requestOf(chosen.value)?.requestId === asked;
  return html`<main class="split ${pane ? "pane" : ""}"><${List} />${!phone.value || pane ? html`<${Detail} />` : null}</main>`;
}
function step(by) {
  // From where the selection is, also where that row folds away just now.
  const all = order.peek(), at = all.indexOf(chosen.peek()), open = (key) => !rows.get(key).peek().gone;
  const next = by > 0 ? all.slice(at + 1).find(open) : all.slice(0, Math.max(0, at)).findLast(open);
  if (next && next !== chosen.peek()) { marked.value = new Set(); replying.value = null; choose(next); }
}
function inList(event, by) { if (document.activeElement?.getAttribute("role") === "listbox") { event.preventDefault(); step(by); } }
function act(decision) {
  const keys = acted(), one = requestOf(keys[0]);
  if (!one || phone.peek()) return;
  const refuses = ["decline", "cancel"].includes(decision), several = ["command", "patch"].includes(one.kind);
  if (one.kind === "question" && !refuses) { reply(); return; }
  if (one.kind === "clientTool" && !refuses) return;
  if (decision === "acceptForSession" && !several) return;
  if (decision === "cancel" && !several && one.kind !== "elicitation") return;
  const words = DENIED[one.kind] ?? (decision === "cancel" ? "Denied and stopped" : "Denied");
  give(keys, { decision: one.kind === "question" ? "cancel" : decision }, { words });
}
function reply(event) {
  const keys = acted(), one = requestOf(keys[0]);
  if (!one || keys.length > 1) return;
  event?.preventDefault();
  if (one.kind === "question") document.querySelector(".questions input")?.focus();
  else if (["command", "patch", "plan"].includes(one.kind) && answerable(one)) replying.value = seenKey(keys);
}

// What the palette offers of this page.
export const acts = () => {
  const one = requestOf(chosen.value);
  if (!one || !answerable(one)) return [];
  const who = quoted(one);
  return one.kind === "question" ? [[`Answer ${who}…`, () => reply()]] : [[`Allow ${who}`, () => act("accept")], [`Deny ${who}`, () => act("decline")]];
};
