// The official node client against the server in argv[2]: prints what it saw as JSON.
const OpenAI = require("openai").default;
const { makeParseableResponseFormat } = require("openai/lib/parser");

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "unused", maxRetries: 0 });
const asked = (text, more) => ({ model: "brook", messages: [{ role: "user", content: text }], temperature: 0, max_tokens: 64, ...more });
const question = asked("What is 12 + 30?");
const person = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" } },
  required: ["name", "age"],
  additionalProperties: false,
};
const typed = makeParseableResponseFormat(
  { type: "json_schema", json_schema: { name: "person", strict: true, schema: person } },
  JSON.parse,
);
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tool = { type: "function", function: { name: "get_weather", description: "Get the current weather.", parameters } };

async function plain() {
  const models = [];
  for await (const model of client.models.list()) models.push(model.id);
  const whole = await client.chat.completions.create(question);
  const stream = await client.chat.completions.create({ ...question, stream: true, stream_options: { include_usage: true } });
  let text = "";
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  const wish = { model: "brook", prompt: "Once upon a time", max_tokens: 8, temperature: 0 };
  const completion = (await client.completions.create(wish)).choices[0];
  let streamed = "";
  for await (const chunk of await client.completions.create({ ...wish, stream: true })) streamed += chunk.choices[0].text;
  return { models, whole: whole.choices[0].message.content, text, usage, wholeUsage: whole.usage, completion, streamed };
}

async function parsed() {
  const request = asked("Extract the name and the age: Ann is 7 years old.", { response_format: typed });
  const whole = (await client.chat.completions.parse(request)).choices[0].message.parsed;
  const runner = client.chat.completions.stream(request);
  let deltas = "";
  runner.on("content.delta", ({ delta }) => { deltas += delta; });
  const streamed = (await runner.finalChatCompletion()).choices[0].message;
  const reply = await client.chat.completions.create({ ...question, logprobs: true, top_logprobs: 2 });
  return { whole, streamed: streamed.parsed, deltas, content: streamed.content, logprobs: reply.choices[0].logprobs.content };
}

async function tools() {
  const request = asked("What is the weather in Paris?", { tools: [tool] });
  const whole = (await client.chat.completions.create(request)).choices[0];
  const runner = client.chat.completions.stream(request);
  let deltas = "";
  runner.on("tool_calls.function.arguments.delta", (event) => { deltas += event.arguments_delta; });
  const streamed = (await runner.finalChatCompletion()).choices[0];
  const cities = [];
  const run = { ...tool.function, parse: JSON.parse, function: ({ city }) => { cities.push(city); return '{"celsius": 21}'; } };
  const loop = client.chat.completions.runTools({ ...request, tools: [{ type: "function", function: run }] });
  return { whole, streamed, deltas, cities, end: await loop.finalContent() };
}

async function responses() {
  const common = { model: "brook", temperature: 0, max_output_tokens: 64 };
  const whole = await client.responses.create({ ...common, input: "What is 12 + 30?" });
  const stream = client.responses.stream({ ...common, input: "What is 12 + 30?" });
  let deltas = "";
  stream.on("response.output_text.delta", ({ delta }) => { deltas += delta; });
  const streamed = await stream.finalResponse();
  const turns = [{ role: "user", content: "What is the weather in Paris?" }];
  const flat = { type: "function", strict: true, ...tool.function };
  const reply = await client.responses.create({ ...common, input: turns, tools: [flat] });
  const [call] = reply.output;
  const result = { type: "function_call_output", call_id: call.call_id, output: '{"temperature": 21, "sky": "sunny"}' };
  const end = await client.responses.create({ ...common, input: [...turns, ...reply.output, result], tools: [flat] });
  return { whole: whole.output_text, deltas, streamed: streamed.output_text, call, end: end.output_text };
}

async function failure(request) {
  try {
    const stream = await client.chat.completions.create(request);
    if (request.stream) for await (const _ of stream);
  } catch (error) {
    return { name: error.constructor.name, status: error.status, param: error.param, type: error.type };
  }
  return null;
}

async function failures() {
  return {
    value: await failure({ ...question, max_tokens: 0 }),
    stream: await failure({ ...question, max_tokens: 0, stream: true }),
    model: await failure({ ...question, model: "another" }),
    schema: await failure({ ...question, response_format: { type: "json_schema", json_schema: { name: "x", schema: { not: {} } } } }),
  };
}

async function main() {
  console.log(JSON.stringify({ ...(await plain()), parsed: await parsed(), tools: await tools(), responses: await responses(), failures: await failures() }));
}

main();
