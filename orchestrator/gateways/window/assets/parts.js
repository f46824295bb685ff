// Small parts that all pages draw with, and the address.
import { h } from "preact";
import { computed, effect, signal } from "@preact/signals";
import htm from "htm";
import { now, past } from "./store.js";
import { plain, visible } from "./text.js";

export const html = htm.bind(h);

// ── the address says everything: page, tree, agent, tab, place, filter ───────────────────────────

const here = signal(location.pathname + location.search);
addEventListener("popstate", () => { here.value = location.pathname + location.search; });
// A part of the address as text; one that ends in the middle of an escape is as it was typed.
const part = (text) => { try { return decodeURIComponent(text); } catch { return text; } };
export const place = computed(() => {
  const url = new URL(here.value, location.origin), [, page = "", tree, agent, tab] = url.pathname.split("/").map(part);
  return { path: url.pathname, page: page || "needs", tree, agent, tab: tab ?? "agents", query: url.searchParams, at: entry(url.searchParams.get("at")), held: entry(url.searchParams.get("held")), all: url.searchParams.get("by") === "all" };
});
const entry = (text) => (/^[1-9][0-9]{0,14}$/.test(text ?? "") ? Number(text) : null);
effect(() => { past.value = place.value.page === "tree" && place.value.at !== null; });
export function go(to, { replace = false } = {}) {
  if (to === here.value) return;
  history[replace ? "replaceState" : "pushState"](null, "", to);
  here.value = to;
}
// A link of the page: opened in place, or in a tab of its own with ⌘ or the middle button.
export function Link({ to, children, ...rest }) {
  const open = (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    event.preventDefault();
    go(to);
  };
  return html`<a href=${to} onClick=${open} ...${rest}>${children}</a>`;
}

// Pages of the rail: address, name, words, keys.
export const PAGES = [["/", "needs", "Needs you", "g n"], ["/fleet", "fleet", "Fleet", "g f"], ["/workers", "workers", "Workers", "g w"], ["/spend", "spend", "Spend", "g s"]];

// ── light and dark ───────────────────────────────────────────────────────────────────────────────

const SCHEME = "dendro.scheme";
export const scheme = signal(localStorage.getItem(SCHEME) ?? "system");
effect(() => {
  if (scheme.value === "system") { localStorage.removeItem(SCHEME); delete document.documentElement.dataset.scheme; }
  else { localStorage.setItem(SCHEME, scheme.value); document.documentElement.dataset.scheme = scheme.value; }
});

// ── figures ──────────────────────────────────────────────────────────────────────────────────────

export function span(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  return s < 60 ? `${s} s` : s < 3600 ? `${Math.floor(s / 60)} m` : s < 86_400 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86_400)} d`;
}
export const short = (n) => (n < 1e3 ? `${n}` : n < 1e6 ? `${(n / 1e3).toFixed(n < 1e4 ? 1 : 0)}k` : `${(n / 1e6).toFixed(2)}M`);
export const dollars = (micro) => `$${(micro / 1e6).toFixed(2)}`;
export const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
// An age, which counts by itself: nothing above it is drawn again for it. Amber from `lateS` seconds on.
// Up to `until` it has the age of then.
export function Age({ since, until, lateS = Infinity, suffix = "", ...rest }) {
  if (typeof since !== "number") return null;
  const seconds = ((until ?? now.value) - since) / 1000;
  return html`<time class=${seconds >= lateS ? "late" : ""} datetime=${new Date(since).toISOString()} title=${new Date(since).toLocaleString()} ...${rest}>${span(seconds)}${suffix}</time>`;
}
export const Stat = ({ added, removed }) => html`<span class="stat"><b class="plus" aria-label="${added} added">+${added.toLocaleString("en")}</b>${removed ? html` <b class="minus" aria-label="${removed} removed">−${removed.toLocaleString("en")}</b>` : null}</span>`;

// The share of a limit that is spent.
export function Meter({ kind = "cost", spent, limit }) {
  if (!limit) return null;
  const share = Math.min(1, spent / limit);
  return html`<progress class="meter ${share > 0.9 ? "full" : ""}" max="100" value=${Math.round(share * 100)} aria-label="Share of the budget" title=${`${amount(kind, spent)} of ${amount(kind, limit)} ${kind === "cost" ? "" : plain(kind, 30)}`}></progress>`;
}
export const amount = (kind, n) => (kind === "cost" || kind === "costMicro" ? dollars(n) : short(n));

// ── states: a shape and a colour each ────────────────────────────────────────────────────────────

const SIGNS = { needs: "?", failed: "!", lost: "×", due: "×", quarantined: "!" };
export const STATES = {
  needs: "Needs you", lost: "Lost", due: "Due", failed: "Failed", ready: "Ready, unread", working: "Working", paused: "Paused",
  waiting: "Waiting", idle: "At rest", quarantined: "Quarantined", archived: "Shelved",
};
export const Glyph = ({ state }) => html`<i class="glyph ${Object.hasOwn(STATES, state) || state === "unknown" ? state : "idle"}" role="img" aria-label=${state === "unknown" ? "Not recorded" : STATES[state] ?? "At rest"}>${SIGNS[state] ?? ""}</i>`;
export const Key = ({ k }) => html`<kbd aria-hidden="true">${k}</kbd>`;

// ── names that agents and people gave ────────────────────────────────────────────────────────────

// Text of one line, in which nothing is hidden: labels, titles, file names.
export const Words = ({ text, most = 200 }) => html`<bdi>${visible(cut(String(text ?? ""), most), { breaks: false })}</bdi>`;
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
export const agentName = (one) => (one.label ? one.label : one.agentId === 0 ? "root" : `agent ${one.agentId}`);
// The same within the window's own words, where nothing of an agent may look like them: quoted, bounded, with nothing hidden in it.
export const quoted = (one) => (one.label ? `“${plain(one.label, 60)}”` : agentName(one));
export const title = (one) => plain(one.title || "") || `Tree ${String(one.treeId ?? "").slice(0, 8)}`;
export const folder = (path) => String(path ?? "").replace(/^\/(?:home|Users)\/[^/]+(?=\/|$)/, "~");
export const quantity = (n, one, more = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : more}`;

// Whether the page is as narrow as a phone's.
const narrow = matchMedia("(max-width: 760px)");
export const phone = signal(narrow.matches);
narrow.addEventListener("change", () => { phone.value = narrow.matches; });

// ── a tree as it has grown ───────────────────────────────────────────────────────────────────────

// The root below, leaves above, a dot for each agent in the colour of its state; `agents` are `[id, parent, state]`.
export function canopy(agents, width, height, still = false) {
  const below = new Map(agents.map(([id]) => [id, []])), root = agents[0]?.[0];
  for (const [id, parent] of agents) if (id !== root) (below.get(parent) ?? below.get(root))?.push(id);
  const at = new Map();
  let leaves = 0, deepest = 1;
  const grow = (id, depth) => {
    deepest = Math.max(deepest, depth);
    const xs = below.get(id).map((each) => grow(each, depth + 1));
    const x = xs.length ? (xs[0] + xs.at(-1)) / 2 : leaves++;
    at.set(id, [x, depth]);
    return x;
  };
  if (root !== undefined) grow(root, 0);
  const pitch = Math.min((width - 8) / Math.max(1, leaves - 1), still ? 30 : 10), left = still ? (width - pitch * (leaves - 1)) / 2 : 4;
  const r = Math.min(still ? 4 : 2.9, width / Math.max(leaves, 6) / 2.1);
  const point = (id) => { const [x, depth] = at.get(id); return [left + x * pitch, height - 4 - (depth / deepest) * (height - 8)]; };
  const drawn = agents.filter(([id]) => at.has(id));
  const twigs = drawn.filter(([id]) => id !== root).map(([id, parent]) => {
    const [x, y] = point(id), [px, py] = point(at.has(parent) ? parent : root), middle = (y + py) / 2;
    return `M${px.toFixed(1)} ${py.toFixed(1)}C${px.toFixed(1)} ${middle.toFixed(1)} ${x.toFixed(1)} ${middle.toFixed(1)} ${x.toFixed(1)} ${y.toFixed(1)}`;
  }).join("");
  return html`<svg class="canopy" width=${width} height=${height} viewBox="0 0 ${width} ${height}" aria-hidden="true"><path d=${twigs} />${drawn.map(([id, , state]) => {
    const [x, y] = point(id);
    return html`<circle key=${id} cx=${x.toFixed(1)} cy=${y.toFixed(1)} r=${(["needs", "failed", "lost"].includes(state) ? r * 1.35 : r).toFixed(1)} class=${still ? "still" : state} />`;
  })}</svg>`;
}
