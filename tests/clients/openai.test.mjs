// The official `openai` npm package against a running server (GALVANI_URL).
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.GALVANI_URL}/v1`, apiKey: process.env.GALVANI_API_KEY ?? "none", maxRetries: 0, timeout: 120_000 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "What is the capital of France? Answer in one short sentence." }];
const chat = (more = {}) => client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 24, ...more });

test("an answer that makes sense", async () => {
  const choice = (await chat()).choices[0];
  assert.equal(choice.message.role, "assistant");
  if (process.env.GALVANI_REAL_MODEL === "1") assert.match(choice.message.content, /Paris/);
});

test("a stream equals the whole, with one finish reason", async () => {
  const whole = (await chat()).choices[0];
  let text = "";
  const reasons = [];
  for await (const event of await chat({ stream: true })) {
    for (const choice of event.choices) {
      text += choice.delta.content ?? "";
      if (choice.finish_reason) reasons.push(choice.finish_reason);
    }
  }
  assert.equal(text, whole.message.content);
  assert.deepEqual(reasons, [whole.finish_reason]);
});

test("the stream helper collects the final message", async () => {
  const stream = client.chat.completions.stream({ model, messages, temperature: 0, max_tokens: 8 });
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, (await chat({ max_tokens: 8 })).choices[0].message.content);
});

test("log-probabilities", async () => {
  const { content } = (await chat({ logprobs: true, top_logprobs: 2, max_tokens: 3 })).choices[0].logprobs;
  assert.ok(content.length >= 1);
  for (const token of content) {
    assert.ok(token.logprob <= 0);
    assert.equal(token.top_logprobs.length, 2);
  }
});

test("n choices, the same for the same seed", async () => {
  const once = (await chat({ n: 2, temperature: 1, seed: 3 })).choices;
  const twice = (await chat({ n: 2, temperature: 1, seed: 3 })).choices;
  assert.deepEqual(once.map((c) => c.index), [0, 1]);
  assert.deepEqual(once.map((c) => c.message.content), twice.map((c) => c.message.content));
});

test("a stop string is not in the text", async () => {
  const whole = (await chat()).choices[0].message.content;
  const stop = whole.slice(whole.length >> 1).slice(0, 3);
  const cut = (await chat({ stop })).choices[0];
  assert.equal(cut.message.content, whole.slice(0, whole.indexOf(stop)));
  assert.equal(cut.finish_reason, "stop");
});

test("an aborted stream leaves the server well", async () => {
  const stream = await chat({ stream: true, max_tokens: 400 });
  for await (const _ of stream) break;
  assert.equal((await chat({ max_tokens: 2 })).choices.length, 1);
});

test("errors name the field", async () => {
  for (const [more, param] of [[{ temperature: 9 }, "temperature"], [{ messages: [] }, "messages"], [{ n: 0 }, "n"]]) {
    await assert.rejects(chat(more), (error) => error instanceof OpenAI.BadRequestError && error.param === param);
  }
  await assert.rejects(chat({ model: "no-such-model" }), OpenAI.NotFoundError);
});
