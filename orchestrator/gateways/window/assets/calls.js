// Calls: how this browser tells of what needs a person, and of what is ready: not at all, by a badge, or by a notification.
import { computed, effect, signal } from "@preact/signals";
import { isLeading, notice, onSignedOut, session, signedInMay } from "./store.js";
import { plain } from "./text.js";
import { agentName, go, html, title } from "./parts.js";
import * as needs from "./needs.js";
import * as trees from "./trees.js";

const KEY = "dendro.calls", MOST_TREES = 200, MOST_KNOWN = 5_000, MOST_AT_ONCE = 3, FOCUS = "dendro-focus";
const WAYS = [["off", "Off"], ["badge", "Badge"], ["call", "Call"]];
const OF_TREE = [["", "as set"], ["call", "always"], ["off", "never"]];
const TOPICS = [["needs", "When something needs you"], ["ready", "When a tree is ready"]];

// What the person has chosen: `needs`, `ready`, and of single trees, by their ids.
const kept = () => { try { return JSON.parse(localStorage.getItem(KEY)) ?? {}; } catch { return {}; } };
function checked({ needs: one, ready: two, trees: of } = {}) {
  const way = (given, usual) => (WAYS.some(([name]) => name === given) ? given : usual);
  return { needs: way(one, "badge"), ready: way(two, "off"), trees: Object.fromEntries(Object.entries(of ?? {}).filter(([, rule]) => rule === "call" || rule === "off").slice(-MOST_TREES)) };
}
const rules = signal(checked(kept()));
function keep(changes) {
  rules.value = checked({ ...rules.peek(), ...changes });
  localStorage.setItem(KEY, JSON.stringify(rules.peek()));
}
addEventListener("storage", ({ key }) => { if (key === KEY) rules.value = checked(kept()); });

const wayOf = (topic, tree) => { const rule = rules.value.trees[tree]; return rule === "call" ? "call" : rule === "off" ? "off" : rules.value[topic]; };

// How many the title, the icon and the badge of an installed window tell of.
export const count = computed(() => (session.value.state !== "in" ? 0
  : needs.openRequests().filter((one) => wayOf("needs", one.treeId) !== "off").length
  + trees.order.value.filter(([id, state]) => state === "ready" && wayOf("ready", id) !== "off").length));

// ── notifications ────────────────────────────────────────────────────────────────────────────────

const KINDS = { command: "a command waits for you", patch: "a patch waits for you", question: "a question waits for you", plan: "a plan waits for you", elicitation: "a question of a server waits for you", clientTool: "a call waits for a program" };
const refused = signal("");
const shown = new Map(); // what it is about → the notification, until that is over
const known = new Set(); // requests that this tab has heard of
let states = null, heard = false;

onSignedOut(() => { shown.forEach((one) => one.close()); shown.clear(); known.clear(); states = null; heard = false; });

// Whether some tab of this window is looked at: the one that is in front holds a lock.
let letGo = null;
function looksOn() {
  const looks = document.hasFocus() && !document.hidden;
  if (!looks) { letGo?.(); letGo = null; return; }
  if (!letGo) navigator.locks.request(FOCUS, { mode: "shared" }, () => new Promise((done) => { letGo = done; if (!document.hasFocus()) looksOn(); }));
}
async function isLookedAt() {
  const { held } = await navigator.locks.query();
  return held.some((lock) => lock.name === FOCUS);
}

// The words are the window's own but for the title of the tree and the agent's name, which stand in quotes.
function call(about, head, one, to) {
  let made;
  try {
    const name = one.label ? `“${plain(agentName(one), 40)}” of ` : "";
    made = new Notification(`Dendro: ${head}`, { body: `${name}“${plain(title(one), 80)}”`, tag: `dendro ${about}`, icon: new URL("icon.svg", import.meta.url).href });
  } catch { refused.value = "This browser shows no notifications of an open page."; return; }
  shown.set(about, made);
  made.onclick = () => { window.focus(); made.close(); go(to); };
  made.onclose = () => { if (shown.get(about) === made) shown.delete(about); };
}
async function callAll(calls) {
  if (!calls.length || !isLeading() || self.Notification?.permission !== "granted" || await isLookedAt()) return;
  if (calls.length <= MOST_AT_ONCE) calls.forEach((one) => call(...one));
  else call("many", `${calls.length} things are for you`, calls[0][2], "/");
}
function end(about) { shown.get(about)?.close(); shown.delete(about); }

const aboutRequest = (one) => `${one.threadId} ${one.callId}`;
function onRequests() {
  const open = needs.openRequests();
  if (!needs.loaded.value) return;
  const calls = [], there = new Set(open.map(aboutRequest));
  for (const one of open) {
    const about = aboutRequest(one);
    if (known.has(about)) continue;
    known.add(about);
    if (heard && signedInMay("approve") && wayOf("needs", one.treeId) === "call") calls.push([about, KINDS[one.kind] ?? "a request waits for you", one, `/?request=${encodeURIComponent(one.requestId)}`]);
  }
  for (const about of shown.keys()) if (about.includes(" ") && !there.has(about)) end(about);
  if (known.size > MOST_KNOWN) for (const about of known) if (!there.has(about)) known.delete(about);
  heard = true;
  callAll(calls);
}
function onTrees() {
  const now = new Map(trees.order.value), before = states;
  if (!trees.loaded.value) return;
  states = now;
  for (const about of shown.keys()) if (!about.includes(" ") && now.get(about) !== "ready") end(about);
  if (!before) return;
  const ready = [...now].filter(([id, state]) => state === "ready" && before.has(id) && before.get(id) !== "ready" && wayOf("ready", id) === "call");
  callAll(ready.map(([id]) => [id, "a tree is ready", trees.rows.get(id).peek(), `/tree/${id}`]));
}

let begun = false;
export function begin() {
  if (begun) return;
  begun = true;
  for (const event of ["focus", "blur"]) addEventListener(event, looksOn);
  document.addEventListener("visibilitychange", looksOn);
  looksOn();
  effect(onRequests);
  effect(onTrees);
  effect(() => { const n = count.value; try { (n ? navigator.setAppBadge?.(n) : navigator.clearAppBadge?.())?.catch?.(() => {}); } catch { /* only an installed window has a badge */ } });
}

// ── settings ─────────────────────────────────────────────────────────────────────────────────────

// A browser asks for its permission only when a person chooses to be called.
async function allowed() {
  refused.value = "";
  if (!("Notification" in self)) { refused.value = "This browser shows notifications to addresses of this machine and to https:// alone."; return false; }
  const answer = Notification.permission === "default" ? await Notification.requestPermission() : Notification.permission;
  if (answer !== "granted") refused.value = "The browser does not allow notifications here: its settings of this address say so.";
  return answer === "granted";
}
async function choose(changes, way) {
  if (way === "call" && !await allowed()) { rules.value = { ...rules.peek() }; return; }
  keep(changes);
}
const silent = () => self.Notification?.permission !== "granted" && (Object.values(rules.value.trees).includes("call") || rules.value.needs === "call" || rules.value.ready === "call");

export const Settings = () => html`${TOPICS.map(([topic, words]) => html`<fieldset key=${topic} data-testid=${`calls-${topic}`}><legend>${words}</legend>${WAYS.map(([way, name]) => html`<label key=${way} class="chip ${rules.value[topic] === way ? "on" : ""}"><input type="radio" name=${`calls-${topic}`} class="hidden" checked=${rules.value[topic] === way} onChange=${() => choose({ [topic]: way }, way)} />${name}</label>`)}</fieldset>`)}
  ${refused.value ? html`<p class="error" role="alert">${refused.value}</p>` : silent() ? html`<p class="faint">Calls wait for the browser: <button class="quiet under" onClick=${allowed}>allow notifications</button></p>` : html`<p class="faint">A badge counts in the title of the tab; a call is a notification while no window is looked at. A tree has its own rule on its page.</p>`}`;

// The rule of one tree, on its page.
export function TreeRule({ id }) {
  const rule = rules.value.trees[id] ?? "";
  const set = (next) => { const { [id]: _, ...others } = rules.peek().trees; return choose({ trees: next ? { ...others, [id]: next } : others }, next).then(() => { if (refused.peek() && next === "call") notice(refused.peek(), { bad: true }); }); };
  return html`<label class="rule"><small>Calls</small><select data-testid="tree-rule" value=${rule} onChange=${(event) => set(event.target.value)}>${OF_TREE.map(([value, words]) => html`<option key=${value} value=${value} selected=${rule === value}>${words}</option>`)}</select></label>`;
}
