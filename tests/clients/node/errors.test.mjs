import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Stream, connect, details, metadata, request, status, unary } from "./client.mjs";

const DOMAIN = "baton.v1";

let stub;
before(() => {
  stub = connect();
});
after(() => stub.close());

async function rejection(promise) {
  return promise.then(
    () => assert.fail("the call succeeded"),
    (error) => error,
  );
}

function assertReason(error, code, reason) {
  const { ErrorInfo } = details(error);
  assert.equal(error.code, code, error.message);
  assert.deepEqual([ErrorInfo?.domain, ErrorInfo?.reason], [DOMAIN, reason], error.message);
}

function assertField(error, field) {
  assertReason(error, status.INVALID_ARGUMENT, "INVALID_FIELD");
  assert.deepEqual(details(error).BadRequest.fieldViolations.map((violation) => violation.field), [field]);
}

const bad = request({ sampling: { temperature: 1, top_p: 0 } });
const stray = request({ sampling: { logit_bias: { 99_999_999: 1 } } });

for (const [call, send, field] of [
  ["Generate", () => Stream.generate(stub, bad).failure(), "sampling.top_p"],
  ["GenerateOnce", () => rejection(unary(stub, "GenerateOnce", { request: bad })), "request.sampling.top_p"],
  ["Quote", () => rejection(unary(stub, "Quote", { request: bad })), "request.sampling.top_p"],
  [
    "Resume",
    () => Stream.resume(stub, { request: { ...bad, request_id: "node-1" }, session: 1 }).failure(),
    "request.sampling.top_p",
  ],
  ["Resume without an id", () => Stream.resume(stub, { request: request(), session: 1 }).failure(), "request.request_id"],
  ["Cancel without an id", () => rejection(unary(stub, "Cancel", {})), "request_id"],
  ["a map's key", () => Stream.generate(stub, stray).failure(), "sampling.logit_bias[99999999]"],
]) {
  test(`${call}: the field that is wrong has a path from the call's own message`, async () => {
    assertField(await send(), field);
  });
}

test("a lone surrogate, which is no UTF-8, is a malformed message", async () => {
  const error = await Stream.generate(stub, request({ text: "a\ud800b" })).failure();
  assertReason(error, status.INVALID_ARGUMENT, "MALFORMED_MESSAGE");
});

for (const method of ["Generate", "GenerateOnce", "ListModels"]) {
  test(`bytes that are no message are a malformed message for ${method}`, async () => {
    const path = `/baton.v1.InferenceService/${method}`;
    const raw = (bytes) => bytes;
    const broken = Buffer.from([0x0a, 0xff, 0xff, 0xff]);
    const error = await new Promise((resolve, reject) => {
      const call = stub.makeServerStreamRequest(path, raw, raw, broken, metadata());
      call.on("error", resolve);
      call.on("data", () => reject(new Error("the call succeeded")));
    });
    assertReason(error, status.INVALID_ARGUMENT, "MALFORMED_MESSAGE");
  });
}

test("another model is not found", async () => {
  const error = await Stream.generate(stub, request({ model: "somebody-elses" })).failure();
  assertReason(error, status.NOT_FOUND, "MODEL_NOT_FOUND");
});

test("an SLO that an idle fleet would miss is impossible, every time", async () => {
  const token_ids = Array.from({ length: 900 }, (_, index) => 3 + (index % 90));
  for (let tries = 0; tries < 12; tries += 1) {
    const fields = request({ text: undefined, tokens: { token_ids }, slo: { ttft_ms: 1 } });
    assertReason(await Stream.generate(stub, fields).failure(), status.INVALID_ARGUMENT, "SLO_IMPOSSIBLE");
  }
});

test("an id that is in use with other content is refused, and its request is left alone", async () => {
  const running = Stream.generate(stub, request({ request_id: "node-taken", max_tokens: 300 }));
  await running.until(({ ids }) => ids.length > 3);
  const other = Stream.generate(stub, request({ request_id: "node-taken", text: "Another list is" }));
  assertReason(await other.failure(), status.ALREADY_EXISTS, "REQUEST_ID_IN_USE");
  assert.equal((await running.done()).ids.length, 300);
});

test("an unknown call is unimplemented", async () => {
  const raw = (bytes) => bytes;
  const error = await new Promise((resolve) => {
    stub.makeUnaryRequest("/baton.v1.InferenceService/Sing", raw, raw, Buffer.alloc(0), metadata(), resolve);
  });
  assert.equal(error.code, status.UNIMPLEMENTED);
});

test("a sixteen-fold stop string of 240 kB is refused by its path", async () => {
  const stop = { max_tokens: 8, stop_strings: Array.from({ length: 16 }, () => "x".repeat(240_000)) };
  assertField(await Stream.generate(stub, request({ stop })).failure(), "stop.stop_strings[0]");
});
