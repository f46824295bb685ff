// The lines of a file that changed: in one column, or side by side, with marked words and remarks.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { api, may } from "./store.js";
import { fileName, visible } from "./text.js";
import { html, Key } from "./parts.js";

export const KINDS = { add: "new", delete: "deleted" };
const MOST_REMARK = 4_000;

// ── one column or two ────────────────────────────────────────────────────────────────────────────

const ONE_COLUMN = "dendro.one-column", room = matchMedia("(min-width: 900px)");
const wide = signal(room.matches), oneColumn = signal(localStorage.getItem(ONE_COLUMN) !== null);
room.addEventListener("change", () => { wide.value = room.matches; });
function setOneColumn(on) {
  oneColumn.value = on;
  if (on) localStorage.setItem(ONE_COLUMN, "1"); else localStorage.removeItem(ONE_COLUMN);
}

// ── words within a changed line ──────────────────────────────────────────────────────────────────

const MOST_CHARACTERS = 400, MOST_EDITS = 80, MOST_PAIRS = 1_000, LEAST_ALIKE = 0.3;
const differ = signal(null); // the words of two lines that differ; null until its module is there
let loading = null;
// The module is a script for pages of any kind: it puts what it has at a name of the page.
const loadDiffer = () => { loading ??= import("diff").then(() => { differ.value = globalThis.Diff.diffWordsWithSpace; }, () => { loading = null; }); };

// Which lines of a hunk stand for each other: of removed lines and the added ones behind them the first with the first.
function pairs(lines) {
  const found = [];
  for (let n = 0; n < lines.length;) {
    if (lines[n][0] === " ") { found.push([n, n]); n += 1; continue; }
    const removed = [], added = [];
    while (n < lines.length && lines[n][0] === "-") removed.push(n++);
    while (n < lines.length && lines[n][0] === "+") added.push(n++);
    for (let m = 0; m < Math.max(removed.length, added.length); m++) found.push([removed[m] ?? null, added[m] ?? null]);
  }
  return found;
}
// The words by which two lines differ, as `[text, whether it is marked]` for each of them; null for lines that are long, or that have
// too little in common.
export function words(before, after, compare) {
  if (Math.max(before.length, after.length) > MOST_CHARACTERS) return null;
  const parts = compare(before, after, { maxEditLength: MOST_EDITS });
  if (!parts) return null;
  const same = parts.filter((one) => !one.added && !one.removed).reduce((sum, one) => sum + one.value.trim().length, 0);
  if (same < LEAST_ALIKE * (before.trim().length + after.trim().length) / 2) return null;
  const side = (other, mark) => parts.filter((one) => !one[other]).map((one) => [one.value, Boolean(one[mark])]);
  return [side("added", "removed"), side("removed", "added")];
}
// For each line of each hunk its parts, where it has marked words.
function marked(hunks, compare) {
  const found = new Map();
  let left = MOST_PAIRS;
  if (compare) hunks.forEach(({ lines }, n) => pairs(lines).forEach(([before, after]) => {
    if (before === after || before === null || after === null || left-- <= 0) return;
    const both = words(lines[before][1], lines[after][1], compare);
    if (both) { found.set(`${n}.${before}`, both[0]); found.set(`${n}.${after}`, both[1]); }
  }));
  return found;
}
// A line: blanks count as those at its end where nothing else follows in it.
function Line({ text, parts }) {
  if (!parts) return visible(text);
  let from = 0;
  return parts.map(([part, mark], n) => {
    from += part.length;
    const shown = visible(part, { ends: !text.slice(from).trim() });
    return mark ? html`<mark key=${n}>${shown}</mark>` : shown;
  });
}

// ── the table ────────────────────────────────────────────────────────────────────────────────────

const SIGNS = { "+": ["+", "added", "add"], "-": ["−", "removed", "del"], " ": ["", undefined, ""] };

export function Lines({ thread, file, from, to, remarks, begun, seen, onSeen }) {
  const mine = `${thread} ${file.path}`, [diff, setDiff] = useState(null), [why, setWhy] = useState(""), [open, setOpen] = useState(begun.get(mine) ?? null), table = useRef();
  const setAt = (next) => { if (next) begun.set(mine, next); else begun.delete(mine); setOpen(next); };
  const read = () => api("workspace/diff", { threadId: thread, path: file.path, from, to }).then((told) => { setWhy(""); setDiff(told); }, (error) => setWhy(error.message));
  useEffect(() => { read(); loadDiffer(); }, []);
  const parts = useMemo(() => marked(diff?.hunks ?? [], differ.value), [diff, differ.value]);
  if (why) return html`<p class="error">This file cannot be compared: ${why}. <button class="quiet" onClick=${read}>Try again</button></p>`;
  if (!diff) return null;
  const said = remarks.value.filter((one) => one.path === file.path), places = new Map([...said, ...(open ? [open] : [])].map((one) => [one, placeOf(diff.hunks, one)])), writes = may("submit"), two = wide.value && !oneColumn.value, columns = two ? 6 : 4;
  const begin = (key) => { const [n, m] = key.split(".").map(Number), { lines, oldStart, newStart } = diff.hunks[n], gone = lines[m][0] === "-", line = (gone ? oldStart : newStart) + lines.slice(0, m).filter(([sign]) => sign !== (gone ? "+" : "-")).length; setAt(places.get(open) === key ? null : { line, said: lines[m], hunk: lines.slice(Math.max(0, m - 3), m + 1), text: "" }); };
  const number = (shown, key, before = false) => (writes && shown ? html`<button class="quiet" aria-label="Remark on ${before ? "old line" : "line"} ${shown}" data-n=${shown} onClick=${() => begin(key)} />` : html`<span data-n=${shown} />`);
  const kept = (one) => html`<p>${visible(one.text)} <button class="quiet" onClick=${() => { remarks.value = remarks.peek().filter((each) => each !== one); }}>Take back</button></p>`;
  const box = () => html`<${Remark} draft=${open} close=${() => setAt(null)} add=${(text) => { remarks.value = [...remarks.peek(), { ...open, id: crypto.randomUUID(), path: file.path, text }]; setAt(null); }} />`;
  // What stands below a line: the remarks on it, and the box for another one.
  const below = (n, m) => {
    const key = `${n}.${m}`;
    return [...said.filter((one) => places.get(one) === key).map((one) => html`<tr key=${one.id} class="remark" data-testid="remark"><td colspan=${columns}>${kept(one)}</td></tr>`),
      open && places.get(open) === key ? html`<tr key=${`${key}r`} class="remark"><td colspan=${columns}>${box()}</td></tr>` : null];
  };
  const lost = [...places].filter(([, place]) => place === null).map(([one]) => one);
  const signed = (sign) => html`<td class="sign ${SIGNS[sign][2]}" aria-label=${SIGNS[sign][1]}>${SIGNS[sign][0]}</td>`;
  const rows = diff.hunks.flatMap((hunk, n) => {
    let before = hunk.oldStart, after = hunk.newStart;
    const numbers = hunk.lines.map(([sign]) => [sign === "+" ? "" : before++, sign === "-" ? "" : after++]);
    const first = n ? html`<tr key=${`h${n}`} class="hunk"><td colspan=${columns} /></tr>` : null;
    if (!two) {
      return [first, ...hunk.lines.flatMap(([sign, text], m) => {
        const [old, now] = numbers[m], key = `${n}.${m}`;
        return [html`<tr key=${key} class=${SIGNS[sign][2]}><td class="no">${number(old, key)}</td><td class="no">${number(now, key)}</td>${signed(sign)}<td class="code"><${Line} text=${text} parts=${parts.get(key)} /></td></tr>`, ...below(n, m)];
      })];
    }
    const side = (m, which) => {
      if (m === null) return html`<td class="no none" /><td class="sign none" /><td class="code none ${which ? "right" : "left"}" />`;
      const [sign, text] = hunk.lines[m], key = `${n}.${m}`, shown = numbers[m][which], tint = SIGNS[sign][2];
      return html`<td class="no ${tint}">${number(shown, key, !which)}</td>${signed(sign)}<td class="code ${tint} ${which ? "right" : "left"}"><${Line} text=${text} parts=${parts.get(key)} /></td>`;
    };
    return [first, ...pairs(hunk.lines).flatMap(([left, right]) => [
      html`<tr key=${`${n}.${left}.${right}`}>${side(left, 0)}${side(right, 1)}</tr>`,
      ...[...new Set([left, right])].filter((m) => m !== null).flatMap((m) => below(n, m))])];
  });
  // What is selected begins and stays on one side.
  const pick = (event) => { const cell = event.target.closest?.(".code"); if (two && cell) table.current.dataset.picks = cell.classList.contains("right") ? "right" : "left"; };
  return html`<header class="path"><code class="grow">${visible(fileName(file.path), { breaks: false })}</code><small>${KINDS[file.kind] ?? ""}</small>
      ${wide.value ? html`<span class="switch" role="group" aria-label="Columns"><button class="chip ${two ? "on" : ""}" aria-pressed=${two} data-testid="two-columns" onClick=${() => setOneColumn(false)}>Side by side</button><button class="chip ${two ? "" : "on"}" aria-pressed=${!two} data-testid="one-column" onClick=${() => setOneColumn(true)}>One column</button></span>` : null}
      <button class="chip ${seen ? "on" : ""}" aria-pressed=${seen} data-testid="viewed" onClick=${onSeen}>Viewed <${Key} k="v" /></button></header>
    ${diff.hunks.length ? html`<div class="wide" tabindex="0"><table ref=${table} class="diff ${two ? "two" : ""}" aria-label="Lines" onMouseDown=${pick}>${two ? html`<colgroup><col class="n" /><col class="s" /><col /><col class="n" /><col class="s" /><col /></colgroup>` : null}<tbody>${rows}</tbody></table></div>` : html`<p class="nothing">${file.tooLarge ? "This file is too large to be compared by lines." : file.binary ? "This file is binary." : "Only its mode differs."}</p>`}${lost.length ? html`<div class="adrift" data-testid="adrift"><p class="faint">The agent has changed these lines since:</p>${lost.map((one) => html`<div key=${one.id ?? "box"}><code>${visible(one.said[1])}</code>${one === open ? box() : kept(one)}</div>`)}</div>` : null}${diff.truncated ? html`<p class="faint">The text is cut here: it is too long.</p>` : null}`;
}

// Where the line of a remark stands: the one of the same words that is nearest to where it was; null where there is none.
function placeOf(hunks, { said: [sign, words], line }) {
  let found = null, far = Infinity;
  hunks.forEach((hunk, n) => {
    let before = hunk.oldStart, after = hunk.newStart;
    hunk.lines.forEach(([its, text], m) => {
      const number = its === "-" ? before : after, off = Math.abs(number - line);
      if (its !== "+") before += 1;
      if (its !== "-") after += 1;
      if (its === sign && text === words && off < far) { found = `${n}.${m}`; far = off; }
    });
  });
  return found;
}

function Remark({ draft, add, close }) {
  const box = useRef();
  useLayoutEffect(() => { box.current.value = draft.text; box.current.focus(); }, [draft]);
  const save = (event) => { event.preventDefault(); const said = box.current.value.trim(); if (said) add(said); };
  return html`<form onSubmit=${save}><textarea ref=${box} rows="2" maxlength=${MOST_REMARK} aria-label="Remark" data-testid="remark-text" onInput=${(event) => { draft.text = event.target.value; }} onKeyDown=${(event) => { if (event.key === "Escape") { event.stopPropagation(); close(); } else if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) save(event); }} /><button class="mini" data-testid="remark-add">Add remark</button> <button type="button" class="quiet" onClick=${close}>Not now</button></form>`;
}
