// Runs last, by its place in the driver's list: it kills processes of the fleet.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Stream, connect, fleet, request, snapshot, status } from "./client.mjs";

let stub;
before(() => {
  stub = connect();
});
after(() => stub.close());

/** What to send to go on with a stream that broke: all that a client needs is what it has received. */
function resumption(fields, broken, session) {
  return {
    request: { ...fields, request_id: broken.accepted.request_id, sampling: { ...fields.sampling, seed: broken.accepted.seed } },
    session,
    received: [...broken.choices].map(([choice, { ids }]) => ({ choice, token_ids: ids })),
  };
}

test("a broken call is resumed by index, here and at another router", async () => {
  const fields = request({ max_tokens: 200, resume_grace_ms: 10_000, sampling: { temperature: 1 } });
  const first = Stream.generate(stub, fields);
  await first.until(({ ids }) => ids.length > 20);
  first.call.cancel();
  await first.failure();
  const second = Stream.resume(stub, resumption(fields, first, 1)).goOnFrom(first);
  await second.until(({ ids }) => ids.length > first.ids.length + 20);
  second.call.cancel();
  assert.equal((await second.failure()).code, status.CANCELLED);

  const elsewhere = connect(undefined, fleet.addresses[1]);
  const third = await Stream.resume(elsewhere, resumption(fields, { ...first, choices: second.choices }, 2)).goOnFrom(second).done();
  assert.equal(third.ids.length, 200);

  const seeded = { ...fields, sampling: { ...fields.sampling, seed: first.accepted.seed } };
  const undisturbed = await Stream.generate(stub, seeded).done();
  assert.deepEqual(third.ids, undisturbed.ids);
  assert.equal(third.text, undisturbed.text);
  elsewhere.close();
});

test("a stream goes on when its decode worker is killed, with the tokens it would have had", async () => {
  const fields = request({ max_tokens: 400, resume_grace_ms: 10_000 });
  const undisturbed = await Stream.generate(stub, fields).done();
  const stream = Stream.generate(stub, fields);
  await stream.until(({ ids }) => ids.length > 20);
  const busy = (await snapshot()).workers.find(({ role, load }) => role === "WORKER_ROLE_DECODE" && load.running > 0);
  process.kill(fleet.pids[busy.worker_id], "SIGKILL");
  await stream.done();
  assert.ok(stream.retries > 0);
  assert.equal(stream.finished.usage.attempts, 2);
  assert.deepEqual(stream.ids, undisturbed.ids);
  assert.equal(stream.text, undisturbed.text);
});

test("a stream is resumed at the other router when its own is killed", async () => {
  const other = connect(undefined, fleet.addresses[1]);
  const fields = request({ max_tokens: 400, resume_grace_ms: 10_000 });
  const undisturbed = await Stream.generate(other, fields).done();
  const broken = Stream.generate(stub, fields);
  await broken.until(({ ids }) => ids.length > 20);
  process.kill(fleet.pids["router-0"], "SIGKILL");
  assert.equal((await broken.failure()).code, status.UNAVAILABLE);
  const resumed = await Stream.resume(other, resumption(fields, broken, 1)).goOnFrom(broken).done();
  assert.deepEqual(resumed.ids, undisturbed.ids);
  assert.equal(resumed.text, undisturbed.text);
  other.close();
});
