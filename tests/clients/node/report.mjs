// What the scripts share. Each is given the server's address, and prints one JSON object.
export const [url, apiKey] = process.argv.slice(2);

export const question = 'A table — 表 — of keys 😀';
export const endless = 'And so on.';
export const person = '{"name":"Ada","age":36}';
export const call =
  '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>';
export const thinking = '<think>Hm, well.</think>So it is.';

export const weather = {
  name: 'get_weather',
  description: 'The weather in a city',
  parameters: {
    type: 'object',
    properties: { city: { type: 'string' } },
    required: ['city'],
    additionalProperties: false,
  },
};

/** Runs each check, one after the other, and prints what they told. */
export async function report(checks) {
  const told = {};
  for (const [name, check] of Object.entries(checks)) told[name] = await check();
  console.log(JSON.stringify(told));
}

/** Until so many sequences are being computed. */
export async function running(count) {
  const figure = `ds4trio_sequences{state="running"} ${count}.0`;
  for (;;) {
    const metrics = await fetch(`${url}/metrics`, { headers: { 'x-api-key': apiKey } });
    if ((await metrics.text()).includes(figure)) return;
  }
}

/** How a request that must fail did so. */
export async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    const { name } = error.constructor;
    const { status, code, type, param, requestID, message } = error;
    return { name, status, code, type, param, id: typeof requestID, message };
  }
  throw new Error('it did not fail');
}

/** Leaves once the server computes; says how the client took it. */
export async function leave(ask) {
  const controller = new AbortController();
  const answer = ask({ signal: controller.signal });
  await running(1);
  controller.abort();
  const { name } = await failure(answer);
  await running(0);
  return name;
}

/** Leaves in the middle of a stream; says what came before. */
export async function leaveStream(ask, textOf) {
  const controller = new AbortController();
  let said = '';
  try {
    for await (const event of await ask({ signal: controller.signal })) {
      said += textOf(event);
      if (said.length > 3) controller.abort();
    }
  } catch (error) {
    if (error.constructor.name !== 'APIUserAbortError') throw error;
  }
  await running(0);
  return said.slice(0, 3);
}
