import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Stream, connect, eventually, request, snapshot, status, unary } from "./client.mjs";

let stub;
before(() => {
  stub = connect();
});
after(() => stub.close());

const idle = async () => (await snapshot()).workers.every(({ load }) => load.running === 0 && load.waiting === 0);

test("a stream's tokens and text come once and in order, and the end says what was delivered", async () => {
  const stream = await Stream.generate(stub, request()).done();
  assert.equal(stream.ids.length, 40);
  assert.equal(stream.choice().reason, "FINISH_REASON_LENGTH");
  assert.equal(stream.accepted.prompt_tokens, stream.finished.usage.prompt_tokens);
  assert.equal(stream.finished.usage.output_tokens, 40);
  const { queue_ms, prefill_ms, handoff_ms, decode_ms, relay_ms } = stream.finished.split;
  const parts = queue_ms + prefill_ms + handoff_ms + decode_ms + relay_ms;
  assert.ok(Math.abs(parts - stream.finished.delivery.e2e_ms) < 0.01);
});

test("the same seed gives the same tokens, in a stream and in one answer", async () => {
  const streamed = await Stream.generate(stub, request()).done();
  const answer = await unary(stub, "GenerateOnce", { request: request() });
  assert.deepEqual(answer.choices[0].token_ids, streamed.ids);
  assert.equal(answer.choices[0].text, streamed.text);
});

test("several choices share one stream", async () => {
  const sampling = { temperature: 1, seed: "3", n: 3 };
  const stream = await Stream.generate(stub, request({ sampling, max_tokens: 12 })).done();
  assert.deepEqual([...stream.choices.keys()].sort(), [0, 1, 2]);
  for (const { ids } of stream.choices.values()) assert.equal(ids.length, 12);
});

test("a stop string ends the text before it", async () => {
  const whole = await Stream.generate(stub, request()).done();
  const cut = whole.text.slice(12, 16);
  const stop = { max_tokens: 40, stop_strings: [cut], ignore_eos: true };
  const stopped = await Stream.generate(stub, request({ stop })).done();
  assert.equal(stopped.choice().reason, "FINISH_REASON_STOP");
  assert.equal(stopped.text, whole.text.slice(0, whole.text.indexOf(cut)));
});

test("a promise is given where an SLO is stated, and a quote says what it would be", async () => {
  const slo = { ttft_ms: 20_000, tpot_ms: 5_000 };
  const quoted = await unary(stub, "Quote", { request: request({ slo }) });
  assert.equal(quoted.verdict, "VERDICT_ACCEPTED");
  const stream = await Stream.generate(stub, request({ slo })).done();
  assert.equal(stream.accepted.promise.ttft_ms, 20_000);
  assert.equal(stream.finished.delivery.ttft_kept, true);
});

test("a chat is rendered by the model's template, and its tokens can be counted beforehand", async () => {
  const { models } = await unary(stub, "ListModels", {});
  assert.equal(models.length, 1);
  const { count, token_ids: ids } = await unary(stub, "CountTokens", { text: "The list is" });
  assert.equal(ids.length, count);
  const stream = await Stream.generate(stub, request({ text: undefined, tokens: { token_ids: ids } })).done();
  assert.equal(stream.accepted.prompt_tokens, count);
  assert.deepEqual(stream.ids, (await Stream.generate(stub, request()).done()).ids);
});

test("sixty-four streams at once are each whole", async () => {
  const streams = Array.from({ length: 64 }, () => Stream.generate(stub, request({ max_tokens: 24 })));
  const [first, ...others] = await Promise.all(streams.map((stream) => stream.done()));
  for (const { ids } of others) assert.deepEqual(ids, first.ids);
});

test("two calls of one request each hear all of it, and it outlives the one that goes", async () => {
  const fields = request({ request_id: "node-shared", max_tokens: 300 });
  const first = Stream.generate(stub, fields);
  await first.until(({ ids }) => ids.length > 20);
  const second = Stream.generate(stub, fields);
  await second.until(({ ids }) => ids.length > 20);
  first.call.cancel();
  await first.failure();
  await second.done();
  assert.deepEqual(second.ids.slice(0, first.ids.length), first.ids);
  assert.equal(second.ids.length, 300);
});

test("an end by a stop string says which one it was", async () => {
  const whole = await Stream.generate(stub, request()).done();
  const stop_strings = ["never said", whole.text.slice(12, 16)];
  const stopped = await Stream.generate(stub, request({ stop: { max_tokens: 40, stop_strings, ignore_eos: true } })).done();
  assert.equal(stopped.choice().matched, stop_strings[1]);
});

test("tokens become text again", async () => {
  const { token_ids } = await unary(stub, "CountTokens", { text: "The list is" });
  const { text } = await unary(stub, "Detokenize", { token_ids });
  assert.match(text, /The list is$/);
});

test("a call that is cancelled frees the fleet at once", async () => {
  const stream = Stream.generate(stub, request({ max_tokens: 4000 }));
  await stream.until(({ ids }) => ids.length > 3);
  stream.call.cancel();
  assert.equal((await stream.failure()).code, status.CANCELLED);
  await eventually(idle, "nothing runs");
});

test("Cancel ends a stream of another call, with a reason", async () => {
  const stream = Stream.generate(stub, request({ request_id: "node-cancelled", max_tokens: 4000 }));
  await stream.until(({ ids }) => ids.length > 3);
  const { cancelled } = await unary(stub, "Cancel", { request_id: "node-cancelled" });
  assert.equal(cancelled, true);
  await stream.done();
  assert.equal(stream.choice().reason, "FINISH_REASON_CANCELLED");
  await eventually(idle, "nothing runs");
  assert.equal((await unary(stub, "Cancel", { request_id: "node-never-sent" })).cancelled, false);
});
