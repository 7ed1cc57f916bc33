// One answer while it is being made. It belongs to its conversation, shown or not; ending it, by
// Stop, by deleting the conversation or by closing the tab, ends its request.

import { ApiError, chat } from "./api.js";
import { save } from "./store.js";

/** Requests of this tab are known by this in the engine's view. */
export const TAB = `page-${crypto.getRandomValues(new Uint32Array(1))[0].toString(36)}`;
let asked = 0;

export class Answering {
  #abort = new AbortController();
  #changed;

  /** Begin the answer to a conversation; `changed(done)` is called whenever there is more of it. */
  constructor(conversation, model, changed) {
    this.conversation = conversation;
    this.requestId = `${TAB}-${(asked += 1)}`;
    this.message = { role: "assistant", content: "", thinking: "", model, stats: {} };
    this.#changed = changed;
    this.fields = requestFields(conversation, model);
    conversation.messages.push(this.message);
    conversation.updated = Date.now();
    save(conversation);
  }

  /** Nothing more is wanted. The server learns it from the closed connection. */
  stop() {
    this.#abort.abort();
  }

  async run() {
    const { message } = this;
    const started = performance.now();
    try {
      for await (const chunk of chat(this.fields, this.requestId, this.#abort.signal)) {
        this.#take(chunk, started);
      }
    } catch (error) {
      if (this.#abort.signal.aborted) message.stopped = true;
      else if (error instanceof ApiError) message.problem = problem(error);
      else throw error;
    } finally {
      this.conversation.updated = Date.now();
      save(this.conversation);
      this.#changed(true);
    }
  }

  #take(chunk, started) {
    const { message } = this;
    const now = performance.now();
    const [choice] = chunk.choices;
    const { content, reasoning_content: thinking } = choice?.delta ?? {};
    if (thinking) {
      message.thinking += thinking;
      message.stats.thinkingSeconds = (now - started) / 1000;
    }
    if (content) message.content += content;
    if (content || thinking) message.stats.firstAt ??= now;
    if (choice?.finish_reason) message.finish = choice.finish_reason;
    if (chunk.usage) {
      const { firstAt, thinkingSeconds } = message.stats;
      message.stats = {
        tokens: chunk.usage.completion_tokens,
        promptTokens: chunk.usage.prompt_tokens,
        cachedTokens: chunk.usage.prompt_tokens_details.cached_tokens,
        seconds: (now - (firstAt ?? started)) / 1000,
        thinkingSeconds,
      };
    }
    this.#changed(false);
  }
}

function problem(error) {
  const wait = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : "";
  return error.message + wait;
}

function requestFields(conversation, model) {
  const { system, thinking, sampling, messages } = conversation;
  const turns = messages
    .filter(({ role, content }) => role === "user" || content)
    .map(({ role, content }) => ({ role, content }));
  const fields = { model, ...sampling, messages: turns };
  if (system) turns.unshift({ role: "system", content: system });
  if (thinking) fields.reasoning_effort = thinking;
  return fields;
}
