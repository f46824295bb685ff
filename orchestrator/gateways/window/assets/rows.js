// Lists of any length, of which the rows in view are drawn alone, and a screenful on both sides.
//
// Rows may have any heights: each is measured once it is drawn, and a tree of sums (Fenwick) has the place of all.
// What stands in view stays where it is while rows come, go or grow above it. Rows that are chosen, or that have the
// focus, are drawn wherever they are, so that keys and screen readers find them.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { html } from "./parts.js";

const BESIDE = 400, PADDING = 30; // px: what is drawn above and below the view; what a box may have above its first row
const PLACES = 50; // lists whose places are kept

// The heights of rows in their order; those that nobody has drawn yet have the usual one.
class Heights {
  constructor(usual) {
    this.usual = usual;
    this.known = new Map(); // key → px
    this.keys = [];
    this.at = new Map(); // key → place
    this.sums = new Float64Array(1);
  }

  set(keys) {
    this.keys = keys;
    this.at = new Map(keys.map((key, n) => [key, n]));
    if (this.known.size > 2 * keys.length + 1000) for (const key of this.known.keys()) if (!this.at.has(key)) this.known.delete(key);
    this.sums = new Float64Array(keys.length + 1);
    for (let n = 1; n <= keys.length; n++) {
      this.sums[n] += this.of(n - 1);
      const above = n + (n & -n);
      if (above <= keys.length) this.sums[above] += this.sums[n];
    }
  }
  of(n) { return this.known.get(this.keys[n]) ?? this.usual; }
  // A row is so high now; whether that is news.
  measured(key, px) {
    const n = this.at.get(key), before = this.known.get(key) ?? this.usual;
    this.known.set(key, px);
    if (n === undefined || Math.abs(px - before) < 0.5) return false;
    for (let i = n + 1; i < this.sums.length; i += i & -i) this.sums[i] += px - before;
    return true;
  }
  // Where a row begins; of the place behind the last: how high all are.
  top(n) {
    let sum = 0;
    for (let i = n; i > 0; i -= i & -i) sum += this.sums[i];
    return sum;
  }
  get total() { return this.top(this.keys.length); }
  // The row that a place is in.
  find(px) {
    let n = 0, rest = px;
    for (let step = 1 << Math.floor(Math.log2(Math.max(1, this.keys.length))); step; step >>= 1) {
      if (n + step <= this.keys.length && this.sums[n + step] <= rest) { n += step; rest -= this.sums[n]; }
    }
    return Math.max(0, Math.min(n, this.keys.length - 1));
  }
}

const places = new Map(); // name of a list → the row at its top, to come back to

// `keys` are the texts that name the rows; `Row` draws one, with `id`, `index`, `count`, and `at`, which its element spreads;
// `more` is what else it is given: the same object as long as nothing in it is another. `box` is a ref to the element that
// scrolls. `chosen`, a signal of a key, comes into view when it changes. `end` is a ref: while it is true, the box stands at its
// end. `name` names the list: its place is found again under it. `above` are the px that something covers at the box's top.
export function Rows({ keys, Row, more, box, usual, chosen = null, end = null, name = null, above = 0 }) {
  const space = useRef(), [, draw] = useState(0), heights = useMemo(() => new Heights(usual), []), self = useRef(null), wanted = chosen?.value ?? null;
  // A list that one comes back to stands where it stood, unless another row is chosen by now.
  const known = places.get(name);
  self.current ??= { drawn: [0, 0], anchor: known ?? null, chosen: known?.chosen ?? null, own: -1, seen: null, focus: null, refs: new Map(), elements: new Map(), fresh: new Set(), made: new Map(), width: 0 };
  const state = self.current;
  if (heights.keys !== keys) heights.set(keys);

  const start = () => space.current.getBoundingClientRect().top - box.current.getBoundingClientRect().top + box.current.scrollTop;
  // The rows that are in view, or beside it.
  const look = () => {
    if (!box.current || !space.current || !keys.length) return [0, 0];
    const top = box.current.scrollTop - start(), high = box.current.clientHeight;
    if (top > heights.total + BESIDE || top + high < -BESIDE) return [0, 0];
    return [heights.find(Math.max(0, top - BESIDE)), Math.min(keys.length, heights.find(Math.max(0, top + high + BESIDE)) + 1)];
  };
  const keep = () => {
    const top = box.current.scrollTop - start() + above, inside = top > -PADDING && top < heights.total, n = inside ? heights.find(Math.max(0, top)) : 0;
    state.anchor = inside ? { key: keys[n], over: top - heights.top(n), pinned: false } : null;
    state.seen = box.current.scrollTop;
    note();
  };
  const note = () => {
    if (name === null) return;
    places.delete(name);
    if (state.anchor) places.set(name, { ...state.anchor, chosen: state.chosen });
    if (places.size > PLACES) places.delete(places.keys().next().value);
  };
  const settle = () => {
    const next = look();
    if (next[0] !== state.drawn[0] || next[1] !== state.drawn[1]) { state.drawn = next; draw((n) => n + 1); }
  };
  const scrollTo = (px) => { box.current.scrollTop = px; state.own = state.seen = box.current.scrollTop; };
  state.scrolled = () => { if (Math.abs(box.current.scrollTop - state.own) > 1) { state.own = -1; keep(); } settle(); };

  useLayoutEffect(() => {
    const scroller = box.current;
    const onScroll = () => state.scrolled();
    const onFocus = ({ target, type }) => { state.focus = type === "focusin" && space.current?.contains(target) ? target.closest("[data-row]")?.dataset.row ?? null : null; };
    state.watch = new ResizeObserver((found) => {
      let news = false;
      for (const { target, borderBoxSize } of found) {
        if (target === scroller) {
          // At another width all heights are others.
          if (state.width && Math.abs(state.width - scroller.clientWidth) > 1) { heights.known.clear(); heights.set(heights.keys); for (const each of state.elements.values()) state.fresh.add(each); }
          state.width = scroller.clientWidth;
          news = true;
        } else if (target.isConnected) news = heights.measured(target.dataset.row, borderBoxSize[0].blockSize) || news;
      }
      if (news) draw((n) => n + 1);
    });
    state.watch.observe(scroller);
    for (const each of state.elements.values()) state.watch.observe(each);
    scroller.addEventListener("scroll", onScroll, { passive: true });
    scroller.addEventListener("focusin", onFocus);
    scroller.addEventListener("focusout", onFocus);
    return () => { state.watch.disconnect(); scroller.removeEventListener("scroll", onScroll); scroller.removeEventListener("focusin", onFocus); scroller.removeEventListener("focusout", onFocus); };
  }, []);

  // After each drawing, and before anybody sees it: rows that are new are measured, what was in view stands where it stood,
  // and a row that was chosen comes into view.
  useLayoutEffect(() => {
    const scroller = box.current;
    let news = false;
    for (const each of state.fresh) if (each.isConnected) news = heights.measured(each.dataset.row, each.offsetHeight) || news;
    state.fresh.clear();
    if (news) { draw((n) => n + 1); return; }
    if (wanted === null) state.chosen = null;
    const comes = wanted !== state.chosen && heights.at.has(wanted);
    if (comes) {
      state.chosen = wanted;
      if (end) end.current = false;
    }
    if (state.seen !== null && Math.abs(scroller.scrollTop - state.seen) > 1 && state.anchor) state.anchor.pinned = false;
    // Until somebody scrolls, a row that was chosen stays in view, whatever the rows around it measure.
    if (comes || (state.anchor?.pinned && state.anchor.key === wanted && heights.at.has(wanted))) {
      const place = heights.at.get(wanted), top = start() + heights.top(place) - above, bottom = top + above + heights.of(place);
      if (!comes) scrollTo(start() + heights.top(place) + state.anchor.over - above);
      if (top < scroller.scrollTop) scrollTo(top);
      else if (bottom > scroller.scrollTop + scroller.clientHeight) scrollTo(Math.min(top, bottom - scroller.clientHeight));
      else state.own = state.seen = scroller.scrollTop;
      state.anchor = { key: wanted, over: scroller.scrollTop - top, pinned: true };
      note();
    } else if (end?.current) scrollTo(scroller.scrollHeight);
    else if (state.seen !== null && Math.abs(scroller.scrollTop - state.seen) > 1) keep(); // scrolled, and not told of it yet
    else if (state.anchor) {
      const place = heights.at.get(state.anchor.key), want = place === undefined ? null : start() + heights.top(place) + state.anchor.over - above;
      if (want === null) keep();
      else if (Math.abs(scroller.scrollTop - want) > 1) scrollTo(want);
    }
    settle();
  });

  const [from, to] = [Math.min(state.drawn[0], keys.length), Math.min(state.drawn[1], keys.length)], shown = [];
  for (let n = from; n < to; n++) shown.push(n);
  for (const key of [wanted, state.focus]) {
    const n = key === null ? undefined : heights.at.get(key);
    if (n !== undefined && !shown.includes(n)) shown.push(n);
  }
  shown.sort((a, b) => a - b);
  const made = new Map();
  // A row that stands where it stood is not drawn anew.
  for (const n of shown) {
    const key = keys[n], top = heights.top(n), before = state.made.get(key);
    if (before && before.n === n && before.top === top && before.count === keys.length && before.more === more) { made.set(key, before); continue; }
    if (!state.refs.has(key)) state.refs.set(key, (element) => {
      const known = state.elements.get(key);
      if (known && known !== element) { state.watch?.unobserve(known); state.elements.delete(key); }
      if (element && known !== element) { state.elements.set(key, element); state.fresh.add(element); state.watch?.observe(element); }
      if (!element) state.refs.delete(key);
    });
    const at = { ref: state.refs.get(key), "data-row": key, style: { position: "absolute", insetInline: 0, top: 0, transform: `translateY(${top}px)` } };
    made.set(key, { n, top, count: keys.length, more, drawn: html`<${Row} key=${key} id=${key} index=${n} count=${keys.length} at=${at} ...${more} />` });
  }
  state.made = made;
  return html`<div ref=${space} role="presentation" class="space" style=${{ height: `${heights.total}px` }}>${[...made.values()].map((one) => one.drawn)}</div>`;
}
