import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, test } from "node:test";
import { type ChatMessage, messageOf } from "../src/index.ts";
import { addresses, clientOf, Reader, SAMPLED, sampled } from "./fleet.ts";

const client = clientOf();
after(() => client.close());

test("a stream's tokens and text come in order, and the end says what was delivered", async () => {
  const { events, tokenIds, text } = await new Reader(client.generate("The list is", SAMPLED)).until();
  assert.equal(tokenIds.length, 40);
  assert.notEqual(text, "");
  assert.deepEqual(
    [events.at(0)?.type, events.at(-2)?.type, events.at(-1)?.type],
    ["accepted", "choiceFinished", "finished"],
  );
  const finished = events.find((event) => event.type === "finished");
  assert.equal(finished?.usage.outputTokens, 40);
  const { queueMs = 0, prefillMs = 0, handoffMs = 0, decodeMs = 0, relayMs = 0 } = finished?.split ?? {};
  const phases = queueMs + prefillMs + handoffMs + decodeMs + relayMs;
  assert.ok(Math.abs(phases - (finished?.delivery.e2eMs ?? 0)) < 0.01);
});

test("the same seed gives the same tokens at each router", async () => {
  const [one, other] = await Promise.all(
    addresses.map(async (address) => {
      const alone = clientOf([address]);
      return await alone.complete("The list is", SAMPLED);
    }),
  );
  assert.deepEqual(one?.choices, other?.choices);
});

test("several choices share one stream", async () => {
  const { choices } = await client.complete("The list is", {
    sampling: { temperature: 1, seed: 3n, n: 3 },
    stop: { maxTokens: 12, ignoreEos: true },
  });
  assert.deepEqual(
    choices.map(({ index, tokenIds }) => [index, tokenIds.length]),
    [
      [0, 12],
      [1, 12],
      [2, 12],
    ],
  );
});

test("a stop string ends the text before it, and the end says which one it was", async () => {
  const whole = await client.complete("The list is", SAMPLED);
  const strings = ["never said", whole.text.slice(12, 16)];
  const stopped = await client.complete("The list is", { ...SAMPLED, stop: { ...SAMPLED.stop, strings } });
  assert.equal(stopped.choices[0]?.finishReason, "stop");
  assert.equal(stopped.choices[0]?.stopString, strings[1]);
  assert.equal(stopped.text, whole.text.slice(0, whole.text.indexOf(strings[1] ?? "")));
});

test("log-probabilities come with each token, the prompt's own too", async () => {
  const asked = { ...SAMPLED, sampling: { ...SAMPLED.sampling, logprobs: 2, promptLogprobs: 1 } };
  const { choices, promptLogprobs, finished } = await client.complete("The list is", asked);
  assert.equal(choices[0]?.logprobs.length, 40);
  assert.ok(choices[0]?.logprobs.every(({ logprob, top }) => logprob <= 0 && top.length === 2));
  assert.equal(promptLogprobs.length, finished.usage.promptTokens - 1);
});

test("a promise is given where an SLO is stated, and a quote says what it would be", async () => {
  const slo = { ttftMs: 20_000, tpotMs: 5_000, sloClass: "interactive" } as const;
  const quoted = await client.quote("The list is", { ...SAMPLED, slo });
  assert.equal(quoted.verdict, "accepted");
  const { finished } = await client.complete("The list is", { ...SAMPLED, slo });
  assert.equal(finished.promise.ttftMs, 20_000);
  assert.equal(finished.delivery.ttftKept, true);
});

test("a prompt is text, token ids or a chat, and its tokens can be counted and become text again", async () => {
  const [model] = await client.models();
  assert.ok(model?.hasChatTemplate);
  const ids = await client.countTokens("The list is");
  assert.match(await client.detokenize(ids), /The list is$/);
  assert.equal((await client.tokenBytes(ids)).length, ids.length);
  const byIds = await client.complete(ids, SAMPLED);
  assert.deepEqual(byIds.choices, (await client.complete("The list is", SAMPLED)).choices);
  const messages = [{ role: "user", content: "Hello" }];
  const chat = await client.complete(messages, SAMPLED);
  assert.equal(chat.finished.usage.promptTokens, (await client.countTokens({ messages })).length);
});

test("the text is what the output format demands", async () => {
  const chosen = await client.complete("The list is", { outputFormat: { oneOf: ["red", "green"] } });
  assert.ok(["red", "green"].includes(chosen.text));
  const schema = { type: "object", properties: { n: { type: "integer" } }, required: ["n"] };
  const stop = { maxTokens: 200 };
  const written = await client.complete("The list is", { outputFormat: { jsonSchema: schema }, stop });
  if (written.choices[0]?.finishReason === "eos") assert.ok(Number.isInteger(JSON.parse(written.text).n));
});

test("a forced call names its tool, and its arguments validate", async () => {
  const on = { type: "boolean" };
  const parameters = { type: "object", properties: { on }, required: ["on"], additionalProperties: false };
  const tools = [{ name: "look" }, { name: "switch", description: "Switch the light.", parameters }];
  const messages = [
    { role: "user", content: ["It is", "dark."] },
    { role: "assistant", toolCalls: [{ id: "call_1", name: "look", arguments: "{}" }] },
    { role: "tool", toolCallId: "call_1", content: "all black" },
  ];
  const chat = { messages, tools, toolChoice: { name: "switch" } };
  const called = await client.complete(chat, { sampling: { temperature: 2, n: 4 }, user: "somebody" });
  assert.notEqual(called.toolFormat, "");
  for (const choice of called.choices.keys()) {
    const { content, toolCalls } = messageOf(called, choice);
    assert.equal(content, "");
    assert.notEqual(toolCalls.length, 0);
    for (const call of toolCalls) {
      assert.equal(call.name, "switch");
      assert.equal(typeof JSON.parse(call.arguments).on, "boolean");
    }
  }
});

test("a choice that there is not has no message", async () => {
  const completion = await client.complete("The list", { stop: { maxTokens: 1 } });
  assert.equal(messageOf(completion).content, completion.text);
  assert.throws(() => messageOf(completion, 2), /choice is 2: accepted: 0 to 0/);
});

test("a stream says the calls that a completion says, which the next request takes", async () => {
  const messages: ChatMessage[] = [{ role: "user", content: "It is dark." }];
  const on = { type: "boolean" };
  const parameters = { type: "object", properties: { on }, required: ["on"], additionalProperties: false };
  const tools = [{ name: "switch", parameters }];
  const chat = { messages, tools, toolChoice: "required", parallelToolCalls: false } as const;
  const options = { sampling: { temperature: 1, seed: 7 }, requestId: randomUUID() };
  const message = messageOf(await client.complete(chat, options));
  const called = { id: "", name: "", arguments: "" };
  for await (const event of client.generate(chat, options).parsed()) {
    if (event.type !== "choiceDelta") continue;
    if (event.delta.type === "toolCallBegun")
      Object.assign(called, { id: event.delta.id, name: event.delta.name });
    if (event.delta.type === "toolCallArguments") called.arguments += event.delta.text;
  }
  assert.equal(called.name, "switch");
  assert.deepEqual(message.toolCalls, [called]);
  messages.push(message, { role: "tool", toolCallId: called.id, content: "all black" });
  await client.complete({ messages, tools }, { stop: { maxTokens: 2 } });
});

test("sixty-four streams at once are each whole", async () => {
  // Most of them share calls.
  const streams = Array.from({ length: 64 }, () => client.complete("The list is", sampled(24)));
  const alone = await clientOf(addresses, { multiplex: false }).complete("The list is", sampled(24));
  for (const { choices } of await Promise.all(streams)) assert.deepEqual(choices, alone.choices);
});

test("two calls of one request each get all of it", async () => {
  const alone = clientOf(addresses.slice(0, 1));
  const options = { ...sampled(300), requestId: randomUUID() };
  const first = await new Reader(alone.generate("The list is", options)).until(20);
  const second = await alone.complete("The list is", options);
  await first.until();
  assert.deepEqual(second.choices[0]?.tokenIds, first.tokenIds);
  assert.equal(first.tokenIds.length, 300);
});

test("a signal ends the generation, and so does leaving the loop", async () => {
  const controller = new AbortController();
  const stream = client.generate("The list is", { ...sampled(4000), signal: controller.signal });
  const reader = await new Reader(stream).until(4);
  controller.abort();
  await assert.rejects(reader.until(), { name: "AbortError" });
  for await (const event of client.generate("The list is", sampled(4000))) {
    if (event.type === "tokens") break;
  }
  // The driver checks that nothing runs any more.
});

test("closing the client ends its streams, and later calls are refused", async () => {
  const closed = clientOf();
  const reader = await new Reader(closed.generate("The list is", sampled(4000))).until(4);
  await closed.close();
  await assert.rejects(reader.until(), { name: "TypeError", message: "the client is closed" });
  await assert.rejects(closed.models(), { name: "TypeError", message: "the client is closed" });
  await client.cancel(reader.stream.requestId);
});

test("cancel ends a stream of another call, with a reason", async () => {
  const other = clientOf();
  const stream = client.generate("The list is", sampled(4000));
  const reader = await new Reader(stream).until(4);
  assert.equal(await other.cancel(stream.requestId), true);
  const { events } = await reader.until();
  const end = events.find((event) => event.type === "choiceFinished");
  assert.equal(end?.reason, "cancelled");
  assert.equal(await other.cancel("never sent"), false);
});
