// Talks to the server that this page came from, and to no other.

/** What the server, or the lack of one, answered instead. `status` 0: nobody answered. */
export class ApiError extends Error {
  constructor(message, status, retryAfter) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

// Keys live as long as the tab.
const remembered = (name) => ({
  get: () => sessionStorage.getItem(name) ?? "",
  set: (key) => (key ? sessionStorage.setItem(name, key) : sessionStorage.removeItem(name)),
});
export const apiKey = remembered("ds4trio.key");
export const metricsKey = remembered("ds4trio.metrics-key");

function headers(key, more = {}) {
  return key ? { authorization: `Bearer ${key}`, ...more } : more;
}

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer.", 0);
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

async function refusal(answer) {
  let message = `The server answered ${answer.status}.`;
  try {
    message = (await answer.json()).error.message;
  } catch {
    // Not one of ours: a proxy's page, say.
  }
  return new ApiError(message, answer.status, answer.headers.get("retry-after"));
}

/** The served model: its name and the size of its context. */
export async function servedModel() {
  const answer = await ask("v1/models", { headers: headers(apiKey.get()) });
  const [model] = (await answer.json()).data;
  return { name: model.id, contextTokens: model.context_length };
}

/** What the engine holds now; see the server's `engine_view`. */
export async function engineView() {
  const key = metricsKey.get() || apiKey.get();
  return (await ask("v1/engine", { headers: headers(key) })).json();
}

/** The chunks of a streamed answer. Leaving the loop, or aborting, ends the work. */
export async function* chat(fields, requestId, signal) {
  const answer = await ask("v1/chat/completions", {
    method: "POST",
    headers: headers(apiKey.get(), {
      "content-type": "application/json",
      "x-request-id": requestId,
    }),
    body: JSON.stringify({ ...fields, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message, answer.status);
    yield chunk;
  }
  throw new ApiError("The connection was lost before the answer was complete.", 0);
}

/** The data of server-sent events. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data: ")) yield line.slice("data: ".length);
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
    throw new ApiError("The connection was lost before the answer was complete.", 0);
  } finally {
    reader.cancel().catch(() => {});
  }
}
