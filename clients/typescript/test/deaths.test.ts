// Runs last, by its place in the driver's list: it kills processes of the fleet, which the driver restarts.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import type { Client } from "../src/index.ts";
import { connect } from "../src/wire/router.ts";
import { addresses, clientOf, kill, Reader, returned, sampled } from "./fleet.ts";

const client = clientOf();
after(() => client.close());

const FEW = { numStreams: 6, options: sampled(600) };
/** So many that each of two routers has streams alone on a call, and others that share one. */
const MANY = { numStreams: 40, options: sampled(200) };
const ATTEMPTS = 5;

/** Start streams, wait until each of them has tokens, do something to the fleet, and read them to their ends. */
async function through(
  event: () => void,
  caller: Client,
  { numStreams, options }: typeof FEW,
): Promise<Reader[]> {
  const readers = Array.from(
    { length: numStreams },
    () => new Reader(caller.generate("The list is", options)),
  );
  await Promise.all(readers.map((reader) => reader.until(20)));
  event();
  return await Promise.all(readers.map((reader) => reader.until()));
}

async function assertIdentical(readers: readonly Reader[], { options }: typeof FEW): Promise<void> {
  const undisturbed = clientOf(addresses.slice(1));
  const whole = await undisturbed.complete("The list is", options);
  for (const { tokenIds, text } of readers) {
    assert.deepEqual(tokenIds, whole.choices[0]?.tokenIds);
    assert.equal(text, whole.text);
  }
}

/** An act on the fleet while streams are under way, and the one that makes the fleet whole again. */
interface Strike {
  strike: (attempt: number) => void;
  mend: (attempt: number) => void | Promise<void>;
}

/**
 * Strike until it hits a stream that is under way.
 *
 * On a busy machine all of them may have ended before it. Whether it hits or not, they have to be identical.
 */
async function struck(
  { strike, mend }: Strike,
  isHit: (reader: Reader) => boolean,
  { caller = client, streams = FEW }: { caller?: Client; streams?: typeof FEW } = {},
): Promise<void> {
  for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
    const readers = await through(() => strike(attempt), caller, streams);
    await assertIdentical(readers, streams);
    await mend(attempt);
    if (readers.some(isHit)) return;
  }
  assert.fail("each time the streams had ended before the strike");
}

function wasResumed({ stream }: Reader): boolean {
  return stream.resumes > 0;
}

function wasRetried({ events }: Reader): boolean {
  const finished = events.find((event) => event.type === "finished");
  return (finished?.usage.attempts ?? 0) >= 2;
}

test("streams go on when their decode worker is killed, with the tokens they would have had", async () => {
  const victim = (attempt: number) => `decode-${attempt % 2}`;
  const killing = {
    strike: (attempt: number) => kill(victim(attempt)),
    mend: (attempt: number) => returned(victim(attempt)),
  };
  await struck(killing, wasRetried);
});

test("streams are resumed at the other router when their own falls silent", async () => {
  const pings = { pingIntervalMs: 500, pingTimeoutMs: 500 };
  const pinging = clientOf(addresses, { connect: (address) => connect(address, {}, pings) });
  const stopping = {
    strike: () => kill("router-0", "SIGSTOP"),
    mend: () => kill("router-0", "SIGCONT"),
  };
  try {
    await struck(stopping, wasResumed, { caller: pinging });
  } finally {
    stopping.mend();
  }
});

test("streams are resumed at the other router when their own is killed", async () => {
  const killing = {
    strike: () => kill("router-0"),
    mend: async () => {
      const calls = Array.from({ length: 4 }, () => client.models());
      assert.ok((await Promise.all(calls)).every(([model]) => model !== undefined));
      await returned("router-0");
    },
  };
  await struck(killing, wasResumed);
});

test("so are those that share a call", async () => {
  const killing = { strike: () => kill("router-0"), mend: () => returned("router-0") };
  await struck(killing, wasResumed, { streams: MANY });
});
