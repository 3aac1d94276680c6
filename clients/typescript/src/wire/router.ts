/** The calls to one router: the interface between the SDK's logic and the network. */

import type { ClientHttp2Stream } from "node:http2";
import net from "node:net";
import tls from "node:tls";
import { type CallOptions, type Client, createClient, type Transport } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import {
  type GenerateRequest,
  type GenerateResponse,
  type GenerationEvent,
  InferenceService,
  type ResumeRequest,
  type ResumeResponse,
} from "../../gen/baton/v1/inference_pb.js";
import { type Credentials, headersOf, tlsOf } from "../credentials.ts";
import { SharedCalls } from "./many.ts";
import { BEYOND_FEW, type Sharing } from "./sharing.ts";
import { errorOf } from "./status.ts";

/** One attempt to connect, TLS included, fails after this. */
const CONNECT_MS = 5_000;
/** A half-open connection is noticed even while a request waits in silence. */
const PINGS = { pingIntervalMs: 20_000, pingTimeoutMs: 5_000 };

type Service = Client<typeof InferenceService>;

/** A connection to a router, opened by the first call. */
export interface Connection {
  transport: Transport;
  close(): void;
}

/** Calls to one router. Every failure is a `BatonError`; after `Unavailable` a call may be repeated. */
export class Router {
  readonly address: string;
  readonly #connection: Connection;
  readonly #service: Service;
  readonly #credentials: Credentials;
  readonly #shared: SharedCalls;
  /** Generations that have calls of their own. */
  #numAlone = 0;
  #isClosed = false;

  constructor(
    address: string,
    credentials: Credentials,
    connection: Connection = connect(address, credentials),
    sharing: Sharing = BEYOND_FEW,
  ) {
    this.address = address;
    this.#connection = connection;
    const service = createClient(InferenceService, connection.transport);
    this.#service = service;
    this.#credentials = credentials;
    this.#shared = new SharedCalls(address, sharing, (requests, signal) =>
      service.generateMany(requests, { signal }),
    );
  }

  /** Return the response of a call. */
  async unary<T>(
    call: (service: Service, options: CallOptions) => Promise<T>,
    options: CallOptions,
  ): Promise<T> {
    const headers = this.#headers();
    try {
      return await call(this.#service, { ...options, headers });
    } catch (error) {
      throw errorOf(error, this.address);
    }
  }

  /** Yield the events of a generation. Closing the generator ends its call, or its part in a shared one. */
  async *generate(
    request: GenerateRequest,
    signal: AbortSignal,
  ): AsyncGenerator<GenerationEvent, void, undefined> {
    const generation = this.#shared.begin(request, this.#headers(), this.#numAlone);
    if (generation !== undefined && !(yield* this.#shared.events(generation, signal))) return;
    yield* this.#alone((options) => this.#service.generate(request, options), signal);
  }

  /** Yield the further events of a generation. Closing the generator ends its call. */
  async *resume(
    request: ResumeRequest,
    signal: AbortSignal,
  ): AsyncGenerator<GenerationEvent, void, undefined> {
    yield* this.#alone((options) => this.#service.resume(request, options), signal);
  }

  async *#alone(
    call: (options: CallOptions) => AsyncIterable<GenerateResponse | ResumeResponse>,
    signal: AbortSignal,
  ): AsyncGenerator<GenerationEvent, void, undefined> {
    const headers = this.#headers();
    const over = new AbortController();
    this.#numAlone += 1;
    try {
      for await (const { event } of call({ headers, signal: AbortSignal.any([signal, over.signal]) })) {
        if (event !== undefined) yield event;
      }
    } catch (error) {
      throw errorOf(error, this.address);
    } finally {
      this.#numAlone -= 1;
      over.abort();
    }
  }

  /** End all calls. Later ones are refused. */
  close(): void {
    this.#isClosed = true;
    this.#connection.close();
  }

  #headers(): Record<string, string> {
    if (this.#isClosed) throw new TypeError("the client is closed");
    return headersOf(this.#credentials);
  }
}

/** Return a connection over HTTP/2, with TLS if the credentials have a CA. */
export function connect(address: string, credentials: Credentials, pings: typeof PINGS = PINGS): Connection {
  const options = tlsOf(credentials);
  const isSecure = options.ca !== undefined;
  const baseUrl = `${isSecure ? "https" : "http"}://${address}`;
  const createConnection = ({ hostname, port }: URL): net.Socket => {
    const target = { host: hostname.replace(/^\[|\]$/g, ""), port: Number(port || (isSecure ? 443 : 80)) };
    return limited(isSecure ? tlsSocket(target, options) : net.connect(target), isSecure);
  };
  const sessionManager = new Sessions(baseUrl, pings, { ...options, createConnection });
  return {
    transport: createGrpcTransport({ baseUrl, sessionManager }),
    close: () => sessionManager.abort(),
  };
}

/** The connections of a transport. An error of one that is given up is of no more interest. */
class Sessions extends Http2SessionManager {
  override async request(...call: Parameters<Http2SessionManager["request"]>): Promise<ClientHttp2Stream> {
    const stream = await super.request(...call);
    // Its own listener is gone once the connection is closed, and without any the process would end.
    if (stream.session?.listeners("error").includes(ignore) === false) stream.session.on("error", ignore);
    return stream;
  }
}

function ignore(): void {}

function tlsSocket(target: { host: string; port: number }, options: Record<string, Buffer>): tls.TLSSocket {
  const name = net.isIP(target.host) === 0 ? { servername: target.host } : {};
  return tls.connect({ ...target, ...options, ...name, ALPNProtocols: ["h2"] });
}

/** Give up an attempt to connect that takes too long. */
function limited(socket: net.Socket, isSecure: boolean): net.Socket {
  const late = () => socket.destroy(new Error(`connecting took longer than ${CONNECT_MS / 1000} s`));
  const timer = setTimeout(late, CONNECT_MS);
  for (const event of [isSecure ? "secureConnect" : "connect", "close"]) {
    socket.once(event, () => clearTimeout(timer));
  }
  return socket;
}
