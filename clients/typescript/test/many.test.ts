// Each test is run by name, at a router with a script for it: `tests/clients/test_typescript_many.py`.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, type ClientOptions, type Completion } from "../src/index.ts";
import { addresses, Reader } from "./fleet.ts";

async function withClient(options: ClientOptions, use: (client: Client) => Promise<void>): Promise<void> {
  const client = new Client(addresses, options);
  await use(client);
  await client.close();
}

function assertWhole(completions: readonly Completion[]): void {
  for (const { choices } of completions) assert.deepEqual(choices[0]?.tokenIds, [10, 11, 12]);
}

for (const multiplex of [undefined, false, true]) {
  test(`forty at once with ${multiplex}`, async () => {
    await withClient({ multiplex }, async (client) => {
      assertWhole(await Promise.all(Array.from({ length: 40 }, () => client.complete("hello"))));
    });
  });
}

test("one after the other", async () => {
  await withClient({ multiplex: true }, async (client) => {
    assertWhole([await client.complete("hello"), await client.complete("hello")]);
  });
});

test("two at once", async () => {
  await withClient({ multiplex: true }, async (client) => {
    assertWhole(await Promise.all([client.complete("harmful"), client.complete("another")]));
  });
});

test("a large one", async () => {
  await withClient({ multiplex: true }, async (client) => {
    assertWhole([await client.complete("x".repeat(64 * 1024))]);
  });
});

test("a large one after another", async () => {
  await withClient({ multiplex: true }, async (client) => {
    assertWhole([await client.complete("hello"), await client.complete("x".repeat(64 * 1024))]);
  });
});

test("more at once than may be unread", async () => {
  await withClient({ multiplex: true }, async (client) => {
    const { stream, tokenIds } = await new Reader(client.generate("hello")).until();
    assert.equal(tokenIds.length, 16_384);
    assert.equal(stream.resumes, 0);
  });
});

test("one that is not read", async () => {
  await withClient({ multiplex: true }, async (client) => {
    const slow = await new Reader(client.generate("hello")).until(1);
    assertWhole([await client.complete("another")]);
    await slow.until();
    assert.equal(slow.tokenIds.at(-1), 7);
    assert.equal(slow.stream.resumes, 1);
  });
});

test("one that waits while the client is closed", async () => {
  await withClient({ multiplex: true }, async (client) => {
    const reader = await new Reader(client.generate("hello")).until(1);
    const rest = assert.rejects(reader.until(), { name: "TypeError", message: "the client is closed" });
    await client.close();
    await rest;
  });
});
