import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Stream, connect, details, metadata, request, status, unary } from "./client.mjs";

let stub;
before(() => {
  stub = connect();
});
after(() => stub.close());

test("a client with a certificate and an API key is served", async () => {
  const stream = await Stream.generate(stub, request()).done();
  assert.equal(stream.ids.length, 40);
  assert.equal(stream.choice().reason, "FINISH_REASON_LENGTH");
});

for (const [name, key, reason] of [
  ["no key", "", "CREDENTIAL_MISSING"],
  ["a wrong key", "0".repeat(64), "CREDENTIAL_INVALID"],
]) {
  test(`a stream and a unary call with ${name} are UNAUTHENTICATED`, async () => {
    const error = await Stream.generate(stub, request(), metadata(key)).failure();
    assert.equal(error.code, status.UNAUTHENTICATED);
    assert.equal(details(error).ErrorInfo.reason, reason);
    await assert.rejects(unary(stub, "ListModels", {}, metadata(key)), { code: status.UNAUTHENTICATED });
  });
}

test("another tenant's name is PERMISSION_DENIED", async () => {
  const error = await Stream.generate(stub, request({ tenant: "somebody-else" })).failure();
  assert.equal(error.code, status.PERMISSION_DENIED);
  assert.equal(details(error).ErrorInfo.reason, "TENANT_NOT_ALLOWED");
});
