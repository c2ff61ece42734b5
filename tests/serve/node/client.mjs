// Ask a server by the npm package `openai` and write what came back as one JSON object.
// Arguments: the address, the key, the model, and which of the functions below to call.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [base, apiKey, model, what] = process.argv.slice(2);
const require = createRequire(`${process.cwd()}/`);
const { default: OpenAI } = await import(pathToFileURL(require.resolve("openai")).href);
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey, maxRetries: 0, timeout: 30_000 });
const messages = [{ role: "user", content: "How do I live well?" }];

const calls = {
  async chat() {
    return client.chat.completions.create({ model, messages, seed: 7, n: 2, stop: ["all."] });
  },

  async chatStream() {
    const stream = await client.chat.completions.create({
      model, messages, seed: 7, n: 2, stop: ["all."], stream: true,
      stream_options: { include_usage: true },
    });
    const found = { texts: ["", ""], reasons: [null, null], usage: null };
    for await (const piece of stream) {
      found.usage = piece.usage ?? found.usage;
      for (const { index, delta, finish_reason } of piece.choices) {
        found.texts[index] += delta.content ?? "";
        found.reasons[index] = finish_reason ?? found.reasons[index];
      }
    }
    return found;
  },

  async chatHelper() {
    const runner = client.chat.completions.stream({ model, messages });
    return { text: await runner.finalContent(), usage: await runner.totalUsage() };
  },

  async completion() {
    return client.completions.create({ model, prompt: "Once", max_tokens: 9 });
  },

  async completionStream() {
    const stream = await client.completions.create({ model, prompt: "Once", stream: true });
    let text = "";
    for await (const piece of stream) text += piece.choices[0].text;
    return { text };
  },

  async logprobs() {
    const asked = { model, messages, max_tokens: 20, logprobs: true, top_logprobs: 2 };
    return client.chat.completions.create(asked);
  },

  async models() {
    const ids = [];
    for await (const one of client.models.list()) ids.push(one.id);
    return { ids };
  },

  async abort() {
    const asked = { model, messages, stream: true, pasta: { stream: "events" } };
    const stream = await client.chat.completions.create(asked);
    let numPieces = 0;
    for await (const _ of stream) {
      numPieces += 1;
      if (numPieces === 1) stream.controller.abort();
    }
    return { numPieces };
  },

  async errors() {
    const names = [];
    const others = new OpenAI({ baseURL: `${base}/v1`, apiKey: "wrong", maxRetries: 0 });
    const wrong = [
      () => client.chat.completions.create({ model: "gpt-4", messages }),
      () => client.chat.completions.create({ model, messages, logit_bias: { 3: 1 } }),
      () => client.responses.create({ model, input: "Hello" }),
      () => client.embeddings.create({ model, input: "Hello" }),
      () => others.models.list(),
    ];
    for (const ask of wrong) {
      try {
        await ask();
        names.push("none");
      } catch (error) {
        names.push(`${error.constructor.name} ${error.status} ${error.code}`);
      }
    }
    return { names };
  },
};

console.log(JSON.stringify(await calls[what]()));
