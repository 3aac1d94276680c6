/**
 * The SDK of a Baton fleet for Node.js.
 *
 * In reading order:
 *
 * - `client`: the client; `chat`, `types`, `errors`, `credentials`: what it takes, returns and throws.
 * - `stream`, `progress`, `routers`, `limits`: how one generation survives routers, and for how long.
 * - `deltas`, `parsing`: content, reasoning and tool calls in the texts of choices, as routers read them.
 * - `wire`: the contract on gRPC; `../gen`: messages generated from `proto/`.
 */

export type * from "./chat.ts";
export {
  type CallLimits,
  Client,
  type ClientOptions,
  DEFAULT_ADDRESS,
  type GenerateOptions,
} from "./client.ts";
export type { Credentials } from "./credentials.ts";
export type * from "./deltas.ts";
export * from "./errors.ts";
export { type ChoiceDelta, messageOf, type ParsedEvent } from "./parsing.ts";
export type { GenerationStream } from "./stream.ts";
export type * from "./types.ts";
export type { RequestParts } from "./wire/requests.ts";
export type { Connection } from "./wire/router.ts";
