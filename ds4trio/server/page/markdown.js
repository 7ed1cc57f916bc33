// A model's Markdown as DOM nodes. `marked` only reads it: what it finds is built here from a fixed
// set of elements and text nodes, so HTML in an answer stays text, and a link leads only to the web.

import { lexer } from "./marked.esm.js";
import { copyButton, el } from "./dom.js";

const OPTIONS = { gfm: true, breaks: true };
const SCHEMES = ["http:", "https:", "mailto:"];
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };
const ENTITY = /&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|(amp|lt|gt|quot|apos|nbsp));/gi;

/** Shows a text that grows: blocks that did not change keep their nodes. */
export class MarkdownView {
  #root;
  #shown = []; // each block's source and node

  constructor(root) {
    this.#root = root;
  }

  update(text) {
    const blocks = read(text);
    let same = 0;
    while (same < this.#shown.length && this.#shown[same].source === blocks[same]?.raw) same += 1;
    for (const { node } of this.#shown.splice(same)) node.remove();
    for (const token of blocks.slice(same)) {
      const node = build(token);
      this.#shown.push({ source: token.raw, node });
      this.#root.append(node);
    }
  }
}

function read(text) {
  try {
    return lexer(text, OPTIONS).filter((token) => !["space", "def"].includes(token.type));
  } catch {
    return [{ type: "html", block: true, raw: text, text }]; // nested without end
  }
}

function build(token) {
  try {
    return block(token);
  } catch {
    return el("p", { className: "as-is" }, token.raw);
  }
}

function block(token) {
  switch (token.type) {
    case "heading":
      // The page's own headings are above.
      return el(`h${Math.min(token.depth + 2, 6)}`, {}, ...inline(token.tokens));
    case "paragraph":
      return el("p", {}, ...inline(token.tokens));
    case "code":
      return code(token);
    case "blockquote":
      return el("blockquote", {}, ...blocks(token.tokens));
    case "list":
      return list(token);
    case "table":
      return table(token);
    case "hr":
      return el("hr");
    case "checkbox":
      return el("span", { className: "task" }, token.checked ? "\u2611 " : "\u2610 ");
    case "text":
      return el("span", {}, ...(token.tokens ? inline(token.tokens) : [plain(token.text)]));
    default:
      return el("p", { className: "as-is" }, token.raw.trimEnd());
  }
}

const blocks = (tokens) =>
  tokens.filter((token) => !["space", "def"].includes(token.type)).map(block);

function code(token) {
  const language = (token.lang ?? "").split(/\s/)[0];
  const head = el(
    "div",
    { className: "code-head" },
    el("span", {}, language),
    copyButton("Copy", () => token.text),
  );
  const body = el("pre", { tabIndex: 0 }, el("code", {}, token.text));
  return el("div", { className: "code" }, head, body);
}

function list(token) {
  const items = token.items.map((item) => el("li", {}, ...blocks(item.tokens)));
  if (!token.ordered) return el("ul", {}, ...items);
  return el("ol", { start: token.start === "" ? 1 : token.start }, ...items);
}

function table(token) {
  const row = (cells, tag) =>
    el(
      "tr",
      {},
      ...cells.map((cell) =>
        el(tag, { className: cell.align ? `to-${cell.align}` : "" }, ...inline(cell.tokens)),
      ),
    );
  const head = el("thead", {}, row(token.header, "th"));
  const body = el("tbody", {}, ...token.rows.map((cells) => row(cells, "td")));
  return el("div", { className: "table", tabIndex: 0 }, el("table", {}, head, body));
}

const inline = (tokens) => tokens.map(inlineNode);

function inlineNode(token) {
  switch (token.type) {
    case "strong":
      return el("strong", {}, ...inline(token.tokens));
    case "em":
      return el("em", {}, ...inline(token.tokens));
    case "del":
      return el("s", {}, ...inline(token.tokens));
    case "codespan":
      return el("code", {}, token.text);
    case "br":
      return el("br");
    case "link":
      return link(token.href, inline(token.tokens));
    case "image": // fetched from nowhere
      return link(token.href, [`[image: ${token.text || "without a name"}]`]);
    case "escape":
      return token.text;
    case "text":
      return token.tokens ? el("span", {}, ...inline(token.tokens)) : plain(token.text);
    default:
      return token.raw;
  }
}

function link(target, children) {
  const href = plain(target);
  if (!URL.canParse(href) || !SCHEMES.includes(new URL(href).protocol)) {
    return el("span", { title: href }, ...children);
  }
  const rel = "noopener noreferrer nofollow";
  return el("a", { href, target: "_blank", rel, title: href }, ...children);
}

/** Text with its character references read. */
function plain(text) {
  return text.replace(ENTITY, (whole, decimal, hex, name) => {
    if (name) return ENTITIES[name.toLowerCase()];
    const point = decimal ? Number(decimal) : parseInt(hex, 16);
    return point && point <= 0x10ffff ? String.fromCodePoint(point) : whole;
  });
}
