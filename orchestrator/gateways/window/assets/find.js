// Find in a conversation: in what is kept of it, and then in what came before, since the browser's own search
// sees drawn rows alone.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { go, html, Key, place, quantity } from "./parts.js";

const NO_WORDS = new Set(["id", "type", "status", "turnId", "threadId", "phase"]);
const MARK = "found";
const texts = new WeakMap(); // item → its words, without capitals

function wordsOf(item) {
  if (!texts.has(item)) {
    const found = [], walk = (value, name) => {
      if (typeof value === "string") { if (!NO_WORDS.has(name)) found.push(value); } else if (value && typeof value === "object") for (const [key, each] of Object.entries(value)) walk(each, key);
    };
    walk(item, "");
    texts.set(item, found.join("\n").toLowerCase());
  }
  return texts.get(item);
}
// Marks the words where they are drawn.
function mark(id, term) {
  if (!("highlights" in CSS)) return;
  CSS.highlights.delete(MARK);
  const row = [...document.querySelectorAll("[data-item-id]")].find((one) => one.dataset.itemId === id);
  if (!row || !term) return;
  const walk = document.createTreeWalker(row, NodeFilter.SHOW_TEXT), ranges = [];
  while (walk.nextNode()) {
    const words = walk.currentNode.data.toLowerCase();
    for (let at = words.indexOf(term); at >= 0; at = words.indexOf(term, at + term.length)) {
      const range = new Range();
      range.setStart(walk.currentNode, at);
      range.setEnd(walk.currentNode, Math.min(walk.currentNode.length, at + term.length));
      ranges.push(range);
    }
  }
  CSS.highlights.set(MARK, new Highlight(...ranges));
}

export function Find({ talk, close }) {
  const box = useRef(), [text, setText] = useState(""), [busy, setBusy] = useState(false), [none, setNone] = useState(false), term = text.trim().toLowerCase(), order = talk.order.value;
  const here = place.value.query.get("item"), ids = term ? order.filter((id) => wordsOf(talk.items.get(id).value).includes(term)) : [], at = ids.indexOf(here);
  useLayoutEffect(() => { box.current.focus(); box.current.select(); }, []);
  useEffect(() => { mark(here, term); }, [here, term, order]);
  useEffect(() => () => { if ("highlights" in CSS) CSS.highlights.delete(MARK); }, []);
  const show = (id) => {
    const query = new URLSearchParams(place.peek().query);
    query.set("item", id);
    go(`${place.peek().path}?${query}`, { replace: true });
  };
  // The next one above, or below; above the first that is kept, what came before is read.
  const next = async (up) => {
    if (!term || busy) return;
    const place = order.indexOf(here), known = up ? ids.findLast((id) => at < 0 || order.indexOf(id) < place) : ids.find((id) => order.indexOf(id) > place);
    setNone(false);
    if (known) { show(known); return; }
    if (!up) { setNone(true); return; }
    setBusy(true);
    const found = await talk.lookBack((item) => wordsOf(item).includes(term));
    setBusy(false);
    if (found) show(found); else setNone(true);
  };
  const onKey = (event) => {
    if (event.key === "Enter") { event.preventDefault(); next(!event.shiftKey); } else if (event.key === "Escape") { event.preventDefault(); event.stopPropagation(); close(); }
  };
  return html`<div class="finding" role="search" data-testid="find"><input ref=${box} aria-label="Find in this conversation" placeholder="Find in this conversation" value=${text} onInput=${(event) => { setText(event.target.value); setNone(false); }} onKeyDown=${onKey} />
    <span class="faint" role="status">${busy ? "reads what came before…" : none ? "no more" : term ? (at >= 0 ? `${at + 1} of ${ids.length}${talk.older ? " so far" : ""}` : quantity(ids.length, "item")) : ""}</span>
    <button class="quiet" aria-label="The one above" onClick=${() => next(true)}>↑ <${Key} k="⏎" /></button><button class="quiet" aria-label="The one below" onClick=${() => next(false)}>↓ <${Key} k="⇧⏎" /></button><button class="quiet" aria-label="Close" onClick=${close}>×</button></div>`;
}
