import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, test } from "node:test";
import {
  BatonError,
  Conflict,
  type GenerateOptions,
  InvalidRequest,
  NotFound,
  type Prompt,
  QueueFull,
  TooLarge,
  Unavailable,
} from "../src/index.ts";
import { addresses, clientOf, eventually, Reader, SAMPLED, sampled } from "./fleet.ts";

const client = clientOf();
after(() => client.close());

async function thrown(call: () => Promise<unknown>): Promise<unknown> {
  try {
    await call();
  } catch (error) {
    return error;
  }
  return assert.fail("the call succeeded");
}

const REFUSED: [name: string, prompt: Prompt, options: GenerateOptions, field: string][] = [
  ["a value out of range", "p", { sampling: { topP: 0 } }, "sampling.top_p"],
  ["a key of a map", "p", { sampling: { logitBias: { 99999999: 1 } } }, "sampling.logit_bias[99999999]"],
  [
    "long stop strings",
    "p",
    { stop: { strings: Array(16).fill("x".repeat(240_000)) } },
    "stop.stop_strings[0]",
  ],
  ["an empty prompt", "", {}, "text"],
  ["no token", [], {}, "tokens.token_ids"],
  ["a format that cannot be kept", "p", { outputFormat: { regex: "(" } }, "output_format.regex"],
];

for (const [name, prompt, options, field] of REFUSED) {
  test(`${name} is refused by its path, in a stream and in a quote`, async () => {
    const { sampling, stop, outputFormat } = options;
    for (const call of [
      () => client.complete(prompt, options),
      () => client.quote(prompt, { sampling, stop, outputFormat }),
    ]) {
      const error = await thrown(call);
      assert.ok(error instanceof InvalidRequest, String(error));
      assert.deepEqual([error.field, error.reason], [field, "INVALID_FIELD"]);
    }
  });
}

test("a message over the router's limit is too large", async () => {
  const error = await thrown(() => client.complete("x".repeat(9 << 20)));
  assert.ok(error instanceof TooLarge, String(error));
});

test("what speaks no HTTP/2 is unavailable, and the process lives on", async () => {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  const strange = clientOf([address], { timeout: { connectS: 0.3 } });
  const error = await thrown(() => strange.complete("p"));
  await strange.close();
  assert.ok(error instanceof Unavailable);
  assert.equal(error.address, address);
  server.close();
});

test("another model is not found", async () => {
  const other = clientOf(addresses, { model: "somebody-elses" });
  const error = await thrown(() => other.complete("p"));
  assert.ok(error instanceof NotFound);
  assert.equal(error.reason, "MODEL_NOT_FOUND");
});

test("an SLO that an idle fleet would miss is impossible", async () => {
  const tokens = Array.from({ length: 900 }, (_, index) => 3 + (index % 90));
  let error: unknown;
  await eventually(async () => {
    error = await thrown(() => client.complete(tokens, { ...SAMPLED, slo: { ttftMs: 1 } }));
    return !(error instanceof QueueFull);
  }, "the router has time to judge");
  assert.ok(error instanceof InvalidRequest, String(error));
  assert.equal(error.reason, "SLO_IMPOSSIBLE");
});

test("an id that is in use with other content is refused, and its request is left alone", async () => {
  const alone = clientOf(addresses.slice(0, 1));
  let error: unknown;
  await eventually(async () => {
    const taken = randomUUID();
    const running = new Reader(alone.generate("The list is", { ...sampled(300), requestId: taken }));
    await running.until(4);
    const other = alone.complete("Another list is", { ...SAMPLED, requestId: taken });
    error = await other.catch((thrown: unknown) => thrown);
    assert.equal((await running.until()).tokenIds.length, 300);
    return error instanceof BatonError; // on a busy machine the request may have ended before the other call
  }, "the id is in use");
  assert.ok(error instanceof Conflict);
  assert.equal(error.reason, "REQUEST_ID_IN_USE");
});
