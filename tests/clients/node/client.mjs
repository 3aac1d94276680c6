// A client of the fleet made from the contract's files alone: no code of Baton's SDK is behind it.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";
import protobuf from "protobufjs";

const here = path.dirname(fileURLToPath(import.meta.url));
export const CONTRACT = path.resolve(here, "../../../proto");
const GOOGLE = path.dirname(createRequire(import.meta.url).resolve("google-proto-files/package.json"));

const SHAPE = { keepCase: true, longs: String, enums: String, defaults: true, oneofs: true, includeDirs: [CONTRACT] };

const loaded = grpc.loadPackageDefinition(
  protoLoader.loadSync(["baton/v1/inference.proto", "baton/operators/v1/fleet.proto"], SHAPE),
);
export const { InferenceService } = loaded.baton.v1;
export const { FleetService } = loaded.baton.operators.v1;
export const { status } = grpc;

/** What the test's driver says of the fleet it has started. */
export const fleet = {
  addresses: process.env.BATON_ADDRESSES.split(","),
  secure: JSON.parse(process.env.BATON_SECURE ?? "null"),
  pids: JSON.parse(process.env.BATON_PIDS ?? "{}"),
};

function channelCredentials() {
  if (!fleet.secure) return grpc.credentials.createInsecure();
  const { ca, key, cert } = fleet.secure;
  return grpc.credentials.createSsl(readFileSync(ca), readFileSync(key), readFileSync(cert));
}

export function metadata(apiKey = fleet.secure?.apiKey) {
  const sent = new grpc.Metadata();
  if (apiKey) sent.set("authorization", `Bearer ${apiKey}`);
  return sent;
}

/** A stub of a service at one router. Close it when done. */
export function connect(Service = InferenceService, address = fleet.addresses[0]) {
  return new Service(address, channelCredentials());
}

/** Call a method with one response. Rejects with the call's error. */
export function unary(stub, method, request, sent = metadata()) {
  return new Promise((resolve, reject) => {
    stub[method](request, sent, { deadline: Date.now() + 30_000 }, (error, response) =>
      error ? reject(error) : resolve(response),
    );
  });
}

/** A request with sensible defaults. */
export function request(fields = {}) {
  const { max_tokens = 40, ...rest } = fields;
  return {
    text: "The list is",
    sampling: { temperature: 1, seed: "7" },
    stop: { max_tokens, ignore_eos: true },
    ...rest,
  };
}

/**
 * One stream's events as they come, and what they add up to.
 *
 * `tokens` checks that every index comes once and in order, as the contract promises.
 */
export class Stream {
  constructor(call) {
    this.call = call;
    this.accepted = undefined;
    this.finished = undefined;
    this.choices = new Map();
    this.retries = 0;
    this.error = undefined;
    this.waiting = [];
    call.on("data", (message) => this.#take(message.event));
    call.on("error", (error) => this.#end(error));
    call.on("end", () => this.#end());
  }

  static generate(stub, fields, sent = metadata()) {
    return new Stream(stub.Generate(fields, sent));
  }

  static resume(stub, fields, sent = metadata()) {
    return new Stream(stub.Resume(fields, sent));
  }

  choice(index = 0) {
    if (!this.choices.has(index)) this.choices.set(index, { ids: [], text: "", reason: undefined });
    return this.choices.get(index);
  }

  get ids() {
    return this.choice().ids;
  }

  get text() {
    return this.choice().text;
  }

  /** Continue counting where an earlier stream of the same request broke. */
  goOnFrom(earlier) {
    for (const [index, { ids, text }] of earlier.choices) {
      Object.assign(this.choice(index), { ids: [...ids], text });
    }
    return this;
  }

  #take(event) {
    const value = event[event.event];
    if (event.event === "accepted") this.accepted = value;
    else if (event.event === "tokens") this.#tokens(value);
    else if (event.event === "choice_finished") this.#finish(value);
    else if (event.event === "retrying") this.retries += 1;
    else if (event.event === "finished") this.finished = value;
    this.#wake();
  }

  #finish({ choice, reason, matched, ...rest }) {
    Object.assign(this.choice(choice), { reason, matched: matched && rest[matched] });
  }

  #tokens({ choice, first_index: first, token_ids: ids, text }) {
    const held = this.choice(choice);
    if (first !== held.ids.length) {
      this.error = new Error(`choice ${choice}: index ${first} came after ${held.ids.length} tokens`);
      this.call.cancel();
      return;
    }
    held.ids.push(...ids);
    held.text += text;
  }

  #end(error) {
    this.error ??= error;
    this.ended = true;
    this.#wake();
  }

  #wake() {
    this.waiting = this.waiting.filter(({ condition, resolve, reject }) => {
      if (condition(this)) resolve(this);
      else if (this.ended) reject(this.error ?? new Error("the stream ended before its time"));
      else return true;
      return false;
    });
  }

  /** Wait until a condition of this stream holds. Rejects where the stream ends first. */
  until(condition) {
    return new Promise((resolve, reject) => {
      this.waiting.push({ condition, resolve, reject });
      this.#wake();
    });
  }

  /** The whole stream; rejects with its error. */
  async done() {
    await this.until((stream) => stream.ended);
    if (this.error) throw this.error;
    return this;
  }

  /** The error that the stream is expected to end with. */
  async failure() {
    await this.until((stream) => stream.ended);
    if (!this.error) throw new Error("the stream ended well");
    return this.error;
  }
}

const rpc = protobuf.loadSync([`${GOOGLE}/google/rpc/status.proto`, `${GOOGLE}/google/rpc/error_details.proto`]);
rpc.resolvePath = (_, target) => (target.startsWith("baton/") ? path.join(CONTRACT, target) : target);
rpc.loadSync(path.join(CONTRACT, "baton/v1/inference.proto"));

/** The google.rpc details of an error by the last part of their type's name. */
export function details(error) {
  const [packed] = error.metadata.get("grpc-status-details-bin");
  if (!packed) return {};
  const found = rpc.lookupType("google.rpc.Status").decode(packed);
  return Object.fromEntries(
    found.details.map(({ type_url: url, value }) => {
      const name = url.slice(url.lastIndexOf("/") + 1);
      const type = rpc.lookupType(name);
      const plain = type.toObject(type.decode(value), { longs: Number, enums: String, defaults: true });
      return [name.slice(name.lastIndexOf(".") + 1), plain];
    }),
  );
}

/** One snapshot of the fleet, as operators see it. */
export function snapshot() {
  const stub = connect(FleetService);
  return new Promise((resolve, reject) => {
    const call = stub.Watch({ interval_ms: 100 }, metadata());
    call.once("data", (found) => {
      call.cancel();
      resolve(found);
    });
    call.on("error", (error) => (error.code === status.CANCELLED ? undefined : reject(error)));
  }).finally(() => stub.close());
}

/** Wait for a condition of the fleet. */
export async function eventually(condition, what, withinMs = 20_000) {
  for (const giveUpAt = Date.now() + withinMs; Date.now() < giveUpAt; await sleep(50)) {
    if (await condition()) return;
  }
  throw new Error(`${what}: not within ${withinMs} ms`);
}
