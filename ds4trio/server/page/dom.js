// Elements from plain values. Text always becomes a text node: nothing here can make markup of it.

/** An element. `props` are its properties; those that are none (aria-*, for, role) its attributes. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null) continue;
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** The page's one element with this id. */
export const byId = (id) => document.getElementById(id);

/** Set a node's text, touching it only if that changes something. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Tell those who cannot see it. */
export function announce(text) {
  byId("announcements").textContent = text;
}

export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Without TLS, browsers have only this.
  const area = el("textarea", { value: text, className: "unseen" });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** A button that copies what `text()` gives, and says so. */
export function copyButton(label, text) {
  const button = el("button", { type: "button", className: "quiet", textContent: label });
  button.addEventListener("click", async () => {
    await copyText(text());
    button.textContent = "Copied";
    announce("Copied.");
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}
