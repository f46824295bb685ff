// Keys: what each page does by one letter, and the list of them that `?` shows.
import { signal } from "@preact/signals";
import { tinykeys } from "tinykeys";

const OFF = "dendro.no-single-keys";
export const singleKeys = signal(localStorage.getItem(OFF) === null);
export function setSingleKeys(on) {
  singleKeys.value = on;
  if (on) localStorage.removeItem(OFF); else localStorage.setItem(OFF, "1");
}
export const overlay = signal(""); // palette, keys, settings, or a question of a page

const typing = (event) => event.target instanceof Element && event.target.closest("input, textarea, select, [contenteditable]") !== null;

// Binds keys while a page is shown: `{key: act}`; the answer unbinds them. None acts while somebody types, or over
// an overlay; keys with ⌘ and Escape act always, and Escape closes an overlay first.
export function bind(acts) {
  const guarded = Object.fromEntries(Object.entries(acts).map(([key, act]) => [key, (event) => {
    if (event.defaultPrevented) return;
    if (key === "Escape" && overlay.value) { event.preventDefault(); overlay.value = ""; return; }
    const always = key.includes("$mod") || key === "Escape";
    if (!always && (typing(event) || overlay.value || !singleKeys.value || event.defaultPrevented)) return;
    if (event.repeat && !["j", "k"].includes(key) && !key.includes("Arrow")) return;
    act(event);
  }]));
  // Each sequence by itself: one that fires leaves those behind it half pressed, and the next try of them would not count.
  const sequences = Object.keys(guarded).filter((key) => key.includes(" ")), rest = Object.fromEntries(Object.entries(guarded).filter(([key]) => !sequences.includes(key)));
  const ends = [rest, ...sequences.map((key) => ({ [key]: guarded[key] }))].map((some) => tinykeys(window, some, { ignore: () => false }));
  return () => { for (const end of ends) end(); };
}

export const TABLE = [
  ["Go", [["g n", "Needs you"], ["g f", "Fleet"], ["g w", "Workers"], ["g s", "Spend"], ["⌘K", "Find or do"], ["?", "keys"], ["Esc", "back, close"]]],
  ["In lists", [["j k", "down, up"], ["⏎", "open"], ["x", "select what is alike"], ["/", "filter"], ["⌘F", "find in a conversation"]]],
  ["Changes", [["] [", "file on, back"], ["v", "viewed"]]],
  ["Answers", [["a", "allow, approve"], ["s", "allow for the session"], ["d", "deny, reject"], ["i", "deny and stop"], ["r", "reply, answer"], ["z", "take back, within 5 s"]]],
  ["Tree", [["m", "message"], ["i", "interrupt"], ["c", "cancel…"], ["e", "rename"], ["n", "new tree (Fleet)"]]],
  ["Time", [["← →", "a mark back, on"], ["⇧← ⇧→", "an entry back, on"], ["Home", "the first entry"], ["End", "now"], ["=", "hold, compare"], ["f", "fork from there"]]],
];
