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

export function Lines({ thread, file, from, to, remarks, seen, onSeen }) {
  const [diff, setDiff] = useState(null), [why, setWhy] = useState(""), [at, setAt] = useState(null), table = useRef();
  const read = () => api("workspace/diff", { threadId: thread, path: file.path, from, to }).then((told) => { setWhy(""); setDiff(told); }, (error) => setWhy(error.message));
  useEffect(() => { read(); loadDiffer(); }, []);
  const parts = useMemo(() => marked(diff?.hunks ?? [], differ.value), [diff, differ.value]);
  if (why) return html`<p class="error">This file cannot be compared: ${why}. <button class="quiet" onClick=${read}>Try again</button></p>`;
  if (!diff) return null;
  const mine = remarks.value.filter((one) => one.path === file.path), writes = may("submit"), two = wide.value && !oneColumn.value, columns = two ? 6 : 4;
  const number = (shown, key, before = false) => (writes && shown ? html`<button class="quiet" aria-label="Remark on ${before ? "old line" : "line"} ${shown}" data-n=${shown} onClick=${() => setAt(at === key ? null : key)} />` : html`<span data-n=${shown} />`);
  // What stands below a line: the remarks on it, and the box for another one.
  const below = (hunk, n, m, line) => {
    const key = `${n}.${m}`, quoted = hunk.lines.slice(Math.max(0, m - 3), m + 1);
    return [...mine.filter((one) => one.key === key).map((one) => html`<tr key=${one.id} class="remark" data-testid="remark"><td colspan=${columns}><p>${visible(one.text)} <button class="quiet" onClick=${() => { remarks.value = remarks.peek().filter((each) => each !== one); }}>Take back</button></p></td></tr>`),
      at === key ? html`<tr key=${`${key}r`} class="remark"><td colspan=${columns}><${Remark} close=${() => setAt(null)} add=${(said) => { remarks.value = [...remarks.peek(), { id: crypto.randomUUID(), key, path: file.path, line, hunk: quoted, text: said }]; setAt(null); }} /></td></tr>` : null];
  };
  const signed = (sign) => html`<td class="sign ${SIGNS[sign][2]}" aria-label=${SIGNS[sign][1]}>${SIGNS[sign][0]}</td>`;
  const rows = diff.hunks.flatMap((hunk, n) => {
    let before = hunk.oldStart, after = hunk.newStart;
    const numbers = hunk.lines.map(([sign]) => [sign === "+" ? "" : before++, sign === "-" ? "" : after++]);
    const first = n ? html`<tr key=${`h${n}`} class="hunk"><td colspan=${columns} /></tr>` : null;
    if (!two) {
      return [first, ...hunk.lines.flatMap(([sign, text], m) => {
        const [old, now] = numbers[m], key = `${n}.${m}`;
        return [html`<tr key=${key} class=${SIGNS[sign][2]}><td class="no">${number(old, key)}</td><td class="no">${number(now, key)}</td>${signed(sign)}<td class="code"><${Line} text=${text} parts=${parts.get(key)} /></td></tr>`, ...below(hunk, n, m, now || old)];
      })];
    }
    const side = (m, which) => {
      if (m === null) return html`<td class="no none" /><td class="sign none" /><td class="code none ${which ? "right" : "left"}" />`;
      const [sign, text] = hunk.lines[m], key = `${n}.${m}`, shown = numbers[m][which], tint = SIGNS[sign][2];
      return html`<td class="no ${tint}">${number(shown, key, !which)}</td>${signed(sign)}<td class="code ${tint} ${which ? "right" : "left"}"><${Line} text=${text} parts=${parts.get(key)} /></td>`;
    };
    return [first, ...pairs(hunk.lines).flatMap(([left, right]) => [
      html`<tr key=${`${n}.${left}.${right}`}>${side(left, 0)}${side(right, 1)}</tr>`,
      ...[...new Set([left, right])].filter((m) => m !== null).flatMap((m) => below(hunk, n, m, numbers[m][1] || numbers[m][0]))])];
  });
  // What is selected begins and stays on one side.
  const pick = (event) => { const cell = event.target.closest?.(".code"); if (two && cell) table.current.dataset.picks = cell.classList.contains("right") ? "right" : "left"; };
  return html`<header class="path"><code class="grow">${visible(fileName(file.path), { breaks: false })}</code><small>${KINDS[file.kind] ?? ""}</small>
      ${wide.value ? html`<span class="switch" role="group" aria-label="Columns"><button class="chip ${two ? "on" : ""}" aria-pressed=${two} data-testid="two-columns" onClick=${() => setOneColumn(false)}>Side by side</button><button class="chip ${two ? "" : "on"}" aria-pressed=${!two} data-testid="one-column" onClick=${() => setOneColumn(true)}>One column</button></span>` : null}
      <button class="chip ${seen ? "on" : ""}" aria-pressed=${seen} data-testid="viewed" onClick=${onSeen}>Viewed <${Key} k="v" /></button></header>
    ${diff.hunks.length ? html`<div class="wide" tabindex="0"><table ref=${table} class="diff ${two ? "two" : ""}" aria-label="Lines" onMouseDown=${pick}>${two ? html`<colgroup><col class="n" /><col class="s" /><col /><col class="n" /><col class="s" /><col /></colgroup>` : null}<tbody>${rows}</tbody></table></div>` : html`<p class="nothing">${file.tooLarge ? "This file is too large to be compared by lines." : file.binary ? "This file is binary." : "Only its mode differs."}</p>`}${diff.truncated ? html`<p class="faint">The text is cut here: it is too long.</p>` : null}`;
}

function Remark({ add, close }) {
  const box = useRef();
  useLayoutEffect(() => box.current.focus(), []);
  const save = (event) => { event.preventDefault(); const said = box.current.value.trim(); if (said) add(said); };
  return html`<form onSubmit=${save}><textarea ref=${box} rows="2" maxlength=${MOST_REMARK} aria-label="Remark" data-testid="remark-text" onKeyDown=${(event) => { if (event.key === "Escape") { event.stopPropagation(); close(); } else if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) save(event); }} /><button class="mini" data-testid="remark-add">Add remark</button> <button type="button" class="quiet" onClick=${close}>Not now</button></form>`;
}
