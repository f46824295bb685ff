// What the page knows: who is signed in, the line to the server, and what the server has told.
//
// The server pushes by one stream for all tabs of a browser: the tab that holds the Web Lock `dendro-stream`
// reads it and hands each event to the others by a `BroadcastChannel`. Events are applied once per frame.
import { batch, effect, signal } from "@preact/signals";

export const KEY = "dendro.key";
const QUIET_MS = 12_000, FIRST_TRY_MS = 500, LAST_TRY_MS = 10_000, TAB_CHECK_MS = 30_000, AWAY_MS = 3_000;

export const session = signal({ state: "starting", why: "" }); // starting, in, or out; with `window/state` when in
export const line = signal("opening"); // opening, live or lost
export const heardAtMs = signal(Date.now()); // when the server was heard last
export const storeAway = signal(""); // the words of the last 503, until something is answered again
export const now = signal(Date.now()); // one tick a second, for ages
export const notices = signal([]);

// The clock of this machine may be wrong: ages are counted by the server's.
let aheadMs = 0;
export const serverNow = () => Date.now() + aheadMs;
setInterval(() => { now.value = serverNow(); }, 1000);

// ── the API ──────────────────────────────────────────────────────────────────────────────────────

export class Refused extends Error {
  constructor(status, code, message, data) { super(message); Object.assign(this, { status, code, data }); }
}

const headers = () => ({ "Content-Type": "application/json", "Dendro-Key": localStorage.getItem(KEY) ?? "" });

// From here on the server would refuse whatever the page still asks for: what it has asked is broken off.
let signingOut = false, asking = new AbortController();

// Calls a method. Throws `Refused` with the server's words; status 0 where no server answered.
export async function api(method, params = {}, more = {}) {
  if (signingOut && method !== "logout") throw new Refused(401, 0, "signed out");
  let answer, told = null;
  try {
    const signal = AbortSignal.any([asking.signal, ...(more.signal ? [more.signal] : [])]);
    answer = await fetch(`/api/${method}`, { method: "POST", headers: headers(), body: JSON.stringify(params), ...more, signal });
    told = await answer.json().catch((error) => { if (answer.ok || error.name === "AbortError") throw error; return null; });
  } catch (error) {
    if (signingOut && method !== "logout") throw new Refused(401, 0, "signed out");
    if (error.name === "AbortError") throw error;
    throw new Refused(0, 0, "the server does not answer");
  }
  if (answer.ok) { if (storeAway.value) storeAway.value = ""; return told ?? {}; }
  const { code = 0, message = `the server answered ${answer.status}`, data } = told?.error ?? {};
  if (answer.status === 401 && method !== "login") signedOut(message);
  if (answer.status === 503) storeAway.value = message;
  throw new Refused(answer.status, code, message, data);
}

// Saves what a route answers as a file of the name that it gives. Throws `Refused`, also where it breaks off.
export async function download(route, params) {
  let answer, content;
  try {
    answer = await fetch(`/api/${route}`, { method: "POST", headers: headers(), body: JSON.stringify(params) });
    if (answer.ok) content = await answer.blob();
  } catch { throw new Refused(0, 0, "the server does not answer, or the file broke off"); }
  if (!answer.ok) {
    const { code = 0, message = `the server answered ${answer.status}` } = (await answer.json().catch(() => null))?.error ?? {};
    if (answer.status === 401) signedOut(message);
    throw new Refused(answer.status, code, message);
  }
  const name = /filename="([\w.-]+)"/.exec(answer.headers.get("content-disposition") ?? "")?.[1] ?? "dendro.jsonl";
  saveAs(content, name);
}
export function saveAs(content, name) {
  const address = URL.createObjectURL(content);
  Object.assign(document.createElement("a"), { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

// Whether the store is back is asked again and again: a page that only looks on calls nothing by itself.
effect(() => { if (storeAway.value) askAgain(); });
function askAgain() {
  setTimeout(async () => {
    if (!storeAway.peek() || session.peek().state !== "in") return;
    await api("window/state").catch(() => {});
    if (storeAway.peek()) askAgain(); else beginAnew();
  }, AWAY_MS);
}

// ── signing in and out ───────────────────────────────────────────────────────────────────────────

const channel = new BroadcastChannel("dendro");
const scopes = ["read", "submit", "approve", "admin"];
export const signedInMay = (scope) => session.value.state === "in" && scopes.indexOf(session.value.scope) >= scopes.indexOf(scope);
// Whether the page shows a tree as it was: nothing is written then.
export const past = signal(false);
export const may = (scope) => signedInMay(scope) && (scope === "read" || !past.value);

// What is emptied when nobody is signed in: each page adds its own.
const emptied = [];
export const onSignedOut = (clear) => emptied.push(clear);

export function signedOut(why = "") {
  if (session.value.state === "out") return;
  batch(() => { session.value = { state: "out", why }; emptied.forEach((clear) => clear()); });
  closeStream();
}

export async function signIn(proof) {
  // The cookie alone opens nothing: it is sent to every port of this host, this key is not.
  const key = Array.from(crypto.getRandomValues(new Uint8Array(32)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  const before = localStorage.getItem(KEY);
  localStorage.setItem(KEY, key);
  try {
    await api("login", { ...proof, key });
  } catch (error) {
    if (before !== null) localStorage.setItem(KEY, before); else localStorage.removeItem(KEY);
    throw error;
  }
  proof.taken = true;
  channel.postMessage({ kind: "in" });
  await readState();
}

// What a page still holds back is sent before a person signs out.
const leaving = [];
export const onLeaving = (sends) => leaving.push(sends);

export async function signOut() {
  await Promise.allSettled(leaving.map((sends) => sends()));
  signingOut = true;
  asking.abort();
  asking = new AbortController();
  try { await api("logout"); } catch { /* the cookie has ended by itself */ } finally { signingOut = false; }
  localStorage.removeItem(KEY);
  channel.postMessage({ kind: "out" });
  signedOut();
}

// Reads who is signed in; the page begins with it.
export async function readState() {
  const told = await api("window/state");
  if (typeof told.now === "number") aheadMs = told.now - Date.now();
  batch(() => { now.value = serverNow(); session.value = { ...told, state: "in", why: "" }; });
  openStream();
}

// ── what is told below, at the left ──────────────────────────────────────────────────────────────

let told = 0;
// A notice stays `forMs`; one with an `act` (`[words, what to do]`) has a button.
export function notice(text, { act = null, forMs = 6000, bad = false, key = null } = {}) {
  const id = key ?? ++told;
  const drop = () => { notices.value = notices.value.filter((one) => one.id !== id); };
  notices.value = [...notices.value.filter((one) => one.id !== id), { id, text, act, bad, drop }].slice(-4);
  if (forMs) setTimeout(drop, forMs);
  return drop;
}

// ── the stream ───────────────────────────────────────────────────────────────────────────────────

const heard = new Map(); // topic → the functions of this tab that hear it
const opened = new Set(); // called when the stream begins, or begins anew: what is not pushed whole is read again
const tab = crypto.randomUUID();
const wants = new Map(); // tab → its topics, known to all tabs, used by the one that reads
export const isLeading = () => leads;
let leads = false, reading = null, cursors = new Map(), tries = 0, retry = 0;

// Hears a topic; the answer ends that. `onEvent` gets each event's JSON.
export function hear(topic, onEvent) {
  const functions = heard.get(topic) ?? new Set();
  const first = !heard.has(topic);
  heard.set(topic, functions.add(onEvent));
  if (first) wanted(); else if (leads) reopen(); else channel.postMessage({ kind: "again" });
  return () => {
    functions.delete(onEvent);
    if (!functions.size) { heard.delete(topic); wanted(); }
  };
}
export function onOpened(begin) { opened.add(begin); return () => opened.delete(begin); }

function wanted() {
  const topics = [...heard.keys()];
  wants.set(tab, topics);
  channel.postMessage({ kind: "want", tab, topics });
  if (leads) reopen();
}

channel.onmessage = ({ data }) => {
  if (data.kind === "want") {
    const same = JSON.stringify(wants.get(data.tab)) === JSON.stringify(data.topics);
    wants.set(data.tab, data.topics);
    if (leads && !same) reopen();
  } else if (data.kind === "bye") { wants.delete(data.tab); }
  else if (data.kind === "again") { if (leads) reopen(); }
  else if (data.kind === "leader") { wanted(); }
  else if (data.kind === "events") take(data.events);
  else if (data.kind === "line") setLine(data.state, data.heardAtMs);
  else if (data.kind === "opened") beginAnew();
  else if (data.kind === "out") signedOut("you have signed out in another tab");
  else if (data.kind === "in" && session.value.state !== "in") readState().catch(() => {});
};
addEventListener("pagehide", () => channel.postMessage({ kind: "bye", tab }));

let leading = false;
function openStream() {
  if (leading) { if (leads) reopen(); return; }
  leading = true;
  wanted();
  navigator.locks.request(`dendro-tab-${tab}`, () => new Promise(() => {}));
  navigator.locks.request("dendro-stream", () => {
    leads = true;
    channel.postMessage({ kind: "leader" });
    reopen();
    setInterval(dropClosedTabs, TAB_CHECK_MS);
    return new Promise(() => {});
  });
}
// A tab that was ended without a word holds no lock any more.
async function dropClosedTabs() {
  const { held } = await navigator.locks.query();
  const alive = new Set(held.map((lock) => lock.name));
  for (const one of wants.keys()) if (!alive.has(`dendro-tab-${one}`)) wants.delete(one);
}
function closeStream() { clearTimeout(retry); reading?.abort(); reading = null; }

let reopening = false;
// Begins a stream of all wanted topics; the old one ends when the new one has said its first word.
function reopen() {
  if (reopening) return;
  reopening = true;
  queueMicrotask(() => { reopening = false; clearTimeout(retry); read(); });
}

const isLog = (topic) => topic.startsWith("thread:");

async function read() {
  if (session.value.state !== "in") return;
  const topics = [...new Set([...wants.values()].flat())].sort();
  for (const topic of cursors.keys()) if (!topics.includes(topic)) cursors.delete(topic);
  const before = reading, mine = new AbortController();
  if (!topics.length) { before?.abort(); reading = null; return; }
  reading = mine;
  const query = topics.map((topic) => {
    // A topic of state begins whole; one of a log goes on behind what was heard.
    const cursor = isLog(topic) ? cursors.get(topic) : undefined;
    return `topic=${encodeURIComponent(cursor === undefined ? topic : `${topic}@${cursor}`)}`;
  }).join("&");
  const quiet = () => mine.abort(new DOMException("quiet", "TimeoutError"));
  let timer = setTimeout(quiet, QUIET_MS);
  try {
    const answer = await fetch(`/api/stream?${query}`, { headers: { "Dendro-Key": localStorage.getItem(KEY) ?? "" }, signal: mine.signal });
    if (answer.status === 401) { signedOut(((await answer.json().catch(() => null))?.error?.message) ?? ""); return; }
    if (!answer.ok || !answer.body) {
      const said = await answer.json().catch(() => null);
      if (answer.status === 503) storeAway.value = said?.error?.message ?? "";
      throw new Refused(answer.status, 0, said?.error?.message ?? "");
    }
    const text = new TextDecoder(), from = answer.body.getReader();
    let rest = "", first = true;
    for (;;) {
      const { done, value } = await from.read();
      if (done) break;
      clearTimeout(timer);
      timer = setTimeout(quiet, QUIET_MS);
      if (first) { first = false; before?.abort(); tries = 0; tell("live"); channel.postMessage({ kind: "opened" }); beginAnew(); }
      else tell("live");
      if (mine !== reading) continue; // a newer stream takes over; this one is read until it has begun
      rest += text.decode(value, { stream: true });
      const parts = rest.split("\n\n");
      rest = parts.pop();
      const events = parts.map(event).filter(Boolean);
      if (events.length) { channel.postMessage({ kind: "events", events }); take(events); }
    }
  } catch (error) {
    if (mine !== reading) { clearTimeout(timer); return; }
  }
  clearTimeout(timer);
  if (mine !== reading || session.value.state !== "in") return;
  before?.abort();
  reading = null;
  tell("lost");
  const wait = Math.min(LAST_TRY_MS, FIRST_TRY_MS * 2 ** tries++) * (0.75 + Math.random() / 2);
  retry = setTimeout(read, wait);
}

// One event of the stream: its topic, its JSON; null for a comment.
function event(part) {
  let topic = "", id = "", data = "";
  for (const row of part.split("\n")) {
    if (row.startsWith("event:")) topic = row.slice(6).trim();
    else if (row.startsWith("id:")) id = row.slice(3).trim();
    else if (row.startsWith("data:")) data += row.slice(5).trimStart();
  }
  if (!topic || !data) return null;
  if (id) cursors.set(topic, id);
  const json = JSON.parse(data);
  if (json.type === "reset") cursors.delete(topic);
  return [topic, json];
}

function tell(state) {
  const at = Date.now();
  setLine(state, at);
  channel.postMessage({ kind: "line", state, heardAtMs: at });
}
function setLine(state, at) {
  if (state === "live") heardAtMs.value = at;
  if (line.value !== state) line.value = state;
}
function beginAnew() { opened.forEach((begin) => begin()); }

let waiting = [], planned = false;
// Events are applied once per frame; a hidden page has no frames, and is told at once.
function take(events) {
  waiting.push(...events);
  if (planned) return;
  planned = true;
  if (document.hidden) setTimeout(apply, 0); else requestAnimationFrame(apply);
}
function apply() {
  planned = false;
  const events = waiting;
  waiting = [];
  batch(() => { for (const [topic, json] of events) for (const each of heard.get(topic) ?? []) each(json); });
}
document.addEventListener("visibilitychange", () => { if (document.hidden && planned) setTimeout(() => planned && apply(), 0); });
addEventListener("online", () => { if (leads && line.value === "lost") { tries = 0; reopen(); } });
