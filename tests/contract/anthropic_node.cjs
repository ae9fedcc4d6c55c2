// The official Anthropic client for node against the server in argv[2]: a loop of several turns with tools, whole and
// streamed, in which everything goes back as it came. Prints what it saw as JSON.
const Anthropic = require("@anthropic-ai/sdk").default;

const client = new Anthropic({ baseURL: process.argv[2], apiKey: "unused", maxRetries: 0 });
const input_schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ name: "get_weather", description: "Get the current weather.", input_schema }];
const common = { model: "brook", max_tokens: 60, tools };

// The client may have no `temperature` of its own: the server has.
async function ask(stream, messages, more) {
  const body = { ...common, temperature: 0, messages, ...more };
  return stream ? client.messages.stream(body).finalMessage() : client.messages.create(body);
}

async function loop(stream) {
  const messages = [];
  const seen = [];
  for (const [question, tool_choice] of [["What is the weather in Paris?", { type: "auto" }], ["And in Rome?", { type: "any" }]]) {
    messages.push({ role: "user", content: question });
    const reply = await ask(stream, messages, { tool_choice });
    messages.push({ role: "assistant", content: reply.content });
    const results = reply.content
      .filter((block) => block.type === "tool_use")
      .map((block) => ({ type: "tool_result", tool_use_id: block.id, content: '{"temperature": 21, "sky": "sunny"}' }));
    messages.push({ role: "user", content: results });
    const said = await ask(stream, messages, { tool_choice: { type: "auto" } });
    messages.push({ role: "assistant", content: said.content });
    seen.push({ reply: reply.content, reason: reply.stop_reason, said: said.content, end: said.stop_reason });
  }
  return seen;
}

async function runner() {
  const run = { ...tools[0], run: () => '{"temperature": 21, "sky": "sunny"}', parse: (input) => input };
  const asked = { ...common, temperature: 0, tools: [run], messages: [{ role: "user", content: "What is the weather in Paris?" }] };
  return (await client.beta.messages.toolRunner(asked).runUntilDone()).content;
}

async function failure() {
  try {
    await ask(false, [{ role: "user", content: "hi" }], { max_tokens: 0 });
  } catch (error) {
    return { name: error.constructor.name, status: error.status, message: error.message };
  }
  return null;
}

async function main() {
  console.log(JSON.stringify({ whole: await loop(false), streamed: await loop(true), runner: await runner(), failure: await failure() }));
}

main();
