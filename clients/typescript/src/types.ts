/**
 * The types of the SDK: parts of requests, the events of a stream, and the results of other calls.
 *
 * Names are those of the Python SDK in camel case. A field of a request that is missing takes the fleet's
 * default; `proto/baton/v1/generation.proto` names the default and the accepted range beside each field. Names
 * that end in `Ms` are milliseconds, in `S` seconds.
 */

import type { JsonValue } from "./chat.ts";
import type { Delta } from "./deltas.ts";

export type SloClass = "interactive" | "standard" | "batch";
export type FinishReason = "eos" | "stop" | "length" | "cancelled" | "deadline" | "failed";
/** The kind of worker that computed the prompt: the decode worker itself, or a prefill worker. */
export type Path = "aggregated" | "disaggregated";
export type Verdict = "accepted" | "at risk" | "refused";

/** How the next token is sampled. `temperature` 0 is greedy. */
export interface Sampling {
  temperature?: number | undefined;
  topK?: number | undefined;
  topP?: number | undefined;
  minP?: number | undefined;
  repetitionPenalty?: number | undefined;
  presencePenalty?: number | undefined;
  frequencyPenalty?: number | undefined;
  /** What is added to the logits of single tokens, by token id. */
  logitBias?: Readonly<Record<number, number>> | undefined;
  seed?: bigint | number | undefined;
  n?: number | undefined;
  /** How many alternatives of each token come with its log-probability. */
  logprobs?: number | undefined;
  /** The same for the prompt's own tokens. */
  promptLogprobs?: number | undefined;
  /** If not empty, only these tokens are sampled. */
  allowedTokenIds?: readonly number[] | undefined;
  /** Words that never appear in the output. */
  badWords?: readonly string[] | undefined;
}

/** When a choice ends, and which of its tokens become text. */
export interface Stop {
  maxTokens?: number | undefined;
  minTokens?: number | undefined;
  strings?: readonly string[] | undefined;
  tokenIds?: readonly number[] | undefined;
  ignoreEos?: boolean | undefined;
  /** Keep the stop string or token that ended the choice in its text. */
  includeStop?: boolean | undefined;
  /** If false, the text contains special tokens, such as end-of-sequence. */
  skipSpecialTokens?: boolean | undefined;
}

/** The latency to promise. Without `ttftMs`, `tpotMs` and `itlMs` a request is never refused for latency. */
export interface Slo {
  ttftMs?: number | undefined;
  /** The mean gap between tokens after the first. */
  tpotMs?: number | undefined;
  /** Each of these gaps; `Delivery.maxGapMs` is the longest one. */
  itlMs?: number | undefined;
  deadlineMs?: number | undefined;
  sloClass?: SloClass | undefined;
  allowAtRisk?: boolean | undefined;
}

/** The program that a request is a call of: several calls, one after another, with one deadline. */
export interface Program {
  id: string;
  /** The time left for this call and all later ones when it is sent; 0 if it is over. */
  deadlineMs: number;
}

/** What the text has to be. In a chat with a `reasoningFormat`, reasoning may come before. */
export type OutputFormat =
  /** JSON that validates against this schema, a JSON value or its text. */
  | { jsonSchema: Readonly<Record<string, JsonValue>> | boolean | string }
  /** Any JSON object. */
  | { jsonObject: true }
  /** Text that as a whole matches this regular expression, in Rust's syntax. */
  | { regex: string }
  /** Text that this grammar derives: `start` in llguidance's dialect of Lark, or `root` in EBNF. */
  | { grammar: string }
  /** One of these texts. */
  | { oneOf: readonly string[] };

/**
 * How long this client waits, in seconds; without a limit it waits forever. Unlike `Slo.deadlineMs`, a timeout
 * throws an error.
 */
export interface Timeout {
  /** How long routers may be unreachable, at the start or after a break. 10 by default. */
  connectS?: number | undefined;
  /** From the call to the first token. */
  firstTokenS?: number | undefined;
  /** From the call to its end. */
  totalS?: number | undefined;
}

/** The promised SLO, undefined where none was requested, and the predicted 90 % quantiles. */
export interface LatencyPromise {
  predictedTtftMs: number;
  predictedTpotMs: number;
  ttftMs?: number | undefined;
  tpotMs?: number | undefined;
  atRisk: boolean;
  itlMs?: number | undefined;
  /** The 95 % quantile of the longest gap between tokens. */
  predictedItlMs: number;
}

/** The log-probability of one token; `top` has token ids with theirs, most likely first. */
export interface TokenLogprobs {
  logprob: number;
  top: readonly (readonly [tokenId: number, logprob: number])[];
}

/** The first event. */
export interface Accepted {
  type: "accepted";
  requestId: string;
  promise: LatencyPromise;
  seed: bigint;
  promptTokens: number;
  /** A digest of the fleet's weights, dtype and KV layout. */
  fingerprint: string;
  /** How the text writes tool calls; empty if it writes none. */
  toolFormat: string;
  /** How the text writes reasoning; empty if it writes none. */
  reasoningFormat: string;
  /** The prompt ends inside reasoning, so the text begins there. */
  reasoningOpen: boolean;
  /** The router reads the texts: deltas say what they say. If false, they are nothing but content. */
  hasDeltas: boolean;
}

/** The place in the queue; sent now and then while the request waits. */
export interface Queued {
  type: "queued";
  position: number;
  workAheadTokens: number;
  predictedTtftMs: number;
}

/** Log-probabilities of consecutive prompt tokens; `firstIndex` is 1 in the first of these events. */
export interface PromptLogprobs {
  type: "promptLogprobs";
  firstIndex: number;
  logprobs: readonly TokenLogprobs[];
}

/** Consecutive tokens of one choice, and what they add to its text. */
export interface Tokens {
  type: "tokens";
  choice: number;
  firstIndex: number;
  tokenIds: readonly number[];
  text: string;
  logprobs: readonly TokenLogprobs[];
  /** Content, reasoning and calls that the tokens add, with `Accepted.hasDeltas`. */
  deltas: readonly Delta[];
}

/** The end of a choice. `stopString` or `stopTokenId` is set if a stop rule of the request ended it. */
export interface ChoiceFinished {
  type: "choiceFinished";
  choice: number;
  reason: FinishReason;
  outputTokens: number;
  stopString: string | undefined;
  stopTokenId: number | undefined;
  /** The rest of the choice's deltas. */
  deltas: readonly Delta[];
}

export interface Usage {
  promptTokens: number;
  cachedPromptTokens: number;
  outputTokens: number;
  attempts: number;
}

/**
 * The latencies delivered, on the router's clock. `tpotMs` is undefined with fewer than two tokens.
 *
 * A limit that was not promised counts as kept. `ttftKept` is false if there was no token.
 */
export interface Delivery {
  ttftMs: number;
  tpotMs?: number | undefined;
  maxGapMs: number;
  e2eMs: number;
  ttftKept: boolean;
  tpotKept: boolean;
  itlKept: boolean;
}

/** The time spent in each phase; the phases add up to `Delivery.e2eMs`. */
export interface TimeSplit {
  queueMs: number;
  prefillMs: number;
  handoffMs: number;
  decodeMs: number;
  relayMs: number;
}

/** The last event. `error` is empty unless a choice ended as failed; `path` is undefined if nothing ran. */
export interface Finished {
  type: "finished";
  usage: Usage;
  promise: LatencyPromise;
  delivery: Delivery;
  split: TimeSplit;
  error: string;
  path: Path | undefined;
}

export type Event = Accepted | Queued | PromptLogprobs | Tokens | ChoiceFinished | Finished;

export interface Choice {
  index: number;
  text: string;
  tokenIds: readonly number[];
  finishReason: FinishReason;
  logprobs: readonly TokenLogprobs[];
  stopString: string | undefined;
  stopTokenId: number | undefined;
  /** Content, reasoning and calls of the choice, with `Completion.hasDeltas`. */
  deltas: readonly Delta[];
}

/** A whole generation. */
export interface Completion {
  requestId: string;
  seed: bigint;
  /** The text of the first choice. */
  text: string;
  choices: readonly Choice[];
  finished: Finished;
  /** How many breaks the generation survived. */
  resumes: number;
  /** If requested, one element for each token of the prompt but the first. */
  promptLogprobs: readonly TokenLogprobs[];
  /** This and the next three are those of `Accepted`. */
  toolFormat: string;
  reasoningFormat: string;
  reasoningOpen: boolean;
  hasDeltas: boolean;
}

/** The tightest SLO that would have been accepted, and what was predicted. */
export interface Attainable {
  ttftMs: number;
  tpotMs: number;
  predictedTtftMs: number;
  predictedTpotMs: number;
  itlMs: number;
  predictedItlMs: number;
}

/** The promise that a request would get now. The last two fields are set if it would be refused. */
export interface Quote {
  verdict: Verdict;
  promise: LatencyPromise;
  promptTokens: number;
  retryAfterS: number | undefined;
  attainable: Attainable | undefined;
}

export interface Model {
  name: string;
  architecture: string;
  maxContextTokens: number;
  vocabSize: number;
  hasChatTemplate: boolean;
  /** The same as in `Accepted`; empty until the router has seen a worker. */
  fingerprint: string;
  modelType: string;
  /** How the model writes tool calls; empty if that is not known. */
  toolFormat: string;
  /** How the model writes reasoning; empty if that is not known. */
  reasoningFormat: string;
  /** The names of the LoRA adapters that workers have. */
  adapters: readonly string[];
  /** The sampling of requests that do not state it; an unset field has the protocol's default. */
  defaultSampling: SamplingDefaults;
  /** Further names that requests may give the model. */
  moreNames: readonly string[];
}

export type SamplingDefaults = Pick<Sampling, "temperature" | "topK" | "topP" | "minP" | "repetitionPenalty">;
