// Items of a conversation: what agents said, ran and changed, drawn the same wherever they stand.
import { useContext, useEffect, useRef, useState } from "preact/hooks";
import { createContext } from "preact";
import { ansi, counted, diffLines, diffTable, loadMarkdown, markdown, markdownReady, plain, visible } from "./text.js";
import { html, quantity, span, Stat, Words } from "./parts.js";

const FOLD = 12, FOLD_DIFF = 80; // lines

// What a person has unfolded stays so while the item is out of view, and is not drawn.
const unfolded = new Map(), MOST_UNFOLDED = 2000;
const Shown = createContext(""); // the id of the item that is drawn
function useKept(name, initial) {
  const id = useContext(Shown), key = `${id} ${name}`, [value, set] = useState(id && unfolded.has(key) ? unfolded.get(key) : initial);
  return [value, (next) => {
    set(next);
    if (!id) return;
    unfolded.set(key, next);
    if (unfolded.size > MOST_UNFOLDED) unfolded.delete(unfolded.keys().next().value);
  }];
}

// A message as Markdown, and as text until the parser is there. A long one that grows is parsed four times a second.
const LONG = 8_000, PACE_MS = 250;
export function Prose({ text }) {
  const [, ready] = useState(markdownReady()), parsed = useRef({ at: 0, text: null, ready: false, timer: 0, drawn: null }), last = parsed.current;
  // Also where it came between this drawing and the effect: the same state draws nothing again.
  useEffect(() => { loadMarkdown().then(() => ready(true), () => {}); return () => clearTimeout(last.timer); }, []);
  const source = String(text ?? ""), wait = last.at + PACE_MS - performance.now();
  if (last.text === source && last.ready === markdownReady()) return last.drawn;
  if (last.text !== null && last.ready && source.length > LONG && source.startsWith(last.text) && wait > 0) {
    last.timer ||= setTimeout(() => { last.timer = 0; ready({}); }, wait);
    return last.drawn;
  }
  Object.assign(last, { at: performance.now(), text: source, ready: markdownReady(), drawn: markdown(source) });
  return last.drawn;
}

// The kind of a change, and its lines: those of a new or deleted file are its content.
const kindOf = (change) => (typeof change.kind === "string" ? change.kind : change.kind?.type ?? "update");
const SIGN = { add: "+", delete: "-" };
export const linesOf = (change) => diffLines(change.diff, SIGN[kindOf(change)]);

// The change of one file.
export function File({ change, fold = Infinity }) {
  const lines = linesOf(change), [plus, minus] = counted(lines), kind = kindOf(change), moved = change.movePath ?? change.kind?.move_path;
  const [whole, setWhole] = useKept(`file ${change.path}`, lines.length <= fold);
  return html`<div class="patch"><header><span class="kind">${{ add: "new", delete: "deleted" }[kind] ?? ""}</span><code class="grow">${visible(change.path, { breaks: false })}${moved ? html` → ${visible(moved, { breaks: false })}` : null}</code><${Stat} added=${plus} removed=${minus} /></header>${diffTable(whole ? lines : lines.slice(0, fold))}${whole ? null : html`<button class="quiet more" onClick=${() => setWhole(true)}>${quantity(lines.length - fold, "line")} more</button>`}</div>`;
}

// A command: its words, its end and time, and the last lines of what it said.
export function Ran({ item }) {
  const [whole, setWhole] = useKept("output", false), words = item.commandActions?.length === 1 ? item.commandActions[0].command : item.command;
  const output = behindDoubt(item).replace(/\n$/, "").split("\n"), hidden = whole ? 0 : Math.max(0, output.length - FOLD);
  const ended = typeof item.exitCode === "number" && !item.inDoubt, end = item.inDoubt ? "in doubt" : ended ? `exit ${item.exitCode}` : ENDS[item.status] ?? plain(item.status ?? "", 40);
  return html`<div class="ran"><div class="cmd"><span class="prompt" aria-hidden="true">$</span><code>${visible(words ?? item.command, { breaks: false })}</code><span class=${item.exitCode || item.status === "failed" ? "bad" : ended ? "ok" : "faint"}>${end}${item.durationMs > 99 ? ` · ${duration(item.durationMs)}` : ""}</span></div>${item.inDoubt ? html`<${Doubt} words=${item.inDoubt} />` : null}${output.join("") ? html`<pre tabindex="0">${hidden ? html`<button class="quiet more" onClick=${() => setWhole(true)}>${quantity(hidden, "line")} before</button>` : null}${ansi(output.slice(hidden).join("\n"))}</pre>` : null}</div>`;
}
// A call whose worker was lost while it ran: nobody knows what came of it.
const Doubt = ({ words }) => html`<div class="mark doubt" data-testid="doubt">${visible(String(words).slice(0, 300), { breaks: false })}</div>`;
function behindDoubt({ inDoubt, aggregatedOutput }) {
  const output = String(aggregatedOutput ?? "");
  return inDoubt && output.startsWith(inDoubt) ? output.slice(inDoubt.length).replace(/^; /, "") : output;
}
const ENDS = { inProgress: "runs", asked: "asks you", declined: "denied", completed: "done", failed: "failed" };
export const duration = (ms) => (ms < 60_000 ? `${(ms / 1000).toFixed(1)} s` : span(ms / 1000));

// ── items by their types ─────────────────────────────────────────────────────────────────────────

const said = (item) => (item.content ?? []).map((part) => part.text ?? `[${part.type}: ${plain(part.path ?? part.name ?? "", 120)}]`).join("\n");
const MARKS = /\*\*|__|`/g;

// An item; `to` is the name of the agent whose conversation it stands in, `link` makes a link to an agent's thread,
// `from` says who wrote a letter: `person NAME`, `thread ID`, or nothing where no log tells.
export const Item = ({ item, to, link, from = "" }) => html`<${Shown.Provider} value=${item.id}>${drawn(item, to, link, from)}<//>`;
function Sender({ from, link }) {
  const [kind, ...rest] = from.split(" "), who = rest.join(" ");
  return kind ? html`<b data-testid="sender">${kind === "thread" ? link(who) : html`<${Words} text=${who} most=${60} />`}</b> ` : null;
}
function drawn(item, to, link, from) {
  switch (item.type) {
    case "userMessage": return html`<div class="letter"><span class="from"><${Sender} from=${from} link=${link} />to <${Words} text=${to} most=${60} /></span><${Prose} text=${said(item)} /></div>`;
    case "agentMessage": return html`<${Prose} text=${item.text} />`;
    case "reasoning": return html`<${Reasoning} item=${item} />`;
    case "plan": return html`<div class="quote"><span class="from">Plan</span><${Prose} text=${item.text} /></div>`;
    case "commandExecution": return html`<${Ran} item=${item} />`;
    case "fileChange": return html`${(item.changes ?? []).map((change, n) => html`<${File} key=${n} change=${change} fold=${FOLD_DIFF} />`)}${item.inDoubt ? html`<${Doubt} words=${item.inDoubt} />` : item.status === "completed" ? null : html`<span class="from">${ENDS[item.status] ?? plain(item.status, 40)}</span>`}`;
    case "collabAgentToolCall": return html`<${Collab} item=${item} link=${link} />`;
    case "mcpToolCall": return html`<${Called} item=${item} name=${`${item.server}.${item.tool}`} said=${item.error?.message ?? (item.result?.content ?? []).map((part) => part.text ?? `[${part.type}]`).join("\n")} />`;
    case "dynamicToolCall": return html`<${Called} item=${item} name=${[item.namespace, item.tool].filter(Boolean).join(".")} said=${(item.contentItems ?? []).map((part) => part.text ?? "[image]").join("\n")} />`;
    case "webSearch": return html`<div class="mark">Searched the web: ${plain(item.query || item.action?.url || "", 200)}</div>`;
    case "imageView": return html`<div class="mark">Looked at <code>${visible(item.path, { breaks: false })}</code></div>`;
    case "contextCompaction": return html`<div class="mark rule">The conversation was summed up here.</div>`;
    case "enteredReviewMode": case "exitedReviewMode": return html`<div class="mark rule">${item.type === "enteredReviewMode" ? "A review begins" : "The review ends"}</div>`;
    default: return html`<div class="mark">${plain(item.type, 60)}</div>`;
  }
}
function Reasoning({ item }) {
  const [open, setOpen] = useKept("reasoning", false), parts = [...(item.summary ?? []), ...(item.content ?? [])].filter(Boolean), [first = ""] = (parts[0] ?? "").replace(MARKS, "").trim().split("\n");
  if (!parts.length) return null;
  return html`<div class="reasoning"><button class="quiet" aria-expanded=${open} onClick=${() => setOpen(!open)}>${plain(first || "Thinks", 120)} ${open ? "⌄" : "›"}</button>${open ? html`<div class="soft"><${Prose} text=${parts.join("\n\n")} /></div>` : null}</div>`;
}
const COLLAB = { spawnAgent: "Began", sendInput: "Wrote to", interruptAgent: "Interrupted", wait: "Waited for", closeAgent: "Closed", listAgents: "Listed its agents" };
function Collab({ item, link }) {
  const ids = item.receiverThreadIds ?? [];
  return html`<div class="mark"><span>${item.tool === "wait" && item.status === "inProgress" ? "Waits for" : COLLAB[item.tool] ?? plain(item.tool, 40)} ${ids.length || item.tool !== "wait" ? ids.map((id, n) => html`${n ? ", " : ""}${link(id)}`) : "agents"}${item.status === "failed" ? " (failed)" : ""}</span>${item.prompt ? html`<div class="letter"><${Prose} text=${item.prompt} /></div>` : null}</div>`;
}
function Called({ item, name, said: words }) {
  return html`<${Ran} item=${{ command: `${name} ${item.arguments === undefined || item.arguments === null ? "" : JSON.stringify(item.arguments)}`, status: item.status, durationMs: item.durationMs, aggregatedOutput: words, inDoubt: item.inDoubt }} />`;
}
