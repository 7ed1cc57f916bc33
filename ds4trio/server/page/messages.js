// A conversation's messages on the page.

import { byId, copyButton, el, say } from "./dom.js";
import { MarkdownView } from "./markdown.js";

/** Distance from the end, in pixels, at which one still reads along. */
const NEAR_END = 80;

export class Messages {
  #list = byId("messages");
  #scroll = byId("scroll");
  #views = [];
  #again;

  /** `again(index)`: the answer at this place is to be made anew. */
  constructor(again) {
    this.#again = again;
  }

  /** Show another conversation, from its end. */
  show(messages) {
    this.#views = [];
    this.#list.replaceChildren();
    for (const message of messages) this.append(message);
    for (const view of this.#views) view.update(false);
    byId("welcome").hidden = messages.length > 0;
    this.#scroll.scrollTop = this.#scroll.scrollHeight;
  }

  append(message) {
    byId("welcome").hidden = true;
    const index = this.#views.length;
    const view =
      message.role === "user"
        ? new Question(message)
        : new Answer(message, () => this.#again(index));
    this.#views.push(view);
    this.#list.append(view.node);
    this.#scroll.scrollTop = this.#scroll.scrollHeight;
  }

  /** The last message has changed. */
  update(isLive) {
    const { scrollTop, clientHeight, scrollHeight } = this.#scroll;
    const readsAlong = scrollTop + clientHeight > scrollHeight - NEAR_END;
    this.#views.at(-1)?.update(isLive);
    if (readsAlong) this.#scroll.scrollTop = this.#scroll.scrollHeight;
  }
}

class Question {
  constructor(message) {
    this.node = el(
      "li",
      { className: "message user" },
      el("span", { className: "unseen" }, "You:"),
      el("div", { className: "text" }, message.content),
      el("div", { className: "foot" }, copyButton("Copy", () => message.content)),
    );
  }

  update() {}
}

class Answer {
  #message;
  #thoughts = el("p");
  #summary = el("summary");
  #details;
  #text = el("div", { className: "answer" });
  #markdown = new MarkdownView(this.#text);
  #problem = el("p", { className: "problem", role: "alert", hidden: true });
  #stats = el("span");
  #stopped = el("span", { className: "stopped" });
  #foot;

  constructor(message, again) {
    this.#message = message;
    this.#details = el("details", { className: "thoughts" }, this.#summary, this.#thoughts);
    const repeat = el("button", { type: "button", className: "quiet again" }, "Try again");
    repeat.addEventListener("click", again);
    this.#foot = el(
      "div",
      { className: "foot" },
      this.#stopped,
      this.#stats,
      copyButton("Copy", () => message.content),
      repeat,
    );
    this.node = el(
      "li",
      { className: "message model" },
      el("span", { className: "unseen" }, "Model:"),
      this.#details,
      this.#text,
      this.#problem,
      this.#foot,
    );
    this.update(true);
  }

  update(isLive) {
    const message = this.#message;
    this.#details.hidden = !message.thinking;
    say(this.#thoughts, message.thinking ?? "");
    say(this.#summary, thoughtFor(message, isLive));
    this.#markdown.update(message.content);
    this.#text.classList.toggle("waiting", isLive && !message.content);
    this.#problem.hidden = !message.problem;
    say(this.#problem, message.problem ?? "");
    this.#foot.hidden = isLive;
    this.#stopped.hidden = !message.stopped;
    say(this.#stopped, "Stopped.");
    say(this.#stats, figures(message));
  }
}

function thoughtFor({ content, stats }, isLive) {
  if (isLive && !content) return "Thinking…";
  const seconds = stats?.thinkingSeconds;
  return seconds ? `Thought for ${seconds.toFixed(1)} s` : "Thoughts";
}

/** What an answer took, in a few words. */
function figures({ content, stats, finish, release }) {
  const words = [];
  if (stats?.tokens) {
    words.push(`${stats.tokens} tokens`);
    if (stats.seconds > 0 && stats.tokens > 1) {
      words.push(`${((stats.tokens - 1) / stats.seconds).toFixed(1)} a second`);
    }
    if (stats.cachedTokens) words.push(`${stats.cachedTokens} of the prompt from cache`);
  }
  if (finish && !content) words.push("the model said nothing");
  if (finish === "length") words.push("cut: the longest answer was reached");
  if (release) words.push(release);
  return words.join(" · ");
}
