// Text of agents, which is hostile: it becomes text and elements of this page, never HTML, and nothing of it is fetched.
import { h } from "preact";

// ── characters that are not seen, or that make seen ones lie ─────────────────────────────────────

// Controls, bidi controls, characters without width, odd spaces, tags, variation selectors, private use.
const ODD = /[\u0000-\u0008\u000B-\u001F\u007F-\u00A0\u00AD\u034F\u061C\u115F\u1160\u1680\u17B4\u17B5\u180B-\u180F\u2000-\u200F\u2028-\u202F\u205F-\u206F\u2800\u3000\u3164\uD800-\uDFFF\uE000-\uF8FF\uFE00-\uFE0F\uFEFF\uFFA0\uFFF0-\uFFFB\u{1BCA0}-\u{1BCA3}\u{1D173}-\u{1D17A}\u{E0000}-\u{E0FFF}\u{F0000}-\u{10FFFF}]/u;
const EACH = new RegExp(`${ODD.source}|\\t| +(?=\\n|$)`, "gu");
const EACH_OF_LINE = new RegExp(`${EACH.source}|\\n`, "gu");
const name = (one) => `⟨U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;

// What joins emoji, and blanks of typesetting: shown in what is allowed or named, and left alone in messages.
const USUAL = new RegExp(`[\\u00A0\\u200D\\u202F\\u3000\\uFE0E\\uFE0F]|\\t| +(?=\\n|$)`, "u");

const MILD = { mild: true };

// The text with each such character as ⟨U+202E⟩, in an element of its own. `breaks: false` shows line breaks as marks;
// `mild` is for messages and output, in which nothing is allowed or named; `ends: false` is for a part of a line behind which more follows.
export function visible(text, { breaks = true, mild = false, ends = true } = {}) {
  const found = [], source = String(text ?? "");
  let from = 0;
  for (const hit of source.matchAll(breaks ? EACH : EACH_OF_LINE)) {
    if (mild && USUAL.test(hit[0])) continue;
    if (!ends && hit[0][0] === " " && hit.index + hit[0].length === source.length) continue;
    if (hit.index > from) found.push(source.slice(from, hit.index));
    if (hit[0] === "\n") found.push(h("span", { class: "newline", title: "a line break" }, "\\n"));
    else if (hit[0] === "\t") found.push(h("span", { class: "tab" }, "\t"));
    else if (hit[0][0] === " ") found.push(h("span", { class: "blank", title: "blanks at the end of a line" }, "·".repeat(hit[0].length)));
    else found.push(h("span", { class: "odd", title: "a character that is not seen" }, name(hit[0])));
    from = hit.index + hit[0].length;
  }
  if (from < source.length) found.push(source.slice(from));
  return found;
}

// A file's name that the server quotes as git does, because it has characters that are not plain: `"a\342\200\256b"`.
const ESCAPES = { a: 7, b: 8, t: 9, n: 10, v: 11, f: 12, r: 13 };
export function fileName(path) {
  if (!/^".*"$/s.test(path)) return path;
  const bytes = [], encoder = new TextEncoder();
  for (const [all, octal, letter] of path.slice(1, -1).matchAll(/\\([0-7]{3})|\\(.)|[^\\]/gsu)) {
    if (octal) bytes.push(Number.parseInt(octal, 8)); else bytes.push(...(letter ? (ESCAPES[letter] ? [ESCAPES[letter]] : encoder.encode(letter)) : encoder.encode(all)));
  }
  return new TextDecoder().decode(new Uint8Array(bytes));
}

// The same as a text, for titles of a window and labels of elements; bounded to 200 characters.
export function plain(text, most = 200) {
  const shown = String(text ?? "").slice(0, most * 4).replaceAll(/\s+/gu, " ").replaceAll(new RegExp(ODD.source, "gu"), name);
  return shown.length > most ? `${shown.slice(0, most - 1)}…` : shown;
}

// ── output of commands ───────────────────────────────────────────────────────────────────────────

const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
// eslint-disable-next-line no-control-regex
const ESCAPE = /\u001b\[([0-9;:]*)m|\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)|\u001b[[(][0-9;:?<=>!"'$#]*[ -/]*[@-~]?|\u001b[ -/]*[0-~]?|[\u0080-\u009F]|[\u0000-\u0008\u000B\u000C\u000E-\u001A\u001C-\u001F\u007F]/gu;

// Output of a command: eight colours and bold are kept, all other escapes are left out.
export function ansi(text) {
  const source = lastWritten(text), found = [];
  let from = 0, colour = "", bold = false;
  const put = (piece) => {
    if (!piece) return;
    const shown = visible(piece, MILD);
    if (colour || bold) found.push(h("span", { class: `${colour ? `ansi-${colour}` : ""}${bold ? " ansi-bold" : ""}` }, shown));
    else found.push(...shown);
  };
  for (const hit of source.matchAll(ESCAPE)) {
    put(source.slice(from, hit.index));
    from = hit.index + hit[0].length;
    if (hit[1] === undefined) continue;
    const codes = hit[1].split(/[;:]/).map(Number);
    for (let n = 0; n < codes.length; n++) {
      const code = codes[n];
      if (code === 0) { colour = ""; bold = false; }
      else if (code === 1) bold = true;
      else if (code === 22) bold = false;
      else if (code === 39) colour = "";
      else if (code >= 30 && code <= 37) colour = COLOURS[code - 30];
      else if (code >= 90 && code <= 97) colour = COLOURS[code - 90];
      else if (code === 38 || code === 48) n += codes[n + 1] === 5 ? 2 : codes[n + 1] === 2 ? 4 : 0;
    }
  }
  put(source.slice(from));
  return found;
}
// A line that was written over by `\r` shows what was written last, as a terminal does.
function lastWritten(text) {
  return String(text ?? "").replaceAll("\r\n", "\n").split("\n").map((row) => (row.includes("\r") ? row.split("\r").filter(Boolean).at(-1) ?? "" : row)).join("\n");
}

// ── Markdown ─────────────────────────────────────────────────────────────────────────────────────

const MOST_MARKDOWN = 200_000;
const TAGS = new Set(["p", "strong", "em", "s", "ul", "ol", "li", "blockquote", "hr", "br", "table", "thead", "tbody", "tr", "th", "td"]);
let parser = null, loading = null;

// Loads the parser; the first message of a page waits for it, and is shown as text until then.
export function loadMarkdown() {
  loading ??= import("markdown-it").then(({ default: MarkdownIt }) => { parser = new MarkdownIt({ html: false, linkify: true }); parser.validateLink = () => true; });
  return loading;
}
export const markdownReady = () => parser !== null;

// Markdown as elements. The parser's tokens become elements of a fixed list; no HTML is made anywhere.
export function markdown(text) {
  const source = String(text ?? "");
  if (parser === null || source.length > MOST_MARKDOWN) return h("div", { class: "md asis" }, visible(source, MILD));
  return h("div", { class: "md" }, elements(parser.parse(source, {})));
}
const host = (url) => { try { const { protocol, host: found } = new URL(url); return /^https?:$/.test(protocol) ? found : ""; } catch { return ""; } };

function elements(tokens) {
  const stack = [{ inner: [] }];
  for (const token of tokens) {
    const top = stack.at(-1).inner;
    if (token.type === "inline") top.push(...elements(token.children));
    else if (token.type === "text") top.push(...visible(token.content, MILD));
    else if (token.type === "softbreak") top.push("\n");
    else if (token.type === "code_inline") top.push(h("code", null, visible(token.content, MILD)));
    else if (token.type === "fence" || token.type === "code_block") top.push(h("pre", { tabindex: 0 }, h("code", null, visible(token.content.replace(/\n$/, ""), MILD))));
    else if (token.type === "image") top.push(h("span", { class: "named" }, `[image: ${plain(token.content || token.attrGet("src"))}]`));
    else if (token.nesting === 1) stack.push({ token, inner: [] });
    else if (token.nesting === -1) {
      const { token: opener, inner } = stack.pop(), out = stack.at(-1).inner;
      out.push(...closed(opener, inner));
    } else if (TAGS.has(token.tag)) top.push(h(token.tag));
    else top.push(...visible(token.content, MILD));
  }
  return stack[0].inner;
}
function closed(opener, inner) {
  if (opener.tag === "a") return [link(opener.attrGet("href") ?? "", inner)];
  if (opener.hidden) return inner;
  // Headings of a message are no headings of the page.
  if (/^h[1-6]$/.test(opener.tag)) return [h("p", { class: `head head${opener.tag[1]}` }, inner)];
  if (opener.tag === "table") return [h("div", { class: "wide", tabindex: 0 }, h("table", null, inner))];
  if (opener.tag === "ol" && /^\d{1,9}$/.test(opener.attrGet("start") ?? "")) return [h("ol", { start: Number(opener.attrGet("start")) }, inner)];
  return TAGS.has(opener.tag) ? [h(opener.tag, null, inner)] : inner;
}
function link(href, inner) {
  const where = host(href);
  if (!where) return h("span", null, inner, href ? h("span", { class: "host" }, ` (${plain(href)})`) : null);
  const isHref = inner.length === 1 && inner[0] === href;
  return h("a", { href, rel: "noopener noreferrer", target: "_blank" }, inner, isHref ? null : h("span", { class: "host" }, ` ${plain(where)}`));
}

// ── diffs ────────────────────────────────────────────────────────────────────────────────────────

const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)$/;

// The lines of a unified diff: `[sign, old number, new number, text]`; of a whole file's content with `sign`.
export function diffLines(text, sign = "") {
  const rows = String(text ?? "").replace(/\n$/, "").split("\n");
  if (sign) return rows.map((row, n) => [sign, sign === "-" ? n + 1 : "", sign === "+" ? n + 1 : "", row]);
  const found = [];
  let before = 0, after = 0, inside = false;
  for (const row of rows) {
    const hunk = HUNK.exec(row);
    if (hunk) { before = Number(hunk[1]); after = Number(hunk[2]); inside = true; found.push(["@", "", "", hunk[3].trim()]); }
    else if (!inside && /^(---|\+\+\+|diff |index )/.test(row)) found.push(["@", "", "", row]);
    else if (row.startsWith("+")) found.push(["+", "", inside ? after++ : "", row.slice(1)]);
    else if (row.startsWith("-")) found.push(["-", inside ? before++ : "", "", row.slice(1)]);
    else if (row.startsWith("\\")) found.push(["@", "", "", row.slice(2)]);
    else found.push([" ", inside ? before++ : "", inside ? after++ : "", row.startsWith(" ") ? row.slice(1) : row]);
  }
  return found;
}
export const counted = (lines) => [lines.filter(([sign]) => sign === "+").length, lines.filter(([sign]) => sign === "-").length];

// A diff as a table; line numbers are not copied with the lines, and + and − are read aloud.
export function diffTable(lines) {
  return h("table", { class: "diff" }, h("tbody", null, lines.map(([sign, before, after, text], n) => (sign === "@"
    ? (n || text) && h("tr", { class: "hunk" }, h("td", { class: "no" }), h("td", { class: "no" }), h("td", { class: "sign" }), h("td", null, visible(text)))
    : h("tr", { class: sign === "+" ? "add" : sign === "-" ? "del" : "" },
      h("td", { class: "no", "data-n": before }), h("td", { class: "no", "data-n": after }),
      h("td", { class: "sign", "aria-label": sign === "+" ? "added" : sign === "-" ? "removed" : undefined }, sign === "-" ? "−" : sign),
      h("td", { class: "code" }, visible(text)))))));
}
