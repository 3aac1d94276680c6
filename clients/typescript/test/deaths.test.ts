// Runs last, by its place in the driver's list: it kills processes of the fleet.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import type { Client } from "../src/index.ts";
import { connect } from "../src/wire/router.ts";
import { addresses, clientOf, kill, Reader, sampled } from "./fleet.ts";

const client = clientOf();
after(() => client.close());

/** Long enough that no stream ends before the others have begun, on a busy machine too. */
const LONG = sampled(600);
const NUM_STREAMS = 6;

/** Start streams, wait until each of them has tokens, do something to the fleet, and read them to their ends. */
async function through(event: () => void, caller: Client = client): Promise<Reader[]> {
  const readers = Array.from({ length: NUM_STREAMS }, () => new Reader(caller.generate("The list is", LONG)));
  await Promise.all(readers.map((reader) => reader.until(20)));
  event();
  return await Promise.all(readers.map((reader) => reader.until()));
}

async function assertIdentical(readers: readonly Reader[]): Promise<void> {
  const undisturbed = clientOf(addresses.slice(1));
  const whole = await undisturbed.complete("The list is", LONG);
  for (const { tokenIds, text } of readers) {
    assert.deepEqual(tokenIds, whole.choices[0]?.tokenIds);
    assert.equal(text, whole.text);
  }
}

test("streams go on when their decode worker is killed, with the tokens they would have had", async () => {
  const readers = await through(() => kill("decode-0"));
  await assertIdentical(readers);
  const attempts = readers.map(({ events }) => events.find(({ type }) => type === "finished"));
  assert.ok(attempts.some((finished) => finished?.type === "finished" && finished.usage.attempts >= 2));
});

test("streams are resumed at the other router when their own falls silent", async () => {
  const pings = { pingIntervalMs: 500, pingTimeoutMs: 500 };
  const pinging = clientOf(addresses, { connect: (address) => connect(address, {}, pings) });
  try {
    const readers = await through(() => kill("router-0", "SIGSTOP"), pinging);
    await assertIdentical(readers);
    assert.ok(readers.some(({ stream }) => stream.resumes > 0));
  } finally {
    kill("router-0", "SIGCONT");
  }
});

test("streams are resumed at the other router when their own is killed", async () => {
  const readers = await through(() => kill("router-0"));
  await assertIdentical(readers);
  assert.ok(readers.some(({ stream }) => stream.resumes > 0));
  const calls = Array.from({ length: 4 }, () => client.models());
  assert.ok((await Promise.all(calls)).every(([model]) => model !== undefined));
});
