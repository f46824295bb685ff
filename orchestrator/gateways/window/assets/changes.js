// Changes: the files that an agent changed in its portable folder, and the remarks on their lines.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { api, may, notice, onSignedOut } from "./store.js";
import { KINDS, Lines } from "./lines.js";
import { plain, visible } from "./text.js";
import { agentName, clock, html, Key, place, quantity, Stat, Words } from "./parts.js";
import { bind } from "./keys.js";
import { picture } from "./past.js";

// Remarks that were not sent yet, by thread: they outlive a look at another page.
const drafts = new Map(), viewed = signal(new Set());
onSignedOut(() => { drafts.clear(); viewed.value = new Set(); });
const remarksOf = (thread) => { if (!drafts.has(thread)) drafts.set(thread, signal([])); return drafts.get(thread); };

// The words that an agent gets: each remark with its file, its line, and the hunk that it is about.
export function remarkText(remarks) {
  return ["Remarks on your changes:", ...remarks.map(({ path, line, hunk, text }) => {
    const quoted = hunk.map(([sign, words]) => `${sign}${words}`).join("\n"), fence = "`".repeat(Math.max(3, ...[...quoted.matchAll(/`+/g)].map((run) => run[0].length + 1)));
    return `${path}, line ${line}:\n${fence}diff\n${quoted}\n${fence}\n${text}`;
  })].join("\n\n");
}

// `at` is the entry of the tree's log at whose time they are shown; null for now.
export function Changes({ tree, agent, at, seq }) {
  const thread = agent.threadId, { held } = place.value, [found, setFound] = useState(null), [why, setWhy] = useState(""), [to, setTo] = useState(0), [path, setPath] = useState("");
  const remarks = remarksOf(thread), chosen = found?.files?.find((file) => file.path === path) ?? found?.files?.[0];
  // Beside a place that is held they are those since then; a folder that was not recorded yet began empty.
  const since = async () => (held === null ? null : (await picture(tree, held)).agents.find((one) => one.threadId === thread)?.seq || null);
  const asked = useRef(0); // an answer to an earlier question is dropped
  const read = async () => {
    const number = ++asked.current, until = at !== null ? { at } : to ? { to } : {}, ask = (more) => api("workspace/changes", { threadId: thread, ...until, ...more });
    try {
      const from = await since();
      const told = await (from ? ask({ from }).catch((error) => { if (error.status === 400) return ask({}); throw error; }) : ask({}));
      if (number !== asked.current) return;
      setWhy("");
      setFound(told);
    } catch (error) { if (number === asked.current) setWhy(error.message); }
  };
  useEffect(() => { setFound(null); }, [thread]);
  useEffect(() => { read(); }, [thread, to, at, held, seq]);
  const view = (one) => { const key = `${thread} ${one?.path}`, now = new Set(viewed.peek()); if (!now.delete(key)) now.add(key); viewed.value = now; };
  const step = (by) => { const files = found?.files ?? [], at = files.indexOf(chosen); setPath(files[Math.min(files.length - 1, Math.max(0, at + by))]?.path ?? ""); };
  useLayoutEffect(() => bind({ "]": () => step(1), "[": () => step(-1), v: () => view(chosen) }), [found, path, thread]);
  const send = async () => {
    const all = remarks.peek();
    try {
      await api("turn/start", { threadId: thread, input: [{ type: "text", text: remarkText(all) }], clientUserMessageId: all[0].id });
      remarks.value = [];
      notice(`Sent to ${agentName(agent)}.`, { forMs: 4000 });
    } catch (error) { notice(error.message, { bad: true }); }
  };
  if (why && !found) return html`<section class="wholly" data-testid="changes"><p class="error">The changes cannot be read: ${why}. <button class="quiet" onClick=${read}>Try again</button></p></section>`;
  if (!found) return html`<section class="wholly" data-testid="changes" />`;
  if (!found.portable) return html`<section class="wholly" data-testid="changes"><p class="nothing">The folder of ${agentName(agent)} is not portable, so no log has its states: what it wrote stands in its conversation.</p></section>`;
  return html`<section class="changes" aria-label="Changes of ${agentName(agent)}" data-testid="changes">
    <aside><header><b><${Words} text=${agentName(agent)} most=${60} /></b><${Stat} added=${found.added} removed=${found.removed} /></header>
      ${at === null ? html`<label class="faint">As it was <select value=${to} onChange=${(event) => setTo(Number(event.target.value))} data-testid="moment"><option value="0">now</option>${found.moments.slice(1, -1).reverse().map((one) => html`<option key=${one.seq} value=${one.seq}>${clock(one.atMs)}, entry ${one.seq}, ${quantity(one.files, "file")}</option>`)}</select></label>` : null}
      ${found.unsaved ? html`<p class="faint">The newest changes are on ${plain(found.unsaved, 60)} alone.</p>` : null}
      ${found.files.length ? html`<ul role="listbox" aria-label="Files" tabindex="0">${found.files.map((file) => html`<li key=${file.path} role="option" aria-selected=${file === chosen} class=${file === chosen ? "on" : ""} data-testid="file" data-path=${file.path} onClick=${() => setPath(file.path)}><span class="clip">${viewed.value.has(`${thread} ${file.path}`) ? html`<i class="seen" role="img" aria-label="viewed">✓</i>` : null}${visible(file.path, { breaks: false })}</span><small>${KINDS[file.kind] ?? ""}</small>${file.binary || file.tooLarge ? html`<small>${file.tooLarge ? "large" : "binary"}</small>` : html`<${Stat} added=${file.added} removed=${file.removed} />`}</li>`)}</ul>` : html`<p class="nothing">Nothing is changed ${to || at !== null ? "up to there" : "yet"}.</p>`}
      ${found.more ? html`<p class="faint">and ${quantity(found.more, "file")} more</p>` : null}<p class="faint keysline"><${Key} k="]" /> <${Key} k="[" /> file · <${Key} k="v" /> viewed</p></aside>
    <div class="lines">${chosen ? html`<${Lines} key=${`${chosen.path} ${found.from} ${found.to}`} agent=${agent} file=${chosen} from=${found.from} to=${found.to} remarks=${remarks} seen=${viewed.value.has(`${thread} ${chosen.path}`)} onSeen=${() => view(chosen)} />` : null}
    ${remarks.value.length && may("submit") ? html`<footer class="remarks" data-testid="remarks"><span>${quantity(remarks.value.length, "remark")} for ${agentName(agent)}</span><span class="grow" /><button class="quiet" onClick=${() => { remarks.value = []; }}>Discard</button><button class="primary" data-testid="remarks-send" onClick=${send}>Send</button></footer>` : null}</div></section>`;
}
