// What opens over a page by a key or a button: the palette, the list of keys, the settings.
import { useEffect, useState } from "preact/hooks";
import { api, session, signOut } from "./store.js";
import { plain } from "./text.js";
import { agentName, Glyph, go, html, Key, PAGES, phone, place, scheme, STATES, title, Words } from "./parts.js";
import { overlay, setSingleKeys, singleKeys, TABLE } from "./keys.js";
import * as calls from "./calls.js";
import * as needs from "./needs.js";
import * as ofTree from "./treeacts.js";
import * as trees from "./trees.js";

export const Keys = ({ close }) => html`<div class="keys" data-testid="keys">${TABLE.map(([name, keys]) => html`<section key=${name}><h3>${name}</h3>${keys.map(([k, what]) => html`<div key=${k}><kbd>${k}</kbd>${what}</div>`)}</section>`)}<footer><label class="row"><input type="checkbox" checked=${singleKeys.value} onChange=${(event) => setSingleKeys(event.target.checked)} /> Single letters act</label><button class="mini" onClick=${close}>Close <${Key} k="Esc" /></button></footer></div>`;
export function Settings({ close }) {
  const who = session.value;
  return html`<div class="settings" data-testid="settings"><h3>${plain(who.who ?? "", 60)}</h3><p class="faint">${plain([who.scope, who.namespace, who.version && `Dendro ${who.version}`].filter(Boolean).join(" · "), 120)}</p>
    <fieldset><legend>Colours</legend>${["system", "light", "dark"].map((one) => html`<label key=${one} class="chip ${scheme.value === one ? "on" : ""}"><input type="radio" name="scheme" class="hidden" checked=${scheme.value === one} onChange=${() => { scheme.value = one; }} />${one}</label>`)}</fieldset>
    <${calls.Settings} />
    <label class="row"><input type="checkbox" checked=${singleKeys.value} onChange=${(event) => setSingleKeys(event.target.checked)} /> Single letters act (Allow by “a”)</label>
    ${who.scope === "read" ? html`<p class="faint">You may read. Who may answer signs in with a code of <code>dendro token code --scope approve</code>.</p>` : null}
    <footer><button onClick=${() => { close(); signOut(); }} data-testid="sign-out">Sign out</button><button class="quiet" onClick=${() => { overlay.value = "keys"; }}>Keys</button>${phone.value ? html`<button class="quiet" onClick=${() => { close(); go("/workers"); }}>Workers</button><button class="quiet" onClick=${() => { close(); go("/spend"); }}>Spend</button>` : null}<span class="grow" /><button onClick=${close}>Close</button></footer></div>`;
}

// Finds pages, trees and requests, and does what the page can do.
export function Palette({ close }) {
  const [text, setText] = useState(""), [at, setAt] = useState(null), [fuzzy, setFuzzy] = useState(null), [said, setSaid] = useState([]), [files, setFiles] = useState([]);
  useEffect(() => { import("ufuzzy").then(({ default: uFuzzy }) => setFuzzy(() => new uFuzzy({ intraMode: 1 }))); }, []);
  useEffect(() => {
    let open = true;
    if (place.peek().page === "tree" && ofTree.hasFiles()) ofTree.files().then((found) => { if (open) setFiles(found); }, () => {});
    return () => { open = false; };
  }, []);
  // Words that were said are found by the server.
  useEffect(() => {
    if (text.trim().length < 3) { setSaid([]); return undefined; }
    const asks = new AbortController(), timer = setTimeout(() => api("thread/search", { searchTerm: text.trim(), limit: 5 }, { signal: asks.signal }).then(({ data }) => setSaid(data.map(({ thread, snippet }) => [thread.name || thread.preview || thread.id, "", snippet ? plain(snippet, 60) : "session", () => go(`/tree/${thread.sessionId}`), `said ${thread.id}`])), () => {}), 150);
    return () => { clearTimeout(timer); asks.abort(); };
  }, [text]);
  const all = [
    ...needs.openRequests().map((one) => [`${agentName(one)}: ${one.subject}`, "needs", "asks you", () => go(`/?request=${encodeURIComponent(one.requestId)}`), one.requestId]),
    ...(place.value.page === "tree" ? [...ofTree.acts().map(([words, act]) => [words, "", "do", act, words]), ...ofTree.agents(), ...files] : []),
    ...trees.rowsNow().map((one) => [title(one), one.state, `tree · ${(STATES[one.state] ?? "").toLowerCase()}`, () => go(`/tree/${one.treeId}`), one.treeId]),
    ...(place.value.page === "needs" ? needs.acts() : []).map(([words, act]) => [words, "", "do", act, words]),
    ...trees.acts().map(([words, act]) => [words, "", "do", act, words]),
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
  // What somebody has gone to stays marked, wherever it stands when more is found.
  const on = Math.max(0, found.findIndex((one) => one[4] === at));
  const run = (one) => { close(); one[3](); };
  const onKey = (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); setAt(found[Math.max(0, Math.min(found.length - 1, on + (event.key === "ArrowDown" ? 1 : -1)))]?.[4] ?? null); } else if (event.key === "Enter" && found[on]) { event.preventDefault(); run(found[on]); }
  };
  return html`<div data-testid="palette"><input value=${text} role="combobox" aria-expanded="true" aria-controls="found" aria-activedescendant=${found.length ? `found-${on}` : undefined} aria-label="Find or do" placeholder="Find or do…" autocomplete="off" spellcheck=${false} onInput=${(event) => { setText(event.target.value); setAt(null); }} onKeyDown=${onKey} />
    <ul id="found" role="listbox" aria-label="Found">${found.map((one, n) => html`<li key=${one[4]} id=${`found-${n}`} role="option" aria-selected=${n === on} class=${n === on ? "on" : ""} data-testid="palette-item" onClick=${() => run(one)} onMouseMove=${() => n !== on && setAt(one[4])}>${one[1] ? html`<${Glyph} state=${one[1]} />` : html`<i class="glyph act" aria-hidden="true">›</i>`}<span class="clip"><${Words} text=${one[0]} most=${120} /></span><small>${plain(one[2], 60)}</small></li>`)}</ul>${found.length ? null : html`<p class="nothing">Nothing is called so.</p>`}</div>`;
}
