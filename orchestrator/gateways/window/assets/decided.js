// Decided by people: the requests of a tree, with who answered them, and how.
import { useEffect, useState } from "preact/hooks";
import { api } from "./store.js";
import { plain } from "./text.js";
import { agentName, clock, html, Words } from "./parts.js";

const MOST = 100;

export function Decided({ id, seq }) {
  const [acts, setActs] = useState(null), [why, setWhy] = useState("");
  const read = () => api("approval/history", { treeId: id, limit: MOST }).then(({ data }) => { setWhy(""); setActs(data); }, (error) => setWhy(error.message));
  useEffect(() => { read(); }, [id, seq]);
  if (why) return html`<p class="error">What people decided cannot be read: ${why}. <button class="quiet" onClick=${read}>Try again</button></p>`;
  if (!acts) return null;
  return html`<h2 class="small">Decided by people</h2>${acts.length ? html`<table class="facts-table"><thead><tr><th scope="col">Time</th><th scope="col">Who</th><th scope="col">Decision</th><th scope="col">Agent</th><th scope="col">About</th></tr></thead><tbody>${acts.map((one) => html`<tr key=${`${one.requestId} ${one.atMs}`} data-testid="proof-act"><td class="num"><time datetime=${new Date(one.atMs).toISOString()} title=${new Date(one.atMs).toLocaleString()}>${clock(one.atMs)}</time></td><td>${one.who ? html`<${Words} text=${one.who} most=${60} />` : "–"}</td><td>${plain(one.text ?? one.decision ?? "", 120)}</td><td><${Words} text=${agentName(one)} most=${60} /></td><td><${Words} text=${one.subject} most=${120} /></td></tr>`)}</tbody></table>` : html`<p class="faint">Nobody has decided anything in the newest entries of this tree.</p>`}`;
}
