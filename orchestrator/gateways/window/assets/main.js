// The window: signs in, draws the shell, and shows the page that the address names.
import { render } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { effect, signal } from "@preact/signals";
import { heardAtMs, line, notices, readState, serverNow, session, signIn, storeAway, now } from "./store.js";
import { plain } from "./text.js";
import { clock, Glyph, go, html, Key, Link, PAGES, place, span, title, Words } from "./parts.js";
import { bind, overlay } from "./keys.js";
import * as needs from "./needs.js";
import * as trees from "./trees.js";
import * as calls from "./calls.js";

// A code in the address is used once, and must not stay in the history: it is taken out before anything else.
const code = new URLSearchParams(location.hash.slice(1)).get("c");
if (code) history.replaceState(null, "", location.pathname + location.search);

// ── title and icon ───────────────────────────────────────────────────────────────────────────────

const icon = document.querySelector("link[rel=icon]");
const NAMES = { needs: "", fleet: "Fleet · ", tree: "Tree · ", workers: "Workers · ", spend: "Spend · " };
effect(() => {
  const waiting = calls.count.value;
  document.title = `${waiting ? `(${waiting}) ` : ""}${NAMES[place.value.page] ?? ""}Dendro`;
  const file = new URL(waiting ? "icon-dot.svg" : "icon.svg", import.meta.url).href;
  if (icon.href !== file) icon.href = file;
});

// ── shell ────────────────────────────────────────────────────────────────────────────────────────

const ICONS = {
  needs: "M8 2.2a4 4 0 0 0-4 4v2.6L2.8 11.2h10.4L12 8.8V6.2a4 4 0 0 0-4-4ZM6.6 13.4a1.5 1.5 0 0 0 2.8 0",
  fleet: "M2.5 4h11M2.5 8h11M2.5 12h7",
  workers: "M2.5 3.5h11v5h-11zM5 12.5h6M8 8.5v4",
  spend: "M2.5 13V9M6.2 13V5.5M9.8 13V8M13.5 13V3",
};
const LINES = { live: "live", lost: "lost", opening: "…" };

function Rail() {
  const { page, tree } = place.value, who = session.value;
  return html`<nav class="rail" aria-label="Main">
    <div class="brand"><img src=${new URL("icon.svg", import.meta.url).href} width="22" height="22" alt="" /><strong>Dendro</strong><span class="conn ${line.value}" data-testid="connection">${LINES[line.value]}</span></div>
    <button class="find" onClick=${() => { overlay.value = "palette"; }}><span>Find or do…</span><${Key} k="⌘K" /></button>
    ${PAGES.map(([to, name, words, keys]) => html`<${Link} to=${to} class="nav ${page === name ? "here" : ""}" aria-current=${page === name ? "page" : undefined} data-testid=${`nav-${words.toLowerCase().replace(" ", "-")}`}><svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d=${ICONS[name]} /></svg><span>${words}</span>${name === "needs" && needs.count.value ? html`<b class="badge" data-testid="needs-count">${needs.count.value}</b>` : html`<span class="hint" aria-hidden="true">${keys}</span>`}<//>`)}
    <${Recent} here=${tree} />
    <div class="foot"><span class="avatar" aria-hidden="true">${[...(who.who ?? "")][0]}</span><span class="clip">${plain(who.who ?? "", 40)}<small>${plain([who.scope, who.namespace].filter(Boolean).join(" · "), 60)}</small>${who.scope === "read" ? html`<button class="more-scope" data-testid="more-scope" onClick=${() => { overlay.value = "settings"; }}>how to do more</button>` : null}</span><button class="quiet" aria-label="Settings" data-testid="settings-open" onClick=${() => { overlay.value = "settings"; }}>⋯</button><button class="quiet" aria-label="Keys" onClick=${() => { overlay.value = "keys"; }}>?</button></div>
  </nav>`;
}
function Recent({ here }) {
  const rows = trees.busy.value;
  if (!rows.length) return html`<div class="recent" />`;
  return html`<h2>Trees at work</h2><div class="recent">${rows.map((one) => html`<${Link} key=${one.treeId} to=${`/tree/${one.treeId}`} class="tree-link ${here === one.treeId ? "here" : ""}"><${Glyph} state=${one.state} /><span><${Words} text=${title(one)} most=${80} /></span><//>`)}</div>`;
}
function Tabs() {
  const { page } = place.value, last = trees.busy.value[0];
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

// ── parts that are loaded behind the first page ──────────────────────────────────────────────────

// A part of its own file: loaded when it is first shown, or before, once the first page stands.
const parts = new Map(); // file → its module, or the error of loading it
function later(file, name, meanwhile = null) {
  if (!parts.has(file)) parts.set(file, signal(null));
  const found = parts.get(file);
  const Later = (props) => {
    useEffect(() => { load(file); }, []);
    const { module, error } = found.value ?? {};
    if (error) return html`<main class="empty"><div><h1>This part cannot be loaded</h1><p>The server is away, or it serves a newer window by now.</p><p><button onClick=${() => location.reload()}>Reload</button></p></div></main>`;
    return module ? html`<${module[name]} ...${props} />` : meanwhile;
  };
  Later.ready = () => Boolean(found.value?.module);
  return Later;
}
function load(file) {
  const found = parts.get(file);
  return found.peek()?.module ? null : import(file).then((module) => { found.value = { module }; }, (error) => { found.value = { error }; });
}

// ── overlays ─────────────────────────────────────────────────────────────────────────────────────

const OVERLAYS = {
  palette: ["Find or do", later("./overlays.js", "Palette")], keys: ["Keys", later("./overlays.js", "Keys")], settings: ["Settings", later("./overlays.js", "Settings")],
  stop: ["Interrupt all", later("./treeacts.js", "InterruptAll")], about: ["This tree", later("./treeacts.js", "TreeMenu")],
  tree: ["New tree", later("./fleet.js", "NewTree")], budget: ["Add to the budget", later("./tree.js", "AddBudget")], cancel: ["Cancel", later("./tree.js", "Cancel")], fork: ["Fork from here", later("./past.js", "Fork")],
};
function Overlay() {
  const box = useRef(), before = useRef(null), which = overlay.value;
  const Inside = OVERLAYS[which]?.[1], ready = Inside?.ready();
  useLayoutEffect(() => {
    if (!which) { before.current?.focus?.(); before.current = null; return; }
    before.current ??= document.activeElement;
    (box.current?.querySelector("textarea, input, select, button") ?? box.current)?.focus();
  }, [which, ready]);
  if (!which) return null;
  const close = () => { overlay.value = ""; };
  // Tab stays inside, Escape leaves.
  const onKey = (event) => {
    if (event.key === "Escape") { event.stopPropagation(); close(); return; }
    if (event.key !== "Tab") return;
    const all = [...box.current.querySelectorAll("textarea, input, select, button, a, [tabindex='0']")].filter((one) => !one.disabled);
    const edge = event.shiftKey ? all[0] : all.at(-1);
    if (document.activeElement === edge || document.activeElement === box.current) { event.preventDefault(); (event.shiftKey ? all.at(-1) : all[0])?.focus(); }
  };
  return html`<div class="veil" onClick=${close} onKeyDown=${onKey}><div class="sheet ${which}" role="dialog" aria-modal="true" aria-label=${OVERLAYS[which][0]} tabindex="-1" ref=${box} onClick=${(event) => event.stopPropagation()}><${Inside} close=${close} /></div></div>`;
}

// ── the window ───────────────────────────────────────────────────────────────────────────────────

const NOTHING = html`<main />`;
const Pages = { needs: needs.Needs, fleet: later("./fleet.js", "Fleet", NOTHING), tree: later("./tree.js", "Tree", NOTHING), workers: later("./workers.js", "Workers", NOTHING), spend: later("./spend.js", "Spend", NOTHING) };
const Other = () => html`<main class="empty"><div><h1>There is no such page</h1><p><${Link} to="/" class="under">Needs you<//></p></div></main>`;

function Window() {
  useLayoutEffect(() => bind({
    "g n": () => go("/"), "g f": () => go("/fleet"), "g w": () => go("/workers"), "g s": () => go("/spend"),
    "$mod+k": (event) => { event.preventDefault(); if (session.peek().state === "in") overlay.value = overlay.peek() === "palette" ? "" : "palette"; },
    Escape: () => {}, "?": () => { overlay.value = "keys"; },
  }), []);
  const { state } = session.value;
  if (state === "out") return html`<div class="window bare"><${SignIn} /><${Notices} /></div>`;
  if (state === "starting") return html`<div class="window bare"><main class="empty"><div class="late-shown"><p>${session.value.why || "Dendro"}</p></div></main></div>`;
  const Page = Pages[place.value.page] ?? Other;
  return html`<div class="window"><${Rail} /><div class="bars"><${Bars} /></div><${Page} /><${Tabs} /><${Notices} /><${Overlay} /></div>`;
}

// The page of this address comes at once, beside the sign-in.
for (const file of { fleet: ["./fleet.js"], tree: ["./tree.js"], workers: ["./workers.js"] }[place.peek().page] ?? []) load(file);

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
effect(() => { if (session.value.state === "in") { needs.begin(); trees.begin(); calls.begin(); } else overlay.value = ""; });
effect(() => { if (session.value.state === "in" || session.value.state === "out") queueMicrotask(() => {
  if (performance.getEntriesByName("window-ready").length) return;
  performance.mark("window-ready");
  // The rest comes while nothing else is to be done: a page is there when it is asked for, also from a server that was replaced since.
  (self.requestIdleCallback ?? setTimeout)(async () => { performance.mark("window-rest"); for (const file of parts.keys()) await load(file); });
}); });
render(html`<${Window} />`, document.getElementById("window"));
start();
