// The official client of Responses.
import OpenAI from 'openai';
import { zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import {
  apiKey, call, endless, failure, leave, leaveStream, person, question, report, running, thinking,
  url, weather,
} from './report.mjs';

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const { responses } = client;
const Person = z.object({ name: z.string(), age: z.number().int() });

const asked = (input, fields = {}) => ({ model: 'any', input, ...fields });
const textOf = (event) => (event.type === 'response.output_text.delta' ? event.delta : '');
const shown = ({ object, status, output_text, usage }) => ({
  object, status, output_text, tokens: usage.output_tokens,
});

async function helper() {
  const stream = responses.stream(asked(question));
  let said = '';
  stream.on('response.output_text.delta', (event) => { said += event.delta; });
  const folded = shown(await stream.finalResponse());
  return { said, folded, whole: shown(await responses.create(asked(question))) };
}

async function thoughts(fields) {
  const folded = await responses.stream(asked(thinking, fields)).finalResponse();
  const whole = await responses.create(asked(thinking, fields));
  return [folded, whole].map(({ output: [{ type, summary, content }], output_text }) => ({
    type, summary, content, output_text,
  }));
}

async function parsed() {
  const text = { format: zodTextFormat(Person, 'person') };
  const whole = await responses.parse(asked(person, { text }));
  const folded = await responses.stream(asked(person, { text })).finalResponse();
  return [whole, folded].map((answer) => answer.output_parsed);
}

/** A call and its result, which goes on from the stored answer, or from all that was said. */
async function tools(keep) {
  const declared = { tools: [{ type: 'function', strict: true, ...weather }], store: keep };
  const first = await responses.stream(asked(call, declared)).finalResponse();
  const [{ type, name, call_id, arguments: given, status }] = first.output;
  const result = { type: 'function_call_output', call_id, output: '21 degrees' };
  const said = [{ role: 'user', content: call }, ...first.output];
  const next = keep
    ? asked([result], { ...declared, previous_response_id: first.id })
    : asked([...said, result], declared);
  const { output_text: final } = await responses.create(next);
  return { type, name, arguments: given, status, final };
}

async function kept() {
  const { id } = await responses.create(asked(question));
  const { output_text: text } = await responses.retrieve(id);
  const items = [];
  for await (const item of responses.inputItems.list(id)) items.push(item.content[0].text);
  await responses.delete(id);
  return { text, items, gone: await failure(responses.retrieve(id)) };
}

async function background() {
  let told = '';
  const made = await responses.create(asked(question, { background: true }));
  for await (const event of await responses.retrieve(made.id, { stream: true })) {
    told += textOf(event);
  }
  const { id, status } = await responses.create(asked(endless, { background: true }));
  await running(1);
  const cancelled = await responses.cancel(id);
  await running(0);
  return { told, status, cancelled: cancelled.status };
}

const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'sk-wrong', maxRetries: 0 });

await report({
  left: () => leave((options) => responses.create(asked(endless), options)),
  leftStream: () => leaveStream(
    (options) => responses.create(asked(endless, { stream: true }), options),
    textOf,
  ),
  leftHelper: () => leave((options) => responses.stream(asked(endless), options).done()),
  helper,
  thoughts: () => thoughts({}),
  summaries: () => thoughts({ reasoning: { summary: 'auto' } }),
  parsed,
  tools: () => tools(false),
  toolsKept: () => tools(true),
  kept,
  background,
  invalid: () => failure(responses.create(asked('Hi', { temperature: 9 }))),
  tooLong: () => failure(responses.create(asked('x'.repeat(5000)))),
  unauthorised: () => failure(stranger.responses.create(asked('Hi'))),
});
