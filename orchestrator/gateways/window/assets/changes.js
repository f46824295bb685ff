// Changes: the files that an agent changed in its portable folder, or all agents of a tree, and the remarks on their lines.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { api, may, notice, onSignedOut } from "./store.js";
import { KINDS, Lines } from "./lines.js";
import { fileName, plain, visible } from "./text.js";
import { agentName, clock, go, html, Key, phone, place, quantity, quoted, Stat, Words } from "./parts.js";
import { bind } from "./keys.js";
import { File as Patch } from "./items.js";
import { Rows } from "./rows.js";
import { here, picture } from "./past.js";

// Remarks that were not sent yet, by thread: they outlive a look at another page.
const drafts = new Map(), viewed = signal(new Set());
onSignedOut(() => { drafts.clear(); begun.clear(); viewed.value = new Set(); });
// The remark that is being written, by thread and file: where it stands, and its words.
const begun = new Map();
const remarksOf = (thread) => { if (!drafts.has(thread)) drafts.set(thread, signal([])); return drafts.get(thread); };

// The words that an agent gets: each remark with its file, its line, and the hunk that it is about.
export function remarkText(remarks) {
  return ["Remarks on your changes:", ...remarks.map(({ path, line, hunk, text }) => {
    const quoted = hunk.map(([sign, words]) => `${sign}${words}`).join("\n"), fence = "`".repeat(Math.max(3, ...[...quoted.matchAll(/`+/g)].map((run) => run[0].length + 1)));
    return `${path}, line ${line}:\n${fence}diff\n${quoted}\n${fence}\n${text}`;
  })].join("\n\n");
}

const SHOWN = { all: () => true, several: (file) => file.of > 1, odds: (file) => Boolean(file.conflict) };
const MERGED_AGAIN_MS = 5_000; // joining the folders of a tree costs more than a look at one

// `at` is the entry of the tree's log at whose time they are shown; null for now.
export function Changes({ id, tree, agent, at, seq }) {
  const thread = agent.threadId, { held } = place.value, many = tree.order.value.length > 1, all = many && place.value.all && held === null;
  const [told, setTold] = useState(null), found = told?.all === all ? told : null, [why, setWhy] = useState(""), [to, setTo] = useState(0), [shown, setShown] = useState("all"), [shares, setShares] = useState({});
  const chosen = useMemo(() => signal(null), []), box = useRef();
  // Beside a place that is held they are those since then; a folder that was not recorded yet began empty.
  const since = async () => (held === null ? null : (await picture(id, held)).agents.find((one) => one.threadId === thread)?.seq || null);
  const asked = useRef({ number: 0, atMs: 0 }); // an answer to an earlier question is dropped
  const read = async () => {
    const number = ++asked.current.number, until = at !== null ? { at } : to && !all ? { to } : {}, ask = (more) => api("workspace/changes", { threadId: thread, ...until, ...more });
    asked.current.atMs = Date.now();
    try {
      const from = all ? null : await since();
      const answer = await (from ? ask({ from }).catch((error) => { if (error.status === 400) return ask({}); throw error; }) : ask(all ? { below: true } : {}));
      if (number !== asked.current.number) return;
      setWhy("");
      setTold({ ...answer, all });
    } catch (error) { if (number === asked.current.number) setWhy(error.message); }
  };
  // What any agent does may change a folder.
  const moved = all ? [...tree.agents.values()].reduce((sum, one) => sum + (one.value.sinceAtMs ?? 0), 0) : 0;
  useEffect(() => { setTold(null); setWhy(""); }, [thread, all]);
  useEffect(() => {
    const wait = all ? asked.current.atMs + MERGED_AGAIN_MS - Date.now() : 0;
    if (!found || wait <= 0) { read(); return undefined; }
    const timer = setTimeout(read, wait);
    return () => clearTimeout(timer);
  }, [thread, all, to, at, held, seq, moved]);

  const files = useMemo(() => (found?.files ?? []).filter(SHOWN[all ? shown : "all"]), [found, shown]), byPath = useMemo(() => new Map(files.map((file) => [file.path, file])), [files]), paths = useMemo(() => files.map((file) => file.path), [files]);
  useLayoutEffect(() => { if (!byPath.has(chosen.peek())) chosen.value = paths[0] ?? null; }, [byPath]);
  // `?file=PATH`: the file that a link leads to, until another one is chosen.
  const linked = place.value.query.get("file"), led = useRef(null);
  useLayoutEffect(() => { if (linked !== null && led.current !== linked && byPath.has(linked)) { led.current = linked; chosen.value = linked; } }, [linked, byPath]);
  const name = (number) => agentName(tree.agents.get(number)?.peek() ?? { agentId: number }), key = (path) => `${all ? "all " : ""}${thread} ${path}`;
  const view = (path) => { const now = new Set(viewed.peek()); if (!now.delete(key(path))) now.add(key(path)); viewed.value = now; };
  const step = (by) => { const next = paths[Math.min(paths.length - 1, Math.max(0, paths.indexOf(chosen.peek()) + by))]; if (next !== undefined) chosen.value = next; };
  useLayoutEffect(() => bind({ "]": () => step(1), "[": () => step(-1), v: () => { if (chosen.peek() !== null) view(chosen.peek()); } }), [byPath, thread, all]);
  const more = useMemo(() => ({ files: byPath, chosen, mark: key, name }), [byPath, thread, tree, all]);
  const title = all && agent.agentId ? `${agentName(agent)} and those below` : all ? "All agents" : agentName(agent);
  const which = many && held === null ? html`<div class="switch" role="group" aria-label="Whose changes">${[[true, "Merged", "merged"], [false, "By agent", "by-agent"]].map(([on, words, test]) => html`<button class="chip ${all === on ? "on" : ""}" aria-pressed=${all === on} data-testid=${test} onClick=${() => go(here(place.peek().path, { all: on }), { replace: true })}>${words}</button>`)}</div>` : many ? html`<p class="faint" data-testid="by-agent-alone">Between two places the changes of each agent stand alone.</p>` : null;
  const wholly = (inside) => html`<section class="wholly" aria-label="Changes" data-testid="changes">${which}${inside}</section>`;
  if (why && !found) return wholly(html`<p class="error">The changes cannot be read: ${why}. <button class="quiet" onClick=${read}>Try again</button></p>`);
  if (!found) return wholly(html`<p class="faint late-shown">${all ? "Joins the folders of all agents…" : "Compares the folder…"}</p>`);
  if (!found.portable) return wholly(all ? html`<p class="nothing">No folder of these agents is portable, so no log has their states. <i>By agent</i> shows the patches of each.</p>` : html`<${Patches} key=${at} agent=${agent} at=${at} seq=${seq} />`);
  // Whose lines of a file are shown: of several agents' the one that was chosen.
  const file = byPath.get(chosen.value), share = all && file ? file.agents.find((one) => one.agentId === shares[file.path]) ?? file.agents[0] : null, its = share && found.agents.find((one) => one.agentId === share.agentId);
  const lines = !file ? null : all ? its && { thread: its.threadId, from: its.from, to: its.to, kind: share.kind } : { thread, from: found.from, to: found.to, kind: file.kind };
  const several = all ? found.files.filter(SHOWN.several).length : 0, alone = all ? found.agents.filter((one) => one.unsaved).length : 0;
  const remarks = lines && remarksOf(lines.thread); // before those of all are looked through
  const writers = (all ? found.agents : [agent]).map((one) => ({ thread: one.threadId, name: name(one.agentId), to: quoted(tree.agents.get(one.agentId)?.peek() ?? one), remarks: drafts.get(one.threadId)?.value ?? [] })).filter((one) => one.remarks.length);
  return html`<section class="changes" aria-label="Changes of ${plain(title)}" data-testid="changes">
    <aside>${which}<header><b><${Words} text=${title} most=${60} /></b><${Stat} added=${found.added} removed=${found.removed} /></header>
      ${at === null && !all ? html`<label class="faint">As it was <select value=${to} onChange=${(event) => setTo(Number(event.target.value))} data-testid="moment"><option value="0">now</option>${found.moments.slice(1, -1).reverse().map((one) => html`<option key=${one.seq} value=${one.seq}>${clock(one.atMs)}, entry ${one.seq}, ${quantity(one.files, "file")}</option>`)}</select></label>` : null}
      ${why ? html`<p class="error">Not read anew: ${why}. <button class="quiet" onClick=${read}>Try again</button></p>` : null}
      ${!all && found.unsaved ? html`<p class="faint">The newest changes are on ${plain(found.unsaved, 60)} alone.</p>` : alone ? html`<p class="faint">The newest changes of ${quantity(alone, "agent")} are on their machines alone.</p>` : null}
      ${several || found.conflicts ? html`<div class="switch" role="group" aria-label="Which files">${[["all", `All ${found.files.length.toLocaleString("en")}`], ["several", `Of several ${several.toLocaleString("en")}`], ["odds", `Conflicts ${found.conflicts.toLocaleString("en")}`]].map(([one, words]) => html`<button key=${one} class="chip ${shown === one ? "on" : ""}" aria-pressed=${shown === one} data-testid="files-${one}" onClick=${() => setShown(one)}>${words}</button>`)}</div>` : null}
      ${files.length ? html`<div class="files" role="listbox" aria-label="Files" tabindex="0" ref=${box}><${Rows} key=${`${thread} ${all}`} keys=${paths} Row=${File} more=${more} box=${box} usual=${phone.value ? 44 : 29} chosen=${chosen} /></div>` : html`<p class="nothing">${shown !== "all" && all ? "There is no such file." : `Nothing is changed ${to || at !== null ? "up to there" : "yet"}.`}</p>`}
      ${found.more ? html`<p class="faint">and ${quantity(found.more, "file")} more</p>` : null}${found.moreAgents ? html`<p class="faint">and the changes of ${quantity(found.moreAgents, "agent")} more</p>` : null}<p class="faint keysline"><${Key} k="]" /> <${Key} k="[" /> file · <${Key} k="v" /> viewed</p></aside>
    <div class="lines">${file?.conflict ? html`<p class="odds" data-testid="conflict"><b>Conflict.</b> <${Words} text=${name(file.conflict.agents[0])} most=${60} /> and <${Words} text=${name(file.conflict.agents[1])} most=${60} /> are at odds: ${plain(file.conflict.reason)}.</p>` : null}
      ${all && file && file.agents.length > 1 ? html`<div class="switch whose" role="group" aria-label="Whose lines">${file.agents.map((one) => html`<button key=${one.agentId} class="chip ${one === share ? "on" : ""}" aria-pressed=${one === share} data-testid="share" data-agent-id=${one.agentId} onClick=${() => setShares({ ...shares, [file.path]: one.agentId })}><${Words} text=${name(one.agentId)} most=${60} /> <${Stat} added=${one.added} removed=${one.removed} /></button>`)}${file.of > file.agents.length ? html`<span class="faint">and ${file.of - file.agents.length} more</span>` : null}</div>` : all && file ? html`<p class="whose faint">by <${Words} text=${name(share.agentId)} most=${60} />, entries ${its.from.toLocaleString("en")} to ${its.to.toLocaleString("en")}</p>` : null}
      ${lines ? html`<${Lines} key=${`${lines.thread} ${file.path} ${lines.from} ${lines.to}`} thread=${lines.thread} file=${{ ...file, kind: lines.kind }} from=${lines.from} to=${lines.to} remarks=${remarks} begun=${begun} seen=${viewed.value.has(key(file.path))} onSeen=${() => view(file.path)} />` : null}
    ${may("submit") ? writers.map((one) => html`<${Send} key=${one.thread} ...${one} />`) : null}</div></section>`;
}

// What an agent's patches said, where its folder has no log; those of the newest items.
const PATCHES_PAGE = 200, MOST_PAGES = 10;
function Patches({ agent, at, seq }) {
  const [items, setItems] = useState(null), [why, setWhy] = useState(""), [rest, setRest] = useState(false), asked = useRef(0);
  const read = async () => {
    const number = ++asked.current, found = [];
    try {
      let cursor = null, pages = 0;
      do {
        const { data, nextCursor } = await api("thread/items/list", { threadId: agent.threadId, limit: PATCHES_PAGE, sortDirection: "desc", ...(at === null ? {} : { at }), ...(cursor ? { cursor } : {}) });
        found.push(...data.map((entry) => entry.item ?? entry).filter((item) => item.type === "fileChange" && item.status === "completed"));
        cursor = nextCursor;
      } while (cursor && ++pages < MOST_PAGES && number === asked.current);
      if (number !== asked.current) return;
      setWhy(""); setRest(Boolean(cursor)); setItems(found.reverse());
    } catch (error) { if (number === asked.current) setWhy(error.message); }
  };
  useEffect(() => { read(); }, [agent.threadId, at, seq]);
  return html`<p class="nothing">The folder of ${agentName(agent)} is not portable, so no log has its states. ${items?.length ? "These are its patches; what its commands wrote is not among them." : ""}</p>
    ${why ? html`<p class="error">Its patches cannot be read: ${why}. <button class="quiet" onClick=${read}>Try again</button></p>` : null}
    ${rest ? html`<p class="faint">Those before its last ${(PATCHES_PAGE * MOST_PAGES).toLocaleString("en")} items stand in its conversation.</p>` : null}
    ${items?.length ? html`<div class="patches" data-testid="patches">${items.flatMap((item) => (item.changes ?? []).map((change, n) => html`<${Patch} key=${`${item.id} ${n}`} change=${change} fold=${80} />`))}</div>` : items && !why ? html`<p class="nothing">It has made no patch ${at === null ? "yet" : "up to there"}.</p>` : null}`;
}

// A file of the list: in one of all agents with whose it is.
function File({ id, at, files, chosen, mark, name }) {
  const file = files.get(id), on = chosen.value === id;
  if (!file) return null;
  return html`<div role="option" aria-selected=${on} class="file ${on ? "on" : ""}" data-testid="file" data-path=${id} onClick=${() => { chosen.value = id; }} ...${at}><span class="clip">${viewed.value.has(mark(id)) ? html`<i class="seen" role="img" aria-label="viewed">✓</i>` : null}${visible(fileName(id), { breaks: false })}</span>${file.conflict ? html`<small class="odd-ones">conflict</small>` : null}${file.agents ? html`<small class="by clip">${file.of > 1 ? quantity(file.of, "agent") : html`<${Words} text=${name(file.agents[0].agentId)} most=${60} />`}</small>` : null}<small>${KINDS[file.kind] ?? ""}</small>${file.binary || file.tooLarge ? html`<small>${file.tooLarge ? "large" : "binary"}</small>` : html`<${Stat} added=${file.added} removed=${file.removed} />`}</div>`;
}

// The remarks for one agent: one message.
function Send({ thread, name, to, remarks }) {
  const kept = remarksOf(thread);
  const send = async () => {
    try {
      await api("turn/start", { threadId: thread, input: [{ type: "text", text: remarkText(remarks) }], clientUserMessageId: remarks[0].id });
      kept.value = kept.peek().filter((one) => !remarks.includes(one));
      notice(`Sent to ${to}.`, { forMs: 4000 });
    } catch (error) { notice(error.message, { bad: true }); }
  };
  return html`<footer class="remarks" data-testid="remarks"><span>${quantity(remarks.length, "remark")} for <${Words} text=${name} most=${60} /></span><span class="grow" /><button class="quiet" onClick=${() => { kept.value = []; }}>Discard</button><button class="primary" data-testid="remarks-send" onClick=${send}>Send</button></footer>`;
}
