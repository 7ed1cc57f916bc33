// Conversations, kept in this browser and nowhere else: one entry of localStorage each, so that
// several tabs can write side by side.

import { announce } from "./dom.js";

const PREFIX = "ds4trio.chat.";
const LATEST = "ds4trio.latest";

/** Settings that a new conversation starts with, if there is none before it. */
const FRESH = { system: "", thinking: "", sampling: {} };

export function newConversation() {
  const before = load(localStorage.getItem(LATEST));
  const { system, thinking, sampling } = before ?? FRESH;
  return {
    id: crypto.getRandomValues(new Uint32Array(2)).join("-"),
    title: "",
    created: Date.now(),
    updated: Date.now(),
    system,
    thinking,
    sampling: { ...sampling },
    messages: [],
  };
}

export function save(conversation) {
  if (conversation.deleted || (!conversation.messages.length && !conversation.title)) return;
  try {
    localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
    localStorage.setItem(LATEST, conversation.id);
  } catch {
    announce("This browser has no room left for conversations: export and delete some.");
  }
}

export function load(id) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + id));
  } catch {
    return null;
  }
}

export function remove(id) {
  localStorage.removeItem(PREFIX + id);
}

/** All conversations, the one written to last first. */
export function all() {
  return Object.keys(localStorage)
    .filter((key) => key.startsWith(PREFIX))
    .map((key) => load(key.slice(PREFIX.length)))
    .filter((conversation) => conversation !== null)
    .sort((one, other) => other.updated - one.updated);
}

export function titleOf(conversation) {
  return conversation.title || "New chat";
}

export function asMarkdown(conversation) {
  const parts = [`# ${titleOf(conversation)}`];
  if (conversation.system) parts.push(`**System:** ${conversation.system}`);
  for (const message of conversation.messages) {
    parts.push(`## ${message.role === "user" ? "You" : message.model || "Model"}`);
    if (message.thinking) parts.push(quoted(message.thinking));
    parts.push(message.content);
  }
  return parts.join("\n\n") + "\n";
}

const quoted = (text) => text.trim().replace(/^/gm, "> ");

/** Offer a text as a file. */
export function download(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
