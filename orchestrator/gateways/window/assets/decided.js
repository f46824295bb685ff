// What people did in a tree: decisions about its requests, words for its agents, and whatever else its logs tell of them.
import { useEffect, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { api, onSignedOut } from "./store.js";
import { plain, visible } from "./text.js";
import { agentName, clock, html, Link, Words } from "./parts.js";
import { actsOf, here } from "./past.js";

const MOST = 100, MOST_TREES = 8;

// What decided requests were about: by tree, and there by thread and call. Read when somebody wants to know.
const known = new Map(); // tree → signal of a map, or of null before it is read
onSignedOut(() => known.clear());
const keyOf = (one) => `${one.threadId} ${one.callId}`;
function of(tree) {
  if (!known.has(tree)) { if (known.size >= MOST_TREES) known.delete(known.keys().next().value); known.set(tree, { found: signal(null), error: signal(""), asked: "" }); }
  return known.get(tree);
}
// Reads what is not known; `wanted` names it, so that nothing is asked for twice in vain.
function read(tree, wanted) {
  const one = of(tree);
  if (one.asked === wanted) return;
  one.asked = wanted;
  api("approval/history", { treeId: tree, limit: MOST }).then(({ data }) => { one.error.value = ""; one.found.value = new Map([...(one.found.peek() ?? []), ...data.map((each) => [keyOf(each), each])]); }, (error) => { one.asked = ""; one.error.value = error.message; });
}
export function useDecided(tree, thread, call) {
  const key = keyOf({ threadId: thread, callId: call }), found = of(tree).found.value?.get(key);
  useEffect(() => { if (!found) read(tree, key); }, [tree, key, found]);
  return found;
}

export function Decided({ tree }) {
  tree.order.value;
  const acts = actsOf(tree.id), { found, error } = of(tree.id), [, again] = useState(0), threadOf = (number) => tree.agents.get(number)?.value.threadId ?? tree.id;
  const decided = (mark) => found.value?.get(keyOf({ threadId: threadOf(mark.agentId ?? 0), callId: mark.callId }));
  const missing = acts.find((mark) => mark.callId && !decided(mark));
  useEffect(() => { if (missing) read(tree.id, `${missing.atMs} ${missing.callId}`); });
  const name = (number) => agentName(tree.agents.get(number)?.value ?? { agentId: number });
  return html`<h2 class="small">What people did</h2>${error.value ? html`<p class="error">What was decided cannot be read: ${error.value}. <button class="quiet" onClick=${() => again((n) => n + 1)}>Try again</button></p>` : null}
    ${acts.length ? html`<table class="facts-table"><thead><tr><th scope="col">Time</th><th scope="col">Entry</th><th scope="col">Who</th><th scope="col">What</th><th scope="col">Agent</th><th scope="col">About</th></tr></thead><tbody>${acts.map((mark, n) => { const number = mark.agentId ?? 0, about = decided(mark)?.subject ?? ""; return html`<tr key=${`${mark.atMs} ${mark.kind} ${mark.callId ?? n}`} data-testid="proof-act" data-kind=${mark.kind}><td class="num"><time datetime=${new Date(mark.atMs).toISOString()} title=${new Date(mark.atMs).toLocaleString()}>${clock(mark.atMs)}</time></td><td class="num faint">${mark.seq ? html`<${Link} to=${here(`/tree/${tree.id}/${number}`, { at: mark.seq })} class="under">${mark.seq.toLocaleString("en")}<//>` : ""}</td><td><${Words} text=${mark.who} most=${60} /></td><td>${mark.outcome ? plain(mark.outcome, 120) : visible(String(mark.text).slice(0, 200), { breaks: false })}</td><td><${Words} text=${name(number)} most=${60} /></td><td><${Words} text=${about} most=${120} /></td></tr>`; })}</tbody></table>` : html`<p class="faint">Nobody has done anything here that the newest entries of these logs tell of.</p>`}`;
}
