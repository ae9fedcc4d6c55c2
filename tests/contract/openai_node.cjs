// The official node client against the server in argv[2]: prints what it saw as JSON.
const OpenAI = require("openai").default;

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "unused", maxRetries: 0 });
const question = { model: "brook", messages: [{ role: "user", content: "What is 12 + 30?" }], temperature: 0, max_tokens: 32 };

async function main() {
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
  const completion = await client.completions.create({ model: "brook", prompt: "Once upon a time", max_tokens: 8 });
  let failure = null;
  try {
    await client.chat.completions.create({ ...question, max_tokens: 0 });
  } catch (error) {
    failure = { name: error.constructor.name, status: error.status, param: error.param };
  }
  console.log(JSON.stringify({ models, whole: whole.choices[0].message.content, text, usage, wholeUsage: whole.usage, completion: completion.choices[0].finish_reason, failure }));
}

main();
