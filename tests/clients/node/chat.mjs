// The official client of Chat Completions and Completions.
import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import {
  apiKey, call, endless, failure, leave, leaveStream, person, question, report, thinking, url,
  weather,
} from './report.mjs';

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const { completions } = client.chat;
const Person = z.object({ name: z.string(), age: z.number().int() });

const asked = (content, fields = {}) => ({
  model: 'any',
  messages: [{ role: 'user', content }],
  ...fields,
});
const raw = (fields) => ({
  model: 'any',
  prompt: `\x1euser: ${question}\x1eassistant: `,
  max_tokens: 99,
  ...fields,
});

/** Tools that are run by the client's own helper, whose calls are noted. */
function tools(cities) {
  const run = ({ city }) => {
    cities.push(city);
    return '21 degrees';
  };
  return [{ type: 'function', function: { ...weather, function: run, parse: JSON.parse } }];
}

async function runTools(fields) {
  const cities = [];
  const runner = completions.runTools(asked(call, { tools: tools(cities), ...fields }));
  const final = await runner.finalContent();
  const roles = runner.messages.map((message) => message.role);
  return { cities, final, roles };
}

async function thoughts() {
  const whole = await completions.create(asked(thinking));
  const told = { thought: '', said: '' };
  for await (const chunk of await completions.create(asked(thinking, { stream: true }))) {
    told.thought += chunk.choices[0].delta.reasoning_content ?? '';
    told.said += chunk.choices[0].delta.content ?? '';
  }
  const { reasoning_content: thought, content: said } = whole.choices[0].message;
  return [{ thought, said }, told];
}

async function helper() {
  const stream = completions.stream(asked(question, { stream_options: { include_usage: true } }));
  let said = '';
  stream.on('content', (piece) => { said += piece; });
  const folded = await stream.finalChatCompletion();
  const whole = await completions.create(asked(question));
  const shown = ({ object, choices: [{ index, message, finish_reason }], usage }) => ({
    object, index, role: message.role, content: message.content, finish_reason,
    tokens: usage.completion_tokens,
  });
  return { said, folded: shown(folded), whole: shown(whole) };
}

async function parsed() {
  const response_format = zodResponseFormat(Person, 'person');
  const whole = await completions.parse(asked(person, { response_format }));
  const folded = await completions.stream(asked(person, { response_format })).finalChatCompletion();
  return [whole, folded].map(({ choices: [{ message }] }) => message.parsed);
}

async function continued() {
  const whole = await client.completions.create(raw({}));
  let said = '';
  for await (const chunk of await client.completions.create(raw({ stream: true }))) {
    said += chunk.choices[0].text;
  }
  return [whole.choices[0].text, said];
}

const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'sk-wrong', maxRetries: 0 });

await report({
  left: () => leave((options) => completions.create(asked(endless), options)),
  leftStream: () => leaveStream(
    (options) => completions.create(asked(endless, { stream: true }), options),
    (chunk) => chunk.choices[0].delta.content ?? '',
  ),
  leftHelper: () => leave((options) => completions.stream(asked(endless), options).done()),
  helper,
  thoughts,
  parsed,
  continued,
  tools: () => runTools({}),
  toolsStream: () => runTools({ stream: true }),
  logprobs: async () => {
    const answer = await completions.create(asked('Hi', { logprobs: true, top_logprobs: 2 }));
    const tokens = answer.choices[0].logprobs.content;
    return tokens.map(({ token, top_logprobs: top }) => [token, top.length]);
  },
  models: async () => (await client.models.list()).data.map((model) => model.id),
  model: async () => (await client.models.retrieve('scripted')).id,
  invalid: () => failure(completions.create(asked('Hi', { temperature: 9 }))),
  tooLong: () => failure(completions.create(asked('x'.repeat(5000)))),
  unknown: () => failure(client.models.retrieve('other')),
  unauthorised: () => failure(stranger.chat.completions.create(asked('Hi'))),
});
