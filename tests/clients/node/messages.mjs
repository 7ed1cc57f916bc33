// The official client of Messages.
import Anthropic from '@anthropic-ai/sdk';
import { betaTool } from '@anthropic-ai/sdk/helpers/beta/json-schema';
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod';
import { z } from 'zod';
import {
  apiKey, call, endless, failure, leave, leaveStream, person, question, report, thinking, url,
  weather,
} from './report.mjs';

const client = new Anthropic({ baseURL: url, apiKey, maxRetries: 0 });
const { messages } = client;
const Person = z.object({ name: z.string(), age: z.number().int() });

const asked = (content, fields = {}) => ({
  model: 'any',
  max_tokens: 3000,
  messages: [{ role: 'user', content }],
  ...fields,
});
const shown = ({ type, role, content, stop_reason, usage }) => ({
  type, role, content, stop_reason, tokens: [usage.input_tokens, usage.output_tokens],
});

async function helper() {
  const stream = messages.stream(asked(question));
  let said = '';
  stream.on('text', (piece) => { said += piece; });
  const folded = shown(await stream.finalMessage());
  const whole = shown(await messages.create(asked(question)));
  const counted = await messages.countTokens({ model: 'any', messages: asked(question).messages });
  return { said, folded, whole, counted: counted.input_tokens };
}

async function thoughts() {
  const stream = messages.stream(asked(thinking));
  let thought = '';
  stream.on('thinking', (piece) => { thought += piece; });
  const answers = [await stream.finalMessage(), await messages.create(asked(thinking))];
  // The blocks go back as they came: the signature with them.
  const { content } = answers[0];
  const next = await messages.create(asked('', {
    messages: [
      { role: 'user', content: 'Hi' },
      { role: 'assistant', content },
      { role: 'user', content: 'And?' },
    ],
  }));
  const blocks = answers.map((answer) => answer.content.map(({ signature, ...block }) => block));
  return { thought, blocks, next: next.content[0].text };
}

async function parsed() {
  const output_config = { format: zodOutputFormat(Person) };
  const whole = await messages.parse(asked(person, { output_config }));
  const folded = await messages.stream(asked(person, { output_config })).finalMessage();
  return [whole, folded].map((answer) => answer.parsed_output);
}

async function runTools(fields) {
  const cities = [];
  const { parameters: inputSchema, ...described } = weather;
  const run = ({ city }) => {
    cities.push(city);
    return '21 degrees';
  };
  const tools = [betaTool({ ...described, inputSchema, run })];
  const runner = client.beta.messages.toolRunner(asked(call, { tools, ...fields }));
  const final = await runner.runUntilDone();
  return { cities, stop_reason: final.stop_reason, final: final.content[0].text };
}

const stranger = new Anthropic({ baseURL: url, apiKey: 'sk-wrong', maxRetries: 0 });

await report({
  left: () => leave((options) => messages.create(asked(endless), options)),
  leftStream: () => leaveStream(
    (options) => messages.create(asked(endless, { stream: true }), options),
    (event) => event.delta?.text ?? '',
  ),
  leftHelper: () => leave((options) => messages.stream(asked(endless), options).done()),
  helper,
  thoughts,
  parsed,
  tools: () => runTools({}),
  toolsStream: () => runTools({ stream: true }),
  models: async () => (await client.models.list()).data.map((model) => model.id),
  model: async () => (await client.models.retrieve('scripted')).id,
  invalid: () => failure(messages.create(asked('Hi', { temperature: 9 }))),
  tooLong: () => failure(messages.create(asked('x'.repeat(5000)))),
  unauthorised: () => failure(stranger.messages.create(asked('Hi'))),
});
