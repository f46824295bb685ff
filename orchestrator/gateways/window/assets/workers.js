// Workers: the pools with what is due, held and parked, and the machines that serve them.
import { useEffect } from "preact/hooks";
import { signal } from "@preact/signals";
import { api, hear, onSignedOut, session } from "./store.js";
import { plain } from "./text.js";
import { Age, html, quantity, short, span, Words } from "./parts.js";

const AGAIN_MS = 5_000;
// What sessions wait for that no worker holds, in words.
const PARKED = {
  awaiting_approval: "ask for an approval", awaiting_answer: "ask a question", waiting: "wait for agents", retrying: "wait for a model",
  paused: "paused by a budget", quarantined: "quarantined", unsaved: "wait for a machine",
};
const WORST = ["silent", "draining", "serving"];

const workers = signal([]), stats = signal(null), loaded = signal(false), failed = signal("");
onSignedOut(() => { workers.value = []; stats.value = null; loaded.value = false; });

function onWorkers(event) {
  if (event.type !== "all" && event.type !== "changed") return;
  const known = new Map(event.type === "all" ? [] : workers.peek().map((one) => [one.worker, one]));
  for (const one of event.gone ?? []) known.delete(one.worker);
  for (const one of event.data ?? event.changed) known.set(one.worker, one);
  workers.value = [...known.values()].sort((a, b) => WORST.indexOf(a.status) - WORST.indexOf(b.status) || (a.worker < b.worker ? -1 : 1));
  loaded.value = true;
}
async function look() {
  try { stats.value = await api("fleet/stats"); failed.value = ""; } catch (error) { if (error.status !== 401) failed.value = error.message; }
}

export function Workers() {
  useEffect(() => {
    const leave = hear("workers", onWorkers), timer = setInterval(look, AGAIN_MS);
    look();
    return () => { leave(); clearInterval(timer); };
  }, []);
  const seen = workers.value, told = stats.value, remarks = seen.filter((one) => one.remarks.length);
  return html`<main class="fleet workers" data-testid="workers"><header><h1>Workers</h1>
      <span class="faint">${loaded.value ? [quantity(seen.filter((one) => one.status === "serving").length, "worker"), told?.silent ? `${told.silent} silent` : "", told?.draining ? `${told.draining} draining` : ""].filter(Boolean).join(" · ") : ""}</span></header>
    ${failed.value ? html`<p class="error" role="alert">${failed.value} <button class="quiet" onClick=${look}>Try again</button></p>` : null}
    <div class="scroll">
      ${remarks.length ? html`<section aria-label="To do"><h2>To do</h2><ul class="remarks">${remarks.flatMap((one) => one.remarks.map((words) => html`<li key=${one.worker + words} class=${one.status} data-testid="remark-worker"><b><${Words} text=${one.worker} most=${80} /></b> ${plain(words)}</li>`))}</ul></section>` : null}
      <section aria-label="Pools"><h2>Pools</h2>${told?.pools?.length ? html`<div class="wide" role="region" tabindex="0" aria-label="Pools, each with its figures"><table class="figures-table"><thead><tr><th scope="col">Pool</th><th scope="col">Workers</th><th scope="col">Held</th><th scope="col">Due</th><th scope="col">Oldest</th><th scope="col">Parked</th></tr></thead><tbody>${told.pools.map((one) => html`<${Pool} key=${one.pool} one=${one} />`)}</tbody></table></div>` : told ? html`<p class="nothing">No pool has a session or a worker yet.</p>` : null}</section>
      <section aria-label="Workers"><h2>Workers</h2>${seen.length ? html`<div class="wide" role="region" tabindex="0" aria-label="Workers, each with its figures"><table class="figures-table"><thead><tr><th scope="col">Worker</th><th scope="col">State</th><th scope="col">Machine</th><th scope="col">Pools</th><th scope="col">Sessions</th><th scope="col">Turns a minute</th><th scope="col">Version</th><th scope="col">Heard</th></tr></thead><tbody>${seen.map((one) => html`<${Worker} key=${one.worker} one=${one} />`)}</tbody></table></div>`
        : loaded.value ? html`<div class="nothing" data-testid="workers-empty"><p>${session.value.namespace ? "Machines are shown to the machine’s user alone." : "No worker is there: sessions wait."}</p>${session.value.namespace ? null : html`<p>Start one where the folders are: <code>dendro worker</code></p>`}</div>` : null}</section>
    </div></main>`;
}
function Pool({ one }) {
  const parked = Object.entries(one.agents ?? {}).filter(([status, n]) => n && PARKED[status]);
  const unserved = !one.workers && (one.due || one.held);
  return html`<tr data-testid="pool" data-pool=${one.pool}><th scope="row"><${Words} text=${one.pool} most=${60} /></th><td class=${unserved ? "late" : ""}>${one.workers ? `${one.workers} · ${quantity(one.slots, "slot")}` : "none"}</td><td>${short(one.held)}</td><td class=${one.due ? "late" : ""}>${short(one.due)}</td><td>${one.due ? span(one.ageMs / 1000) : "–"}</td><td>${parked.map(([status, n]) => `${n} ${PARKED[status]}`).join(", ") || "–"}</td></tr>`;
}
function Worker({ one }) {
  const turns = Object.values(one.paces ?? {}).reduce((sum, pace) => sum + pace.turnsPerS * 60, 0);
  return html`<tr data-testid="worker" data-worker=${one.worker} data-status=${one.status} class=${one.status}><th scope="row"><${Words} text=${one.worker} most=${60} /></th><td><i class="glyph ${{ serving: "working", draining: "paused", silent: "lost" }[one.status]}" aria-hidden="true">${one.status === "silent" ? "×" : ""}</i> ${one.status}</td><td><${Words} text=${one.machine ?? "–"} most=${60} /></td><td><${Words} text=${one.pools.join(", ")} most=${80} /></td><td>${one.held} of ${one.room}</td><td>${turns ? turns.toFixed(turns < 10 ? 1 : 0) : "–"}</td><td>${plain(one.version ?? "–", 20)}</td><td><${Age} since=${one.heardAtMs} suffix=" ago" /></td></tr>`;
}
