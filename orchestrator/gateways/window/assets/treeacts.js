// What is done with a whole tree: its turns interrupted, its logs saved as files, and whether it calls.
import { useState } from "preact/hooks";
import { api, download, may, notice } from "./store.js";
import { agentName, go, html, Key, place, quantity } from "./parts.js";
import { fileName, plain, visible } from "./text.js";
import { TreeRule } from "./calls.js";
import { treeOf } from "./tree.js";
import { overlay } from "./keys.js";

const AT_WORK = new Set(["working", "needs", "waiting", "paused", "due", "lost"]);
const here = () => treeOf(place.peek().tree);
const atWork = (tree) => [...(tree?.agents.values() ?? [])].map((each) => each.value).filter((one) => AT_WORK.has(one.state));

// The turn that runs in a thread; nothing where none does.
async function turnOf(threadId) {
  const { data } = await api("thread/turns/list", { threadId, limit: 1, sortDirection: "desc" });
  return data[0]?.status === "inProgress" ? data[0].id : null;
}
// Stops the turns of an agent and of all below it; false where it has none.
async function stop(threadId) {
  const turnId = await turnOf(threadId);
  if (!turnId) return false;
  await api("turn/interrupt", { threadId, turnId, tree: true });
  return true;
}

export function InterruptAll({ close }) {
  const tree = here(), [why, setWhy] = useState(""), [busy, setBusy] = useState(false);
  if (!tree) return null;
  const busyOnes = atWork(tree), numbers = new Set(busyOnes.map((one) => one.agentId));
  // Each stops those below it: only agents whose parent is at rest are asked themselves.
  const tops = busyOnes.filter((one) => one.agentId === 0 || !numbers.has(one.parentId));
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      let stopped = 0;
      for (const one of tops) if (await stop(one.threadId)) stopped += 1;
      close();
      notice(stopped ? "The turns of this tree were interrupted." : "No turn ran in this tree any more.", { forMs: 5000 });
    } catch (error) { setWhy(error.message); setBusy(false); }
  };
  return html`<form onSubmit=${submit}><h3>Interrupt all</h3><p>${busyOnes.length ? html`The turns of ${quantity(busyOnes.length, "agent")} stop: ${visible(plain(busyOnes.slice(0, 12).map(agentName).join(", "), 300), { breaks: false })}${busyOnes.length > 12 ? "…" : ""}. What they ask you is withdrawn.` : "No agent is at work."} Nobody ends: each goes on with the next words for it.</p>
    ${why ? html`<p class="error" role="alert">${why}</p>` : null}<footer><button class="danger" data-testid="confirm" disabled=${busy || !busyOnes.length}>Interrupt ${quantity(busyOnes.length, "agent")}</button><span class="grow" /><button type="button" onClick=${close}>Not now <${Key} k="Esc" /></button></footer></form>`;
}

// ── export ───────────────────────────────────────────────────────────────────────────────────────

// Saves a log as `dendro export` writes it; whole ones are for who administers.
export async function save(threadId, full = false) {
  const done = notice("The log is being saved…", { forMs: 0, key: "export" });
  try { await download("export", { threadId, ...(full ? { full } : {}) }); notice("The log is saved.", { forMs: 3000, key: "export" }); } catch (error) { done(); notice(`nothing was saved: ${error.message}`, { bad: true }); }
}
export const Export = ({ thread, name = "" }) => (may("approve") ? html`<button class="quiet" data-testid="export" data-thread=${thread} aria-label=${`Export the log${name ? ` of ${name}` : ""}`} onClick=${() => save(thread)}>Export</button>` : null);

export function TreeMenu({ close }) {
  const { tree: id } = place.peek();
  return html`<div data-testid="tree-menu"><h3>This tree</h3><${TreeRule} id=${id} />
    ${may("approve") ? html`<div class="row"><button class="mini" data-testid="export-root" onClick=${() => { close(); save(id); }}>Export the log</button>${may("admin") ? html`<button class="mini" data-testid="export-full" onClick=${() => { close(); save(id, true); }}>Export every entry</button>` : null}</div><p class="faint">As <code>dendro export</code> writes it: the root’s log with the lives of its agents${may("admin") ? "; every entry for dendro import and replay" : ""}. The logs of its agents are under Proof.</p>` : null}
    <footer>${may("submit") ? html`<button class="danger" onClick=${() => { overlay.value = "stop"; }}>Interrupt all…</button>` : null}<span class="grow" /><button onClick=${close}>Close</button></footer></div>`;
}

// ── what the palette offers on the page of a tree ────────────────────────────────────────────────

const MOST_AGENTS = 200;
export function acts() {
  const tree = here();
  if (!tree || place.peek().at !== null) return [];
  const open = (name) => () => { overlay.value = name; };
  return [
    ...(may("submit") ? [["Interrupt all…", open("stop")], ["Cancel…", open("cancel")]] : []),
    ...(may("approve") ? [["Add to the budget…", open("budget")], ["Export the log", () => save(tree.id)]] : []),
    ["This tree…", open("about")],
  ];
}
export const agents = () => [...(here()?.agents.values() ?? [])].slice(0, MOST_AGENTS).map((each) => each.peek()).map((one) => [agentName(one), one.state, `agent ${one.agentId}`, () => go(`/tree/${place.peek().tree}/${one.agentId}`), `agent ${one.agentId}`]);

// The files that agents of the shown tree have changed, each opened where its lines are. Told once while the palette is open.
export const hasFiles = () => [...(here()?.agents.values() ?? [])].some((each) => each.peek().change?.files);
export async function files() {
  const { tree, at } = place.peek();
  const { files: found } = await api("workspace/changes", { threadId: tree, below: true, ...(at === null ? {} : { at }) });
  return found.map(({ path, agents: by, of }) => {
    const alone = of === 1 ? by[0].agentId : null, known = here()?.agents.get(alone)?.peek(), query = new URLSearchParams({ ...(at === null ? {} : { at }), ...(alone === null ? { by: "all" } : {}), file: path });
    return [fileName(path), "", alone === null ? `file · ${quantity(of, "agent")}` : `file · ${known ? agentName(known) : `agent ${alone}`}`, () => go(`/tree/${tree}/${alone ?? 0}/changes?${query}`), `file ${path}`];
  });
}
