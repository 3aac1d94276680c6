/** The client of a fleet. */

import { randomBytes, randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { CallOptions } from "@connectrpc/connect";
import type { Prompt } from "./chat.ts";
import { type Credentials, checkCredentials } from "./credentials.ts";
import { Unavailable } from "./errors.ts";
import { type CheckedTimeout, checkedTimeout } from "./limits.ts";
import { Routers } from "./routers.ts";
import { GenerationStream } from "./stream.ts";
import type { Completion, Model, Quote, Timeout } from "./types.ts";
import { modelOf, quoteOf } from "./wire/events.ts";
import { countTokensOf, detokenizeOf, type RequestParts, requestOf } from "./wire/requests.ts";
import { type Connection, Router } from "./wire/router.ts";
import { sharingOf } from "./wire/sharing.ts";

export const DEFAULT_ADDRESS = "127.0.0.1:50051";
const LONGEST_UNARY_S = 30;
const LAST_CANCELS_MS = 2_000;

export interface ClientOptions {
  tenant?: string | undefined;
  model?: string | undefined;
  timeout?: Timeout | undefined;
  /** How long the fleet keeps working after a connection breaks. 10 by default. */
  resumeGraceS?: number | undefined;
  /** For a secured fleet. */
  credentials?: Credentials | undefined;
  /**
   * Whether generations share calls, which costs less where many run at once. By default those beyond eight at once
   * at an address do. A proxy that spreads calls over routers sends those on one call to the same router.
   */
  multiplex?: boolean | undefined;
  /** Opens the connection to an address. By default over HTTP/2, with TLS if `credentials` have a CA. */
  connect?: ((address: string) => Connection) | undefined;
}

export interface GenerateOptions extends RequestParts {
  /** Two calls with the same `requestId` are one generation, of which both receive all events. */
  requestId?: string | undefined;
  timeout?: Timeout | undefined;
  /** Ends the generation on the fleet; the stream throws the signal's reason. */
  signal?: AbortSignal | undefined;
}

export interface CallLimits {
  signal?: AbortSignal | undefined;
}

type Service = Parameters<Parameters<Router["unary"]>[0]>[0];

/**
 * Calls a fleet through any of its routers.
 *
 *     const client = new Client("127.0.0.1:50051");
 *     for await (const event of client.generate("import asyncio\n")) console.log(event);
 *     await client.close();
 */
export class Client {
  readonly #routers: Routers;
  readonly #tenant: string;
  readonly #model: string;
  readonly #timeout: CheckedTimeout;
  readonly #resumeGraceMs: number;
  readonly #cancels = new Set<Promise<unknown>>();
  #isClosed = false;

  constructor(addresses: string | readonly string[] = DEFAULT_ADDRESS, options: ClientOptions = {}) {
    const { tenant = "", model = "", timeout, resumeGraceS = 10, credentials = {}, connect } = options;
    checkCredentials(credentials);
    const sharing = sharingOf(options.multiplex);
    const checked = checkedAddresses(typeof addresses === "string" ? [addresses] : addresses);
    this.#routers = new Routers(
      checked.map((address) => new Router(address, credentials, connect?.(address), sharing)),
    );
    this.#tenant = tenant;
    this.#model = model;
    this.#timeout = checkedTimeout(timeout);
    this.#resumeGraceMs = Math.round(resumeGraceS * 1000);
  }

  /** Wait until pending cancellations reach the fleet, then close the connections. */
  async close(): Promise<void> {
    this.#isClosed = true;
    const patience = new AbortController();
    const late = sleep(LAST_CANCELS_MS, undefined, { signal: patience.signal }).catch(() => undefined);
    await Promise.race([Promise.all(this.#cancels), late]);
    patience.abort();
    this.#routers.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Return the events of one generation. The request is sent when the first event is awaited. */
  generate(prompt: Prompt, options: GenerateOptions = {}): GenerationStream {
    const { requestId, timeout, signal, ...parts } = options;
    // A seed drawn here stays the same on every router that resumes the generation.
    const seed = parts.sampling?.seed ?? randomBytes(8).readBigUInt64BE() >> 1n;
    const sender = {
      requestId: requestId || randomUUID().replaceAll("-", ""),
      tenant: this.#tenant,
      model: this.#model,
      resumeGraceMs: this.#resumeGraceMs,
    };
    const request = requestOf(prompt, { ...parts, sampling: { ...parts.sampling, seed } }, sender);
    return new GenerationStream(request, {
      routers: this.#routers,
      timeout: timeout === undefined ? this.#timeout : checkedTimeout(timeout),
      signal,
      abandon: (id) => this.#abandon(id),
    });
  }

  /** Return a whole generation. Throws `GenerationFailed` if the fleet could not complete it. */
  async complete(prompt: Prompt, options: GenerateOptions = {}): Promise<Completion> {
    return await this.generate(prompt, options).collect();
  }

  /** End a generation wherever it runs. Return false if no router that was called ran it. */
  async cancel(requestId: string, { signal }: CallLimits = {}): Promise<boolean> {
    const request = { tenant: this.#tenant, requestId };
    const responses = await this.#callAll((service, options) => service.cancel(request, options), signal);
    return responses.some(({ cancelled }) => cancelled);
  }

  /** Return the promise that this request would get now. */
  async quote(prompt: Prompt, { signal, ...parts }: RequestParts & CallLimits = {}): Promise<Quote> {
    const request = requestOf(prompt, parts, { tenant: this.#tenant, model: this.#model });
    return quoteOf(await this.#callAny((service, options) => service.quote({ request }, options), signal));
  }

  /** Return the token ids of a text or a chat; their number is `length`. */
  async countTokens(prompt: Prompt, { signal }: CallLimits = {}): Promise<readonly number[]> {
    const request = countTokensOf(prompt, this.#model);
    const response = await this.#callAny((service, options) => service.countTokens(request, options), signal);
    return response.tokenIds;
  }

  /** Return the text of token ids, as the model's tokenizer decodes them. */
  async detokenize(
    tokenIds: readonly number[],
    { skipSpecialTokens = true, signal }: CallLimits & { skipSpecialTokens?: boolean | undefined } = {},
  ): Promise<string> {
    const request = detokenizeOf({
      model: this.#model,
      tokenIds,
      skipSpecialTokens,
      includeTokenBytes: false,
    });
    return (await this.#callAny((service, options) => service.detokenize(request, options), signal)).text;
  }

  /** Return the bytes of each token by itself; a token may begin or end inside a character. */
  async tokenBytes(tokenIds: readonly number[], { signal }: CallLimits = {}): Promise<readonly Uint8Array[]> {
    const options = { model: this.#model, tokenIds, skipSpecialTokens: false, includeTokenBytes: true };
    const request = detokenizeOf(options);
    return (await this.#callAny((service, limits) => service.detokenize(request, limits), signal)).tokenBytes;
  }

  async models({ signal }: CallLimits = {}): Promise<readonly Model[]> {
    const response = await this.#callAny((service, options) => service.listModels({}, options), signal);
    return response.models.map(modelOf);
  }

  /** Return the tenant that the credential proves; empty if the fleet requires no credentials. */
  async provenTenant({ signal }: CallLimits = {}): Promise<string> {
    const asked = { tenantOnly: true };
    return (await this.#callAny((service, options) => service.listModels(asked, options), signal)).tenant;
  }

  async #callAny<T>(
    call: (service: Service, options: CallOptions) => Promise<T>,
    signal: AbortSignal | undefined,
  ): Promise<T> {
    const once = (router: Router) => router.unary(call, this.#unaryOptions(signal));
    return await this.#routers.callAny(once, this.#timeout.connectS, signal);
  }

  /** Return the responses of all reachable routers. Throws `Unavailable` if there are none. */
  async #callAll<T>(
    call: (service: Service, options: CallOptions) => Promise<T>,
    signal: AbortSignal | undefined,
  ): Promise<T[]> {
    const calls = this.#routers.all.map((router) => router.unary(call, this.#unaryOptions(signal)));
    const results = await Promise.allSettled(calls);
    signal?.throwIfAborted();
    const failures = results.filter((result) => result.status === "rejected").map(({ reason }) => reason);
    for (const failure of failures) {
      if (!(failure instanceof Unavailable) || failures.length === results.length) throw failure;
    }
    return results.filter((result) => result.status === "fulfilled").map(({ value }) => value);
  }

  #unaryOptions(signal: AbortSignal | undefined): CallOptions {
    const timeoutMs = (this.#timeout.totalS ?? LONGEST_UNARY_S) * 1000;
    return signal === undefined ? { timeoutMs } : { timeoutMs, signal };
  }

  /** Cancel an abandoned generation in the background. */
  #abandon(requestId: string): void {
    if (this.#isClosed) return; // the fleet notices the closed connection
    // An unreachable fleet ends the generation by itself after the resume grace.
    const cancel = this.cancel(requestId).catch(() => false);
    this.#cancels.add(cancel);
    void cancel.finally(() => this.#cancels.delete(cancel));
  }
}

function checkedAddresses(addresses: readonly string[]): readonly string[] {
  if (addresses.length === 0) {
    throw new RangeError("addresses is empty: name at least one router as host:port");
  }
  for (const address of addresses) {
    if (!/^[^\s/@?#]+:\d+$/.test(address) || !URL.canParse(`http://${address}`)) {
      throw new RangeError(`addresses is ${JSON.stringify(addresses)}: each must be a router's host:port`);
    }
  }
  return addresses;
}
