// The past of a tree: a slider over its log, the tree as it was at one of its entries, and what changed between two.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { signal, useComputed } from "@preact/signals";
import { api, now, onOpened, onSignedOut, signedInMay } from "./store.js";
import { plain, visible } from "./text.js";
import { Item } from "./items.js";
import { Rows } from "./rows.js";
import { agentName, clock, Glyph, go, html, Key, Link, phone, place, quantity, short, span, STATES, Words } from "./parts.js";
import { bind, overlay } from "./keys.js";
import { endWords } from "./needs.js";
import { useDecided } from "./decided.js";

const BARS = 400, MARKS = 2000, PITCH = 5, GAP = 46, LEAST = 6, NEAR = 6, KEPT = 64, PAGE = 60;
const OF_SESSIONS = new Set(["person", "snapshot"]), BESIDE = new Set(["decision", "takeover"]);
const AGAIN_MS = 250, GROWN_MS = 1000, PLAY_MS = 900;
const count = (n) => n.toLocaleString("en");
// A time of another day says which.
export const moment = (ms) => (new Date(ms).toDateString() === new Date(now.peek()).toDateString() ? clock(ms) : `${new Date(ms).toLocaleDateString([], { day: "numeric", month: "short", year: "numeric" })}, ${clock(ms)}`);
export const minute = (ms) => moment(ms).replace(/(\d\d?:\d\d):\d\d/, "$1");

// ── places in the address ────────────────────────────────────────────────────────────────────────

// An address of the tree's page at the place that is looked at, or at another one.
export function here(path, { at = place.peek().at, held = place.peek().held, all = path === place.peek().path && place.peek().all } = {}) {
  const asked = new URLSearchParams();
  if (all) asked.set("by", "all");
  if (at !== null) asked.set("at", at);
  if (held !== null) asked.set("held", held);
  return asked.size ? `${path}?${asked}` : path;
}
// Goes to an entry, or to what is now; a step within the past takes the place of the one before in the history.
function goTo(at, { replace = at !== null && place.peek().at !== null } = {}) {
  go(here(place.peek().path, { at }), { replace });
}

// ── what the server has told ─────────────────────────────────────────────────────────────────────

// The log of a tree as bars, gaps and marks; read again as it grows, and while the server still reads it.
class Line {
  constructor(tree) {
    this.tree = tree;
    this.told = signal(null);
    this.error = signal("");
    this.seq = 0;
    this.timer = 0;
  }
  begin() { this.ended = false; this.stop = onOpened(() => this.read()); if (!this.told.peek()) this.read(); }
  end() { this.ended = true; this.stop(); clearTimeout(this.timer); this.timer = 0; }
  async read() {
    clearTimeout(this.timer);
    this.timer = 0;
    if (this.reads) return;
    this.reads = true;
    try {
      const known = this.told.peek(), told = await api("tree/timeline", { treeId: this.tree, buckets: BARS, marksBefore: true, ...(known ? { marksAfter: known.treeSeq } : {}) });
      if (known && told.treeSeq < known.treeSeq) { this.told.value = null; this.reads = false; this.read(); return; } // the log was put back
      // Those of the agents' own logs are told each time.
      const kept = known?.marks.filter((mark) => !OF_SESSIONS.has(mark.kind) && !told.marks.some((one) => one.kind === mark.kind && one.agentId === mark.agentId && one.atMs === mark.atMs));
      this.told.value = known ? { ...told, marks: [...kept, ...told.marks].sort((a, b) => a.seq - b.seq).slice(-MARKS), more: told.more || known.more } : told;
      this.error.value = "";
      if (told.reading) this.later(AGAIN_MS);
      else if (this.seq > told.treeSeq) this.later(GROWN_MS);
    } catch (error) { this.error.value = error.message; }
    this.reads = false;
  }
  later(ms) { if (!this.timer && !this.ended) this.timer = setTimeout(() => this.read(), ms); }
  // The log has come to an entry.
  grown(seq) {
    this.seq = seq;
    if (!this.reads && this.told.peek() && !this.told.peek().reading && seq > this.told.peek().treeSeq) this.later(GROWN_MS);
  }
}
const lines = new Map();
const lineOf = (tree) => { if (!lines.has(tree)) { if (lines.size > 3) lines.delete(lines.keys().next().value); lines.set(tree, new Line(tree)); } return lines.get(tree); };

// What people did in a tree, as its logs tell: the newest first.
const ACTS = new Set(["decision", "person", "budget"]);
export const actsOf = (tree) => { const { marks = [], marksBefore = [] } = lineOf(tree).told.value ?? {}; return [...marksBefore, ...marks].filter((mark) => ACTS.has(mark.kind) && mark.who).sort((a, b) => b.atMs - a.atMs); };
// What the logs tell beside one agent's conversation: how its requests ended, and when another worker took it over.
// The same list for as long as it tells the same.
export function useBeside(tree, number) {
  const text = useComputed(() => {
    const { marks = [], marksBefore = [] } = lineOf(tree).told.value ?? {};
    return JSON.stringify([...marksBefore, ...marks].filter((mark) => mark.agentId === number && BESIDE.has(mark.kind)).sort((a, b) => a.atMs - b.atMs));
  });
  return useMemo(() => JSON.parse(text.value), [text.value]);
}
// The rows of a conversation: its items, and before the first item that began behind it each takeover, and each end of a
// request that is no item itself, as of a question. Before the first item and behind the last one that are there they
// stand only where nothing is missing.
const MARK = /^(?:takeover|decision) [0-9]+ /, rowOf = (mark) => `${mark.kind} ${mark.atMs} ${mark.callId ?? ""}`;
export function withMarks(ids, beside, startedAt, { first, last }) {
  const items = new Set(ids), marks = beside.filter((mark) => !items.has(mark.callId));
  if (!marks.length || !ids.length) return ids;
  const rows = [];
  let next = 0;
  for (const id of ids) {
    const at = startedAt(id);
    for (; at && marks[next]?.atMs < at; next += 1) if (rows.length || first) rows.push(rowOf(marks[next]));
    rows.push(id);
  }
  return last ? [...rows, ...marks.slice(next).map(rowOf)] : rows;
}
export const isMark = (row) => MARK.test(row);
const Entry = ({ seq }) => (seq ? html` <${Link} to=${here(place.value.path, { at: seq })} class="under">Entry ${count(seq)}<//>` : null);
export function Marked({ row, beside, index, of, at, tree, thread }) {
  const mark = beside.find((one) => row === rowOf(one));
  if (!mark) return null;
  return html`<article class="item ${mark.kind}" data-testid="item" data-item-id=${row} data-type=${mark.kind} aria-posinset=${index + 1} aria-setsize=${of} ...${at}>${mark.kind === "decision" ? html`<${Asked} mark=${mark} tree=${tree} thread=${thread} />` : html`<div class="mark rule">Its worker was lost, and another one took over at ${minute(mark.atMs)}.<${Entry} seq=${mark.seq} /></div>`}</article>`;
}
// How a request ended, below its item: who decided, and when.
export const Settled = ({ mark }) => html`<div class="settled" data-testid="settled" data-decision=${mark.decision ?? ""}>${capital(endWords({ ...mark, text: mark.outcome }))} at ${minute(mark.atMs)}.<${Entry} seq=${mark.seq} /></div>`;
const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);
// The same with what was asked, where that is no item.
function Asked({ mark, tree, thread }) {
  const one = useDecided(tree, thread, mark.callId);
  return html`${one?.subject ? html`<div class="what">${visible(String(one.subject).slice(0, 1200), { breaks: false })}</div>` : null}<${Settled} mark=${mark} />`;
}

// Trees as they were: what was asked for once does not change any more.
const pictures = new Map();
onSignedOut(() => { lines.forEach((line) => clearTimeout(line.timer)); lines.clear(); pictures.clear(); });
export async function picture(tree, at) {
  const key = `${tree} ${at}`;
  const found = pictures.get(key) ?? await api("tree/read", { treeId: tree, at });
  pictures.delete(key);
  // What the server has not read yet is asked for again.
  if (!found.reading) pictures.set(key, found);
  if (pictures.size > KEPT) pictures.delete(pictures.keys().next().value);
  return found;
}

// A tree as it was, drawn by `grown`: the newest place that was asked for, one question at a time.
export class Then {
  constructor(grown) {
    this.grown = grown;
    this.wanted = null;
    this.drawn = signal(null); // the entry that is drawn
    this.error = signal(null); // {at, text}
  }
  async want(at) {
    this.wanted = at;
    if (this.asks || at === null) return;
    this.asks = true;
    while (this.wanted !== null && (this.wanted !== this.drawn.peek() || this.stale)) {
      const asked = this.wanted;
      try {
        const { agents, ...head } = await picture(this.grown.id, asked);
        if (this.wanted === null) break;
        this.grown.on({ type: "all", data: agents, ...head });
        this.drawn.value = asked;
        this.error.value = null;
        this.stale = false;
        // What the server has to read yet is missing in it.
        if (head.reading) setTimeout(() => { if (this.wanted === asked) { this.stale = true; this.want(asked); } }, GROWN_MS);
      } catch (error) {
        if (error.status === 404) this.grown.gone.value ??= {};
        if (this.wanted !== asked) continue;
        this.error.value = { at: asked, text: error.message };
        break;
      }
    }
    this.asks = false;
  }
  again() { const { wanted } = this; this.error.value = null; this.wanted = null; this.want(wanted); }
}

// ── the line, drawn ──────────────────────────────────────────────────────────────────────────────

// Places of entries on a line of some width: long pauses are as wide as their words, the rest is time.
export function geometry(told, width) {
  const { buckets, gaps, firstAtMs, lastAtMs } = told;
  const gapWidth = gaps.length ? Math.min(GAP, (width * 0.5) / gaps.length) : 0;
  const parts = [...gaps, null].map((gap, n) => ({ from: n ? gaps[n - 1].toMs : firstAtMs, to: gap ? gap.fromMs : lastAtMs }));
  const whole = parts.reduce((sum, one) => sum + one.to - one.from, 0) || 1;
  const least = Math.min(LEAST, (width * 0.3) / parts.length), free = Math.max(0, width - gapWidth * gaps.length - least * parts.length - 2);
  let x = 1;
  for (const part of parts) {
    part.x = x;
    part.width = least + (free * (part.to - part.from)) / whole;
    x += part.width + gapWidth;
  }
  const breaks = gaps.map((gap, n) => ({ x: parts[n].x + parts[n].width, width: gapWidth, ms: gap.toMs - gap.fromMs }));
  let of = 0;
  const bars = buckets.map((bucket) => {
    while (of < parts.length - 1 && bucket.atMs > parts[of].to) of += 1;
    const part = parts[of], room = Math.max(0, part.width - PITCH);
    return { ...bucket, x: part.x + (part.to > part.from ? (room * (bucket.atMs - part.from)) / (part.to - part.from) : 0) };
  });
  const most = Math.max(1, ...buckets.map((bucket) => bucket.entries));
  bars.forEach((bar, n) => {
    bar.width = Math.max(1, Math.min(PITCH, (bars[n + 1]?.x ?? Infinity) - bar.x));
    bar.share = Math.sqrt(bar.entries / most);
  });
  const last = bars.at(-1);
  return {
    bars, breaks, end: last ? Math.min(width - 1, last.x + last.width) : 1,
    // The middle of an entry's place.
    xOf(seq) {
      const bar = bars[within(bars, (one) => one.seq <= seq)];
      return bar ? bar.x + (bar.width * (Math.min(bar.entries - 1, seq - bar.seq) + 0.5)) / bar.entries : 1;
    },
    // The entry at a place; null behind the last one, where it is now.
    seqAt(at) {
      if (last && at > last.x + last.width) return null;
      const bar = bars[within(bars, (one) => one.x <= at)];
      return bar ? bar.seq + Math.max(0, Math.min(bar.entries - 1, Math.floor(((at - bar.x) / bar.width) * bar.entries))) : null;
    },
  };
}
// The last one of which this holds; the first one if it holds of none.
function within(all, holds) {
  let low = 0, high = all.length - 1;
  while (low < high) { const middle = Math.ceil((low + high) / 2); if (holds(all[middle])) low = middle; else high = middle - 1; }
  return low;
}
const KINDS = { spawn: "began", end: "ended", failure: "failed", approval: "asked", decision: "was decided", takeover: "was taken over", budget: "limits", person: "a person", snapshot: "a folder" };
const wait = (ms) => (ms < 3_600_000 ? `${Math.round(ms / 60_000)} m` : ms < 172_800_000 ? `${Math.round(ms / 3_600_000)} h` : `${Math.round(ms / 86_400_000)} d`);

// The width of an element, as it changes.
function useWidth(box) {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    watch.observe(box.current);
    setWidth(Math.floor(box.current.clientWidth));
    return () => watch.disconnect();
  }, []);
  return width;
}

// The next place by a key: a mark, or an entry; null is now.
export function stepped(told, at, key, entry) {
  const { marks, treeSeq } = told;
  if (!treeSeq || key === "End") return null;
  if (key === "Home") return 1;
  const from = at ?? treeSeq + 1;
  if (key === "ArrowLeft") return entry ? Math.max(1, from - 1) : marks.findLast((mark) => mark.seq < from)?.seq ?? 1;
  const next = entry ? from + 1 : marks.find((mark) => mark.seq > from)?.seq ?? treeSeq + 1;
  return next > treeSeq ? null : next;
}

// `seq` is the last entry of the tree's log as the page has heard of it.
export function Slider({ id, seq, then }) {
  const line = lineOf(id), told = line.told.value, { at, held } = place.value, track = useRef(), width = useWidth(track), [seen, setSeen] = useState(null), [plays, setPlays] = useState(false), drags = useRef(false);
  useEffect(() => { line.begin(); return () => line.end(); }, [id]);
  useEffect(() => { if (seq) line.grown(seq); }, [id, seq]);
  const shape = useMemo(() => (told?.treeSeq && width ? geometry(told, width) : null), [told, width]);
  const step = (key, entry) => { if (told?.treeSeq) goTo(stepped(told, place.peek().at, key, entry)); };
  const onKey = (event) => {
    if (!["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key) || event.altKey || event.ctrlKey || event.metaKey) return;
    // Now, they scroll a conversation that has the focus, as anywhere.
    if (place.peek().at === null && ["Home", "End"].includes(event.key) && event.target.closest?.(".items")) return;
    event.preventDefault();
    setPlays(false);
    step(event.key, event.shiftKey);
  };
  useLayoutEffect(() => bind({
    ArrowLeft: onKey, ArrowRight: onKey, "Shift+ArrowLeft": onKey, "Shift+ArrowRight": onKey, Home: onKey, End: onKey,
    "=": () => hold(),
  }), [told]);
  // While it plays, it goes from mark to mark.
  useEffect(() => {
    if (!plays) return undefined;
    if (at === null) { setPlays(false); return undefined; }
    const timer = setTimeout(() => step("ArrowRight"), PLAY_MS);
    return () => clearTimeout(timer);
  }, [plays, at, told]);
  const play = () => { if (plays) { setPlays(false); return; } if (place.peek().at === null) goTo(told.marks[0]?.seq ?? 1); setPlays(true); };
  const xAt = (event) => event.clientX - track.current.getBoundingClientRect().left;
  const near = (x) => told.marks.reduce((best, mark) => { const far = Math.abs(shape.xOf(mark.seq) - x); return far <= NEAR && (!best || far < best.far) ? { mark, far } : best; }, null)?.mark ?? null;
  const onPointer = (event) => {
    if (!shape) return;
    const x = xAt(event);
    if (event.type === "pointerdown") {
      if (event.button) return;
      event.preventDefault();
      track.current.focus({ preventScroll: true });
      track.current.setPointerCapture(event.pointerId);
      drags.current = true;
      setSeen(null);
      setPlays(false);
      // On a mark it means the mark's very entry.
      goTo(near(x)?.seq ?? shape.seqAt(x), { replace: false });
    } else if (event.type === "pointermove" && drags.current) goTo(shape.seqAt(x), { replace: true });
    else if (event.type === "pointermove") { const mark = near(x); if (mark !== seen) setSeen(mark); }
    else if (event.type !== "pointerleave") drags.current = false;
    else setSeen(null);
  };
  const x = !shape ? 0 : at === null ? shape.end : shape.xOf(Math.min(at, told.treeSeq)), atMs = then?.drawn.value === at ? then.grown.head.value.atMs : undefined;
  const mark = seen ?? (at !== null && told?.marks.find((one) => one.seq === at)) ?? null, end = Math.max(seq ?? 0, told?.treeSeq ?? 0);
  const shown = at === null ? "Live" : atMs ? clock(atMs) : "…", beside = at === null ? `${count(end)} of ${count(end)}` : `${count(at)} of ${count(end)}`;
  const words = at === null ? `now, ${quantity(end, "entry", "entries")}` : `${atMs ? `${moment(atMs)}, ` : ""}entry ${count(at)} of ${count(end)}${mark ? `, ${plain(mark.text, 120)}` : ""}`;
  return html`<section class="time" aria-label="Time" data-testid="slider" data-at=${at ?? ""} data-end=${told?.treeSeq ?? ""}>
    <button class="quiet play" aria-label=${plays ? "Pause" : "Play from mark to mark"} aria-pressed=${plays} disabled=${!told?.treeSeq} onClick=${play}>${plays ? "❚❚" : "▸"}</button>
    <div class="track" ref=${track} role="slider" tabindex="0" aria-label="Place in the tree’s log" aria-orientation="horizontal" aria-disabled=${!told?.treeSeq} aria-valuemin="1" aria-valuemax=${Math.max(1, end)} aria-valuenow=${Math.max(1, Math.min(at ?? end, end))} aria-valuetext=${words}
      onKeyDown=${onKey} onPointerDown=${onPointer} onPointerMove=${onPointer} onPointerUp=${onPointer} onPointerCancel=${onPointer} onPointerLeave=${onPointer}>${shape ? html`<${Drawn} shape=${shape} marks=${told.marks} at=${at} x=${x} held=${held === null ? null : shape.xOf(held)} width=${width} />` : told && !told.treeSeq ? html`<span class="faint">Nothing has happened between agents yet.</span>` : line.error.value ? html`<span class="error">The log cannot be read: ${line.error.value}. <button class="quiet" onClick=${() => line.read()}>Try again</button></span>` : null}
      ${told?.reading ? html`<progress class="reading" max=${told.reading.of} value=${told.reading.read} aria-label="The log is read: entry ${told.reading.read} of ${told.reading.of}" data-testid="slider-reading"></progress>` : null}</div>
    ${mark && shape ? html`<${Tip} mark=${mark} x=${shape.xOf(mark.seq)} track=${track} />` : null}
    ${told && !told.treeSeq ? null : html`<div class="place"><b>${shown}</b><small>${beside}</small></div>
    <button class="chip ${at === null ? "on" : ""}" data-testid="live" aria-pressed=${at === null} onClick=${() => { setPlays(false); if (place.peek().at !== null) goTo(null); }}>Live</button>`}
  </section>`;
}

// What stands at a mark, in words of the log: they are in an element of their own, and nothing in them acts.
function Tip({ mark, x, track }) {
  const self = useRef();
  useLayoutEffect(() => { const half = self.current.offsetWidth / 2, room = self.current.parentElement.clientWidth - 2 * half - 8; self.current.style.left = `${Math.max(8, Math.min(room, track.current.offsetLeft + x - half))}px`; });
  return html`<div class="tip" ref=${self} data-testid="slider-mark" data-kind=${mark.kind} data-seq=${mark.seq}><i class="mark-${mark.kind}" /><span class="faint">${clock(mark.atMs)}</span> <bdi>${visible(String(mark.text).slice(0, 200), { breaks: false })}</bdi>${mark.who ? html` <span class="faint">by <${Words} text=${mark.who} most=${60} /></span>` : null}</div>`;
}

const BASE = 36, HIGH = 24;
function Drawn({ shape, marks, at, x, held, width }) {
  // Bars in two paths, before the place and behind it; marks in one for each kind.
  const [before, after] = useMemo(() => {
    const path = (bars) => bars.map((bar) => `M${bar.x.toFixed(1)} ${BASE}v${-(2 + bar.share * HIGH).toFixed(1)}h${Math.max(1, bar.width - 1).toFixed(1)}V${BASE}z`).join("");
    return [path(shape.bars.filter((bar) => at === null || bar.seq <= at)), path(shape.bars.filter((bar) => at !== null && bar.seq > at))];
  }, [shape, at]);
  const kinds = useMemo(() => {
    const found = new Map();
    for (const mark of marks) found.set(mark.kind, `${found.get(mark.kind) ?? ""}M${shape.xOf(mark.seq).toFixed(1)} ${BASE + 1}v7`);
    return [...found];
  }, [shape, marks]);
  return html`<svg width=${width} height="48" viewBox="0 0 ${width} 48" aria-hidden="true"><path class="bars" d=${before} /><path class="bars later" d=${after} /><path class="base" d=${`M0 ${BASE + 0.5}H${width}`} />
    ${shape.breaks.map((one, n) => html`<g key=${n} class="break"><rect x=${one.x + 1} y="4" width=${Math.max(0, one.width - 2)} height="42" />${one.width > 26 ? html`<text x=${one.x + one.width / 2} y="24">${wait(one.ms)}</text>` : html`<title>${wait(one.ms)}</title>`}</g>`)}
    ${kinds.map(([kind, path]) => html`<path key=${kind} class="mark-${Object.hasOwn(KINDS, kind) ? kind : "spawn"}" d=${path} />`)}
    ${held === null ? null : html`<path class="held" d=${`M${held.toFixed(1)} 2v44`} />`}<path class="handle" d=${`M${x.toFixed(1)} 2v44`} /></svg>`;
}

// ── in the past ──────────────────────────────────────────────────────────────────────────────────

export function Banner({ id, then }) {
  const { at } = place.value, drawn = then.drawn.value, { atMs } = then.grown.head.value, error = then.error.value, reading = lineOf(id).told.value?.reading;
  const [late, setLate] = useState(false), comes = drawn !== at && !error;
  useEffect(() => { if (!comes) { setLate(false); return undefined; } const timer = setTimeout(() => setLate(true), 400); return () => clearTimeout(timer); }, [comes, at]);
  return html`<div class="banner" role="status" data-testid="past-banner" data-at=${at} data-drawn=${drawn ?? ""}>
    <span>${error?.at === at ? html`<span class="error">Entry ${count(at)} cannot be shown: ${error.text}.</span> <button class="quiet" onClick=${() => then.again()}>Try again</button>` : html`${phone.value ? "At" : "As it was at"} ${drawn === at ? html`<b>${moment(atMs)}</b>, ` : ""}entry ${count(at)}.${late ? html` <i>${reading ? `The log is read: ${count(reading.read)} of ${count(reading.of)} entries.` : "Comes…"}</i>` : phone.value ? null : html` <span class="more-words">What came later is not shown, and nothing can be answered here.</span>`}`}</span>
    <button class="quiet under" data-testid="back-to-now" onClick=${() => goTo(null)}>Back to now <${Key} k="End" /></button><span class="grow" />
    ${place.value.held !== null ? null : html`<button class="quiet" onClick=${hold}>Compare <${Key} k="=" /></button>`}
    ${signedInMay("submit") ? html`<button class="mini" data-testid="fork" disabled=${drawn !== at} onClick=${() => { overlay.value = "fork"; }}>${phone.value ? "Fork…" : html`Fork from here… <${Key} k="f" />`}</button>` : null}</div>`;
}

// A new tree that begins with the conversation of this one's root at the place that is looked at.
export function Fork({ close }) {
  const { tree, at } = place.peek(), [why, setWhy] = useState(""), [busy, setBusy] = useState(false);
  if (at === null) return null;
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const { thread } = await api("thread/fork", { threadId: tree, at, excludeTurns: true });
      close();
      go(`/tree/${thread.id}`);
    } catch (error) { setWhy(error.message); setBusy(false); }
  };
  return html`<form onSubmit=${submit}><h3>Fork from entry ${count(at)}</h3><p>A new tree begins with the conversation of the root up to the last turn that had ended then. It has no agents yet. A portable folder is as it was then, any other one as it is now. This tree stays as it is.</p>
    ${why ? html`<p class="error" role="alert">${why}</p>` : null}<footer><button class="primary" data-testid="confirm" disabled=${busy}>Fork</button><span class="grow" /><button type="button" onClick=${close}>Not now <${Key} k="Esc" /></button></footer></form>`;
}

// The conversation of an agent, cut at the place that is looked at.
function PastItem({ id, index, count, at, found, ...more }) {
  if (isMark(id)) return html`<${Marked} row=${id} beside=${more.beside} index=${index} of=${found.next ? -1 : count} at=${at} tree=${more.tree} thread=${more.thread} />`;
  return html`<${PastSaid} id=${id} index=${index} count=${count} at=${at} found=${found} ...${more} />`;
}
function PastSaid({ id, index, count, at, found, to, link, parent, beside }) {
  const item = found.items.find((one) => one.id === id), from = fromOf(item, !index && !found.next ? parent : null), ended = endOf(beside, id), drawn = useMemo(() => html`<${Item} item=${item} to=${to} link=${link} from=${from} />`, [item, to, link, from]);
  return html`<article class="item ${item.type}" data-testid="item" data-item-id=${id} data-type=${item.type} aria-posinset=${index + 1} aria-setsize=${found.next ? -1 : count} ...${at}>${drawn}${ended ? html`<${Settled} mark=${ended} />` : null}</article>`;
}
export const endOf = (beside, id) => beside.findLast((mark) => mark.kind === "decision" && mark.callId === id);
// Who wrote a letter, as the log says; the parent gives an agent its task (`parent`: its thread).
export function fromOf({ type, sentBy, sentByThreadId } = {}, parent) {
  if (type !== "userMessage") return "";
  const thread = sentByThreadId ?? parent;
  return sentBy ? `person ${sentBy}` : thread ? `thread ${thread}` : "";
}
export function PastTalk({ agent, at, name, facts, link, back, tree, parent }) {
  const thread = agent.threadId, box = useRef(), [found, setFound] = useState(null), [why, setWhy] = useState(""), older = useRef(false), atEnd = useRef(true);
  const beside = useBeside(tree, agent.agentId), then = useMemo(() => beside.filter((mark) => !mark.seq || mark.seq <= found?.at), [beside, found?.at]);
  const keys = useMemo(() => {
    const times = new Map(found?.items.map((item) => [item.id, item.startedAtMs]));
    return withMarks([...times.keys()], then, (id) => times.get(id), { first: !found?.next, last: true });
  }, [found, then]), more = useMemo(() => ({ found, to: name, link, parent, beside: then, tree, thread }), [found, name, link, parent, then, tree, thread]);
  const ask = (more, signal) => api("thread/items/list", { threadId: thread, at, limit: PAGE, sortDirection: "desc", ...more }, { signal });
  const rows = ({ data }) => data.map((entry) => entry.item ?? entry).reverse();
  const read = (asks = new AbortController()) => { ask({}, asks.signal).then((page) => { setWhy(""); setFound({ at, items: rows(page), next: page.nextCursor }); }, (error) => { if (error.name !== "AbortError") setWhy(error.message); }); return () => asks.abort(); };
  // What stands there is drawn until the other place is read.
  useEffect(() => read(), [thread, at]);
  useLayoutEffect(() => { if (!older.current) atEnd.current = true; }, [found?.at]);
  const onScroll = async () => {
    atEnd.current = box.current.scrollHeight - box.current.scrollTop - box.current.clientHeight < 80;
    if (box.current.scrollTop > 400 || !found?.next || older.current) return;
    older.current = true;
    const from = found;
    try {
      const page = await ask({ cursor: from.next });
      setFound((known) => (known === from ? { ...from, items: [...rows(page), ...from.items], next: page.nextCursor } : known));
    } catch (error) { setWhy(error.message); }
    older.current = false;
  };
  const asked = agent.state === "needs";
  return html`<section class="talk" aria-label="Conversation" data-testid="conversation" data-at=${found?.at ?? ""}>${back}
    <header><${Glyph} state=${agent.state ?? "unknown"} /><b class="clip">${visible(name, { breaks: false })}</b><span class="faint clip">${facts}</span></header>
    <div class="items" ref=${box} onScroll=${onScroll} tabindex="0" role=${keys.length ? "feed" : "group"} aria-label="Items"><div class="column then">
      ${why ? html`<p class="error">This conversation cannot be read: ${why}. <button class="quiet" onClick=${() => read()}>Try again</button></p>` : null}
      ${found && !found.items.length ? html`<p class="faint">Nothing had been said here yet.</p>` : null}
      <${Rows} keys=${keys} Row=${PastItem} more=${more} box=${box} usual=${90} end=${atEnd} />
      ${found && asked ? html`<p class="faint">It waited for a person here.</p>` : null}
    </div></div></section>`;
}

// ── two places ───────────────────────────────────────────────────────────────────────────────────

// Holds the place that is looked at, beside the one that is gone to; lets it go again.
function hold() {
  const { path, at, held } = place.peek();
  if (held !== null) go(here(path, { held: null }), { replace: true });
  else if (at !== null) go(here(path, { held: at }), { replace: true });
}

// What is other between two pictures of a tree, an agent a row; what one of them does not tell is left out.
export function differences(before, after) {
  const known = new Map(before.map((agent) => [agent.agentId, agent])), rows = [];
  for (const agent of after) {
    const old = known.get(agent.agentId);
    known.delete(agent.agentId);
    if (!old) { rows.push({ agent, what: ["began", stateWords(agent.state)].filter(Boolean), tokens: agent.tokens ?? 0 }); continue; }
    const what = old.state !== agent.state && old.state && agent.state ? [`${stateWords(old.state)} → ${stateWords(agent.state)}`] : [];
    const tokens = typeof old.tokens === "number" && typeof agent.tokens === "number" ? agent.tokens - old.tokens : 0;
    if (what.length || tokens || (agent.last && agent.last !== old.last)) rows.push({ agent, what, tokens });
  }
  for (const agent of known.values()) rows.push({ agent, what: ["was deleted"], tokens: 0 });
  return rows;
}
const stateWords = (state) => (STATES[state] ?? "").toLowerCase();

// `tree` is what is shown now, or as it was at `at`.
export function Compare({ id, tree, at, drawn }) {
  const { held, path } = place.value, [other, setOther] = useState(null), [why, setWhy] = useState("");
  useEffect(() => { let ended = false; picture(id, held).then((found) => { if (!ended) { setWhy(""); setOther(found); } }, (error) => { if (!ended) setWhy(error.message); }); return () => { ended = true; }; }, [id, held]);
  const shown = { ...tree.head.value, agents: [...tree.agents.values()].map((each) => each.value) };
  const drop = html`<button class="quiet" onClick=${() => go(here(path, { held: null }), { replace: true })}>Let go <${Key} k="=" /></button>`;
  if (why) return html`<section class="compare" aria-label="Compared" data-testid="compare"><p class="error">Entry ${count(held)} cannot be compared: ${why}. ${drop}</p></section>`;
  if (!other || held === at || drawn !== at || !tree.loaded.value) return html`<section class="compare" aria-label="Compared" data-testid="compare"><p>Entry ${count(held)} is held: at another place, what is other there stands here. ${drop}</p></section>`;
  const turned = at !== null && at < held, [first, second] = turned ? [shown, other] : [other, shown], rows = differences(first.agents, second.agents);
  const apart = (second.treeSeq ?? 0) - (first.treeSeq ?? 0);
  return html`<section class="compare" aria-label="Compared" data-testid="compare"><header><b>From entry ${count(first.treeSeq)}, ${moment(first.atMs)}, to ${at === null ? "now" : html`entry ${count(second.treeSeq)}, ${moment(second.atMs)}`}</b><span class="faint">${quantity(apart, "entry", "entries")}, ${span((second.atMs - first.atMs) / 1000)}</span><span class="grow" />${drop}</header>
    ${rows.length ? html`<ul>${rows.map(({ agent, what, tokens }) => html`<li key=${agent.agentId} data-testid="difference"><${Glyph} state=${agent.state ?? "unknown"} /><b class="clip"><${Words} text=${agentName(agent)} most=${60} /></b><span class="no">${agent.agentId}</span><span>${what.join(", ")}</span><span class="doing clip grow">${visible(plain(agent.last ?? "", 160), { breaks: false })}</span>${tokens > 0 ? html`<span class="num faint">+${short(tokens)}</span>` : null}</li>`)}</ul>` : html`<p class="faint">No agent is other than it was.</p>`}</section>`;
}
