import assert from "node:assert/strict";
import { copyFileSync, mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";
import { BatonError, type Credentials, NotAllowed, Unavailable } from "../src/index.ts";
import { addresses, clientOf, credentials, SAMPLED } from "./fleet.ts";

async function thrownWith(changed: Credentials, tenant = ""): Promise<BatonError> {
  const options = { credentials: { ...credentials, ...changed }, tenant, timeout: { connectS: 0.5 } };
  const client = clientOf(addresses, options);
  const error = await client.complete("The list is", SAMPLED).catch((thrown: unknown) => thrown);
  assert.ok(error instanceof BatonError, String(error));
  return error;
}

function wrongKey(): string {
  const file = path.join(mkdtempSync(path.join(tmpdir(), "baton-")), "key");
  writeFileSync(file, "0".repeat(64));
  return file;
}

test("a client with a certificate and an API key is served", async () => {
  const client = clientOf();
  const { choices } = await client.complete("The list is", SAMPLED);
  assert.equal(choices[0]?.tokenIds.length, 40);
  assert.notEqual(await client.provenTenant(), "");
});

test("generations that share a call each have the client's key", async () => {
  const client = clientOf(addresses, { multiplex: true });
  const all = await Promise.all(Array.from({ length: 4 }, () => client.complete("The list is", SAMPLED)));
  for (const { choices } of all) assert.equal(choices[0]?.tokenIds.length, 40);
  const stranger = clientOf(addresses, {
    multiplex: true,
    credentials: { ...credentials, apiKeyFile: wrongKey() },
  });
  const refused = stranger.complete("The list is", SAMPLED);
  await assert.rejects(refused, { name: "NotAllowed", reason: "CREDENTIAL_INVALID" });
});

test("no key, a wrong key and another tenant's name are not allowed", async () => {
  const wrong = wrongKey();
  for (const [error, reason] of [
    [await thrownWith({ apiKeyFile: undefined }), "CREDENTIAL_MISSING"],
    [await thrownWith({ apiKeyFile: wrong }), "CREDENTIAL_INVALID"],
    [await thrownWith({}, "somebody-else"), "TENANT_NOT_ALLOWED"],
  ] as const) {
    assert.ok(error instanceof NotAllowed, String(error));
    assert.equal(error.reason, reason);
  }
});

test("a fleet cannot be reached without its CA or without a certificate, and the error says so", async () => {
  const strange = await thrownWith({ ca: credentials.cert });
  assert.ok(strange instanceof Unavailable);
  assert.match(strange.message, /certificate/);
  for (const changed of [
    { cert: undefined, key: undefined },
    { ca: undefined, cert: undefined, key: undefined, apiKeyFile: undefined },
  ]) {
    assert.ok((await thrownWith(changed)) instanceof Unavailable);
  }
});

test("the file of an API key is read again for each call", async () => {
  const apiKeyFile = wrongKey();
  const client = clientOf(addresses, { credentials: { ...credentials, apiKeyFile } });
  await assert.rejects(client.models(), NotAllowed);
  copyFileSync(credentials.apiKeyFile ?? "", apiKeyFile);
  assert.equal((await client.models()).length, 1);
});

test("credentials that do not go together are refused by their names", () => {
  const { ca, cert, apiKeyFile } = credentials;
  for (const [wrong, message] of [
    [{ ca, cert }, /one of cert and key is missing/],
    [{ apiKeyFile }, /ca is missing/],
    [{ ca, apiKeyFile: cert }, /must contain one line/],
  ] as const) {
    assert.throws(() => clientOf(addresses, { credentials: wrong }), { name: "RangeError", message });
  }
});
