/** The calls to one router: the interface between the SDK's logic and the network. */

import type { ClientHttp2Stream } from "node:http2";
import net from "node:net";
import tls from "node:tls";
import { type CallOptions, type Client, createClient, type Transport } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { InferenceService } from "../../gen/baton/v1/inference_pb.js";
import { type Credentials, headersOf, tlsOf } from "../credentials.ts";
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
  #isClosed = false;

  constructor(
    address: string,
    credentials: Credentials,
    connection: Connection = connect(address, credentials),
  ) {
    this.address = address;
    this.#connection = connection;
    this.#service = createClient(InferenceService, this.#connection.transport);
    this.#credentials = credentials;
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

  /** Yield the responses of a call. Closing the generator ends the call. */
  async *stream<T>(
    call: (service: Service, options: CallOptions) => AsyncIterable<T>,
    signal: AbortSignal,
  ): AsyncGenerator<T, void, undefined> {
    const headers = this.#headers();
    const over = new AbortController();
    try {
      yield* call(this.#service, { headers, signal: AbortSignal.any([signal, over.signal]) });
    } catch (error) {
      throw errorOf(error, this.address);
    } finally {
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
