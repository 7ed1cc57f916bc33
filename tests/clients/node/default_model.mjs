// A real model, asked the same in each protocol, whole and as a stream.
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { report, url, weather } from './report.mjs';

const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0 });
const { chat: { completions }, responses } = openai;

const model = 'any';
const messages = [{ role: 'user', content: 'Explain what a hash table is in one sentence.' }];
const greedy = { model, temperature: 0 };

const Pet = z.object({ kind: z.enum(['cat', 'dog']), age: z.number().int().min(0).max(30) });

async function chat() {
  const asked = { ...greedy, messages, max_completion_tokens: 6 };
  const folded = completions.stream(asked).finalChatCompletion();
  const answers = [await completions.create(asked), await folded];
  return answers.map((answer) => answer.choices[0].message.content);
}

async function message() {
  const asked = { ...greedy, messages, max_tokens: 6 };
  const { messages: client } = anthropic;
  const answers = [await client.create(asked), await client.stream(asked).finalMessage()];
  return answers.map((answer) => answer.content[0].text);
}

async function response() {
  const asked = { ...greedy, input: messages, max_output_tokens: 6 };
  const answers = [await responses.create(asked), await responses.stream(asked).finalResponse()];
  return answers.map((answer) => answer.output_text);
}

/** The tool must be called, and is run by the client's helper. */
async function tool() {
  const run = ({ city }) => `It is warm in ${city}.`;
  const city = { type: 'string', maxLength: 12 };
  const parameters = { ...weather.parameters, properties: { city } };
  const called = { ...weather, parameters, function: run, parse: JSON.parse };
  const runner = completions.runTools({
    ...greedy,
    messages: [{ role: 'user', content: 'How warm is it in Paris?' }],
    tools: [{ type: 'function', function: called }],
    tool_choice: { type: 'function', function: { name: weather.name } },
    parallel_tool_calls: false,
    max_completion_tokens: 60,
  });
  return runner.finalFunctionToolCallResult();
}

async function parsed() {
  const text = { format: zodTextFormat(Pet, 'pet') };
  const asked = { ...greedy, input: 'A pet, as JSON.', text, max_output_tokens: 60 };
  const { output_parsed: pet } = await responses.parse(asked);
  return pet;
}

await report({ chat, message, response, tool, parsed });
