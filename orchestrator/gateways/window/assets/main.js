// The window: signs in, draws the shell, and shows the page that the address names.
import { render } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { effect, signal } from "@preact/signals";
import { api, heardAtMs, line, notices, readState, serverNow, session, signIn, signOut, storeAway, now } from "./store.js";
import { plain } from "./text.js";
import { agentName, clock, Glyph, go, html, Key, Link, phone, place, span, STATES, title, Words } from "./parts.js";
import { bind, overlay, setSingleKeys, singleKeys, TABLE } from "./keys.js";
import * as needs from "./needs.js";
import * as fleet from "./fleet.js";
import { AddBudget, Cancel, Tree } from "./tree.js";

// A code in the address is used once, and must not stay in the history: it is taken out before anything else.
const code = new URLSearchParams(location.hash.slice(1)).get("c");
if (code) history.replaceState(null, "", location.pathname + location.search);

// ── light and dark ───────────────────────────────────────────────────────────────────────────────

const SCHEME = "dendro.scheme";
const scheme = signal(localStorage.getItem(SCHEME) ?? "system");
effect(() => {
  if (scheme.value === "system") { localStorage.removeItem(SCHEME); delete document.documentElement.dataset.scheme; }
  else { localStorage.setItem(SCHEME, scheme.value); document.documentElement.dataset.scheme = scheme.value; }
});

// ── title and icon ───────────────────────────────────────────────────────────────────────────────

const icon = document.querySelector("link[rel=icon]");
const NAMES = { needs: "", fleet: "Fleet · ", tree: "Tree · ", workers: "Workers · ", spend: "Spend · " };
effect(() => {
  const waiting = session.value.state === "in" ? needs.count.value : 0;
  document.title = `${waiting ? `(${waiting}) ` : ""}${NAMES[place.value.page] ?? ""}Dendro`;
  const file = new URL(waiting ? "icon-dot.svg" : "icon.svg", import.meta.url).href;
  if (icon.href !== file) icon.href = file;
});

// ── shell ────────────────────────────────────────────────────────────────────────────────────────

const ICONS = {
  needs: "M8 2.2a4 4 0 0 0-4 4v2.6L2.8 11.2h10.4L12 8.8V6.2a4 4 0 0 0-4-4ZM6.6 13.4a1.5 1.5 0 0 0 2.8 0",
  fleet: "M2.5 4h11M2.5 8h11M2.5 12h7",
  workers: "M2.5 3.5h11v5h-11zM5 12.5h6M8 8.5v4",
};
const PAGES = [["/", "needs", "Needs you", "g n"], ["/fleet", "fleet", "Fleet", "g f"], ["/workers", "workers", "Workers", "g w"]];
const LINES = { live: "live", lost: "lost", opening: "…" };

function Rail() {
  const { page, tree } = place.value, who = session.value;
  return html`<nav class="rail" aria-label="Main">
    <div class="brand"><img src=${new URL("icon.svg", import.meta.url).href} width="22" height="22" alt="" /><strong>Dendro</strong><span class="conn ${line.value}" data-testid="connection">${LINES[line.value]}</span></div>
    <button class="find" onClick=${() => { overlay.value = "palette"; }}><span>Find or do…</span><${Key} k="⌘K" /></button>
    ${PAGES.map(([to, name, words, keys]) => html`<${Link} to=${to} class="nav ${page === name ? "here" : ""}" aria-current=${page === name ? "page" : undefined} data-testid=${`nav-${words.toLowerCase().replace(" ", "-")}`}><svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d=${ICONS[name]} /></svg><span>${words}</span>${name === "needs" && needs.count.value ? html`<b class="badge" data-testid="needs-count">${needs.count.value}</b>` : html`<span class="hint" aria-hidden="true">${keys}</span>`}<//>`)}
    <${Recent} here=${tree} />
    <div class="foot"><span class="avatar" aria-hidden="true">${[...(who.who ?? "")][0]}</span><span class="clip">${plain(who.who ?? "", 40)}<small>${plain([who.scope, who.namespace].filter(Boolean).join(" · "), 60)}</small></span><button class="quiet" aria-label="Settings" data-testid="settings-open" onClick=${() => { overlay.value = "settings"; }}>⋯</button><button class="quiet" aria-label="Keys" onClick=${() => { overlay.value = "keys"; }}>?</button></div>
  </nav>`;
}
function Recent({ here }) {
  const rows = fleet.busy.value;
  if (!rows.length) return html`<div class="recent" />`;
  return html`<h2>Trees at work</h2><div class="recent">${rows.map((one) => html`<${Link} key=${one.treeId} to=${`/tree/${one.treeId}`} class="tree-link ${here === one.treeId ? "here" : ""}"><${Glyph} state=${one.state} /><span><${Words} text=${title(one)} most=${80} /></span><//>`)}</div>`;
}
function Tabs() {
  const { page } = place.value, last = fleet.busy.value[0];
  return html`<nav class="tabbar" aria-label="Pages" data-testid="tabbar"><${Link} to="/" class=${page === "needs" ? "on" : ""} aria-current=${page === "needs" ? "page" : undefined}>Needs you${needs.count.value ? html`<b class="badge">${needs.count.value}</b>` : null}<//><${Link} to="/fleet" class=${page === "fleet" ? "on" : ""} aria-current=${page === "fleet" ? "page" : undefined}>Fleet<//>${last || page === "tree" ? html`<${Link} to=${page === "tree" ? place.value.path : `/tree/${last.treeId}`} class=${page === "tree" ? "on" : ""}>Tree<//>` : html`<span class="off">Tree</span>`}<button onClick=${() => { overlay.value = "settings"; }}>More</button></nav>`;
}

// What is wrong with the line or the store: at once by a word at the name, after 12 s by this bar.
function Bars() {
  const quiet = (now.value - (heardAtMs.value + serverNow() - Date.now())) / 1000;
  return html`${line.value === "lost" && quiet >= 12 ? html`<div class="bar" role="status" data-testid="lost-connection">No word from the server for ${span(quiet)}. What you see is from ${clock(heardAtMs.value)}; nothing is sent until it is back. Trying again…</div>` : null}
    ${storeAway.value ? html`<div class="bar" role="status" data-testid="store-away">Dendro’s store does not answer. What you see stays; nothing can be changed until it is back.</div>` : null}`;
}

const Notices = () => html`<div class="notices" role="status" aria-live="polite">${notices.value.map((one) => html`<div key=${one.id} class="notice ${one.bad ? "bad" : ""}" data-testid="notice"><span>${one.text}</span>${one.act ? html`<button class="quiet" onClick=${() => { one.act[1](); one.drop(); }}>${one.act[0]}${one.act[2] ? html` <${Key} k=${one.act[2]} />` : null}</button>` : null}<button class="quiet close" aria-label="Dismiss" onClick=${one.drop}>×</button></div>`)}</div>`;

// ── sign-in ──────────────────────────────────────────────────────────────────────────────────────

function SignIn() {
  const [text, setText] = useState(""), [why, setWhy] = useState(session.value.why), [busy, setBusy] = useState(false), box = useRef();
  useLayoutEffect(() => { box.current?.focus(); }, []);
  const submit = async (event) => {
    event.preventDefault();
    // As the field has it: a person may be faster than the next drawing.
    const given = box.current.value.trim(), [, inAddress] = /#c=([^&\s]+)/.exec(given) ?? [];
    if (!given) return;
    setBusy(true);
    setWhy("");
    try { await signIn(inAddress ? { code: inAddress } : given.startsWith("dendro_") ? { token: given } : { code: given }); } catch (error) { setWhy(error.message); setBusy(false); }
  };
  return html`<main class="sign-in" data-testid="sign-in"><form onSubmit=${submit}>
    <img src=${new URL("icon.svg", import.meta.url).href} width="44" height="44" alt="" /><h1>Sign in to Dendro</h1>
    <p>Run <code>dendro token code</code> on the machine of this server and open the address that it prints. Or paste a code or a token here.</p>
    ${why ? html`<p class="error" role="alert">${why}</p>` : null}
    <label><span class="hidden">Code or token</span><input ref=${box} type="password" autocomplete="off" data-testid="token" placeholder="Code or token" value=${text} onInput=${(event) => setText(event.target.value)} /></label>
    <button class="primary" disabled=${busy || !text.trim()}>Sign in</button>
  </form></main>`;
}

// ── overlays ─────────────────────────────────────────────────────────────────────────────────────

function Overlay() {
  const box = useRef(), before = useRef(null), which = overlay.value;
  useLayoutEffect(() => {
    if (!which) { before.current?.focus?.(); before.current = null; return; }
    before.current ??= document.activeElement;
    box.current?.querySelector("textarea, input, select, button")?.focus();
  }, [which]);
  if (!which) return null;
  const close = () => { overlay.value = ""; };
  // Tab stays inside, Escape leaves.
  const onKey = (event) => {
    if (event.key === "Escape") { event.stopPropagation(); close(); return; }
    if (event.key !== "Tab") return;
    const all = [...box.current.querySelectorAll("textarea, input, select, button, a, [tabindex='0']")].filter((one) => !one.disabled);
    const edge = event.shiftKey ? all[0] : all.at(-1);
    if (document.activeElement === edge) { event.preventDefault(); (event.shiftKey ? all.at(-1) : all[0])?.focus(); }
  };
  const Inside = { palette: Palette, keys: Keys, settings: Settings, tree: fleet.NewTree, budget: AddBudget, cancel: Cancel }[which];
  return html`<div class="veil" onClick=${close} onKeyDown=${onKey}><div class="sheet ${which}" role="dialog" aria-modal="true" aria-label=${{ palette: "Find or do", keys: "Keys", settings: "Settings", tree: "New tree", budget: "Add to the budget", cancel: "Cancel" }[which]} ref=${box} onClick=${(event) => event.stopPropagation()}><${Inside} close=${close} /></div></div>`;
}
const Keys = ({ close }) => html`<div class="keys" data-testid="keys">${TABLE.map(([name, keys]) => html`<section key=${name}><h3>${name}</h3>${keys.map(([k, what]) => html`<div key=${k}><kbd>${k}</kbd>${what}</div>`)}</section>`)}<footer><label><input type="checkbox" checked=${singleKeys.value} onChange=${(event) => setSingleKeys(event.target.checked)} /> Single letters act</label><button class="mini" onClick=${close}>Close <${Key} k="Esc" /></button></footer></div>`;
function Settings({ close }) {
  const who = session.value;
  return html`<div class="settings" data-testid="settings"><h3>${plain(who.who ?? "", 60)}</h3><p class="faint">${plain([who.scope, who.namespace, who.version && `Dendro ${who.version}`].filter(Boolean).join(" · "), 120)}</p>
    <fieldset><legend>Colours</legend>${["system", "light", "dark"].map((one) => html`<label key=${one} class="chip ${scheme.value === one ? "on" : ""}"><input type="radio" name="scheme" class="hidden" checked=${scheme.value === one} onChange=${() => { scheme.value = one; }} />${one}</label>`)}</fieldset>
    <label class="row"><input type="checkbox" checked=${singleKeys.value} onChange=${(event) => setSingleKeys(event.target.checked)} /> Single letters act (Allow by “a”)</label>
    ${who.scope === "read" ? html`<p class="faint">You may read. Who may answer signs in with a code of <code>dendro token code --scope approve</code>.</p>` : null}
    <footer><button onClick=${() => { close(); signOut(); }} data-testid="sign-out">Sign out</button><button class="quiet" onClick=${() => { overlay.value = "keys"; }}>Keys</button>${phone.value ? html`<button class="quiet" onClick=${() => { close(); go("/workers"); }}>Workers</button>` : null}<span class="grow" /><button onClick=${close}>Close</button></footer></div>`;
}

// Finds pages, trees and requests, and does what the page can do.
function Palette({ close }) {
  const [text, setText] = useState(""), [at, setAt] = useState(0), [fuzzy, setFuzzy] = useState(null), [said, setSaid] = useState([]);
  useEffect(() => { import("ufuzzy").then(({ default: uFuzzy }) => setFuzzy(() => new uFuzzy({ intraMode: 1 }))); }, []);
  // Words that were said are found by the server.
  useEffect(() => {
    if (text.trim().length < 3) { setSaid([]); return undefined; }
    const asks = new AbortController(), timer = setTimeout(() => api("thread/search", { searchTerm: text.trim(), limit: 5 }, { signal: asks.signal }).then(({ data }) => setSaid(data.map(({ thread, snippet }) => [thread.name || thread.preview || thread.id, "", snippet ? plain(snippet, 60) : "session", () => go(`/tree/${thread.sessionId}`), `said ${thread.id}`])), () => {}), 150);
    return () => { clearTimeout(timer); asks.abort(); };
  }, [text]);
  const all = [
    ...needs.openRequests().map((one) => [`${agentName(one)}: ${one.subject}`, "needs", "asks you", () => go(`/?request=${encodeURIComponent(one.requestId)}`), one.requestId]),
    ...fleet.rowsNow().map((one) => [title(one), one.state, `tree · ${(STATES[one.state] ?? "").toLowerCase()}`, () => go(`/tree/${one.treeId}`), one.treeId]),
    ...(place.value.page === "needs" ? needs.acts() : []).map(([words, act]) => [words, "", "do", act, words]),
    ...fleet.acts().map(([words, act]) => [words, "", "do", act, words]),
    ...PAGES.map(([to, , words]) => [words, "", "page", () => go(to), to]),
    ["Settings", "", "do", () => { overlay.value = "settings"; }, "settings"], ["Keys", "", "do", () => { overlay.value = "keys"; }, "keys"], ["Sign out", "", "do", signOut, "out"],
  ];
  const names = all.map(([name]) => name), term = text.trim();
  let found = all;
  if (term) {
    const hits = fuzzy?.search(names, term, 1) ?? null;
    const ranked = hits?.[2] ? hits[2].map((n) => hits[1].idx[n]) : hits?.[0] ?? names.flatMap((name, n) => (name.toLowerCase().includes(term.toLowerCase()) ? [n] : []));
    found = ranked.map((n) => all[n]);
  }
  found = [...found.slice(0, 9), ...said.filter((one) => !found.some((each) => each[4] === one[4])).slice(0, 3)];
  const on = Math.min(at, found.length - 1);
  const run = (one) => { close(); one[3](); };
  const onKey = (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); setAt(Math.max(0, Math.min(found.length - 1, on + (event.key === "ArrowDown" ? 1 : -1)))); } else if (event.key === "Enter" && found[on]) { event.preventDefault(); run(found[on]); }
  };
  return html`<div data-testid="palette"><input value=${text} role="combobox" aria-expanded="true" aria-controls="found" aria-activedescendant=${found.length ? `found-${on}` : undefined} aria-label="Find or do" placeholder="Find or do…" autocomplete="off" spellcheck=${false} onInput=${(event) => { setText(event.target.value); setAt(0); }} onKeyDown=${onKey} />
    <ul id="found" role="listbox" aria-label="Found">${found.map((one, n) => html`<li key=${one[4]} id=${`found-${n}`} role="option" aria-selected=${n === on} class=${n === on ? "on" : ""} data-testid="palette-item" onClick=${() => run(one)} onMouseMove=${() => n !== on && setAt(n)}>${one[1] ? html`<${Glyph} state=${one[1]} />` : html`<i class="glyph act" aria-hidden="true">›</i>`}<span class="clip"><${Words} text=${one[0]} most=${120} /></span><small>${plain(one[2], 60)}</small></li>`)}</ul>${found.length ? null : html`<p class="nothing">Nothing is called so.</p>`}</div>`;
}

// ── the window ───────────────────────────────────────────────────────────────────────────────────

// A page that is loaded when it is first opened; while it comes, its place is empty.
function later(load) {
  const found = signal(null);
  return () => {
    useEffect(() => { if (!found.peek()) load().then((page) => { found.value = { Page: page }; }); }, []);
    return found.value ? html`<${found.value.Page} />` : html`<main />`;
  };
}
const Pages = { needs: needs.Needs, fleet: fleet.Fleet, tree: Tree, workers: later(() => import("./workers.js").then((page) => page.Workers)) };
const Other = () => html`<main class="empty"><div><h1>There is no such page</h1><p><${Link} to="/" class="under">Needs you<//></p></div></main>`;

function Window() {
  useLayoutEffect(() => bind({
    "g n": () => go("/"), "g f": () => go("/fleet"), "g w": () => go("/workers"),
    "$mod+k": (event) => { event.preventDefault(); if (session.peek().state === "in") overlay.value = overlay.peek() === "palette" ? "" : "palette"; },
    Escape: () => {}, "?": () => { overlay.value = "keys"; },
  }), []);
  const { state } = session.value;
  if (state === "out") return html`<div class="window bare"><${SignIn} /><${Notices} /></div>`;
  if (state === "starting") return html`<div class="window bare"><main class="empty"><div class="late-shown"><p>${session.value.why || "Dendro"}</p></div></main></div>`;
  const Page = Pages[place.value.page] ?? Other;
  return html`<div class="window"><${Rail} /><div class="bars"><${Bars} /></div><${Page} /><${Tabs} /><${Notices} /><${Overlay} /></div>`;
}

let tries = 0;
// A code is tried again while nobody has answered it: taken or refused, it is of no more use.
const proof = { code };
async function start() {
  try {
    if (proof.code && !proof.taken) await signIn(proof).catch((error) => { if ([0, 429, 500, 503].includes(error.status)) throw error; proof.taken = true; session.value = { state: "out", why: error.message }; });
    if (session.peek().state !== "out" && session.peek().state !== "in") await readState();
  } catch (error) {
    if (error.status === 401) return;
    tries += 1;
    session.value = { state: "starting", why: error.status === 0 ? "The server does not answer; trying again…" : `${error.message}; trying again…` };
    setTimeout(start, Math.min(10_000, 500 * 2 ** tries));
  }
}
effect(() => { if (session.value.state === "in") { needs.begin(); fleet.begin(); } else overlay.value = ""; });
effect(() => { if (session.value.state === "in" || session.value.state === "out") queueMicrotask(() => { if (!performance.getEntriesByName("window-ready").length) performance.mark("window-ready"); }); });
render(html`<${Window} />`, document.getElementById("window"));
start();
