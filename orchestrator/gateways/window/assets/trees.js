// The trees that the server has told of: their rows, counted and in their order; every page reads them.
import { computed, signal } from "@preact/signals";
import { overlay } from "./keys.js";
import { quantity } from "./parts.js";
import { api, hear, may, notice, onSignedOut } from "./store.js";

export const ORDER = ["needs", "lost", "due", "quarantined", "failed", "ready", "working", "paused", "waiting", "idle", "archived"];
const AT_WORK = new Set(["needs", "lost", "due", "failed", "working", "paused", "waiting"]);
const PAGE = 100, RAIL = 11;

export const rows = new Map(); // tree → signal of its row
export const order = signal([]); // [tree, state], by state, the newest first in each
export const counts = signal({}), damaged = signal([]);
export const loaded = signal(false), failed = signal("");
const more = signal("start");
const agentsAtWork = signal(0);
let begun = false;

onSignedOut(() => { rows.clear(); order.value = []; counts.value = {}; damaged.value = []; loaded.value = false; more.value = "start"; });

// A row keeps its place among those of its state while it works: what moves cannot be read.
function sort() {
  const all = [...rows.entries()].map(([id, row]) => [id, row.peek()]);
  const at = (row) => (row.state === "idle" || row.state === "ready" ? row.lastAtMs : row.createdAtMs) ?? 0;
  all.sort(([a, one], [b, two]) => ORDER.indexOf(one.state) - ORDER.indexOf(two.state) || at(two) - at(one) || (a < b ? -1 : 1));
  const next = all.map(([id, row]) => [id, row.state]);
  if (JSON.stringify(next) !== JSON.stringify(order.peek())) order.value = next;
  const working = all.reduce((sum, [, row]) => sum + (AT_WORK.has(row.state) ? row.agents?.working ?? 0 : 0), 0);
  if (agentsAtWork.peek() !== working) agentsAtWork.value = working;
}
function put(row) {
  const known = rows.get(row.treeId);
  if (known) known.value = row; else rows.set(row.treeId, signal(row));
}
function onFleet(event) {
  if (event.counts) counts.value = event.counts;
  if (event.damaged) damaged.value = event.damaged;
  if (event.type === "all") {
    const there = new Set(event.data.map((row) => row.treeId));
    for (const id of rows.keys()) if (!there.has(id)) rows.delete(id);
    event.data.forEach(put);
    loaded.value = true;
    failed.value = "";
    more.value = "start";
  } else if (event.type === "changed") {
    event.changed.forEach(put);
    for (const one of event.gone) rows.delete(typeof one === "string" ? one : one.treeId);
  } else if (event.type === "error") { if (!loaded.peek()) failed.value = event.error?.message ?? ""; return; }
  else if (event.type === "reset") { readAll(); return; }
  sort();
}
export async function readAll() {
  try {
    const page = await api("fleet/list", { sort: "activity", limit: PAGE });
    onFleet({ type: "all", data: page.data, counts: page.counts, damaged: page.damaged });
  } catch (error) { if (!loaded.peek()) failed.value = error.message; }
}
// Older trees than the server pushes: pages are read until one has something new.
export async function readMore() {
  try {
    for (let before = rows.size; rows.size === before && more.peek() !== "";) {
      const page = await api("fleet/list", { sort: "activity", limit: PAGE, ...(more.peek() !== "start" ? { cursor: more.peek() } : {}) });
      page.data.forEach((row) => { if (!rows.has(row.treeId)) put(row); });
      more.value = page.nextCursor ?? "";
    }
    sort();
  } catch (error) { notice(error.message, { bad: true }); }
}
export function begin() {
  if (begun) return;
  begun = true;
  hear("fleet", onFleet);
}

// The trees of the rail: what is at work, and what was looked at last.
export const busy = computed(() => order.value.filter(([, state]) => state !== "idle" && state !== "archived").slice(0, RAIL).map(([id]) => rows.get(id)?.value).filter(Boolean));
export const rowsNow = () => order.peek().map(([id]) => rows.get(id).peek());
export const rowOf = (tree) => rows.get(tree)?.value;
// How many are at work, in words.
export const atWork = computed(() => {
  const trees = counts.value.working ?? order.value.filter(([, state]) => state === "working").length;
  if (!loaded.value) return "";
  return trees ? `${quantity(trees, "tree")} ${trees === 1 ? "is" : "are"} at work, ${quantity(agentsAtWork.value, "agent")} in all. You will be called when one asks.` : "No tree is at work.";
});
// What a page may do with them, for the palette.
export const acts = () => (may("submit") ? [["New tree…", () => { overlay.value = "tree"; }]] : []);
