/** Convert the contract's messages to the types of the SDK. */

import { create, type Message } from "@bufbuild/protobuf";
import type { SloRefusal } from "../../gen/baton/v1/errors_pb.js";
import { FinishReason as PbFinishReason } from "../../gen/baton/v1/generation_pb.js";
import {
  DeliverySchema,
  type GenerationEvent,
  LatencyPromiseSchema,
  type Accepted as PbAccepted,
  type ChoiceFinished as PbChoiceFinished,
  type Delta as PbDelta,
  type Finished as PbFinished,
  type LatencyPromise as PbLatencyPromise,
  type Model as PbModel,
  Path as PbPath,
  type TokenLogprobs as PbTokenLogprobs,
  Verdict as PbVerdict,
  type QuoteResponse,
  TimeSplitSchema,
  UsageSchema,
} from "../../gen/baton/v1/inference_pb.js";
import type { Delta } from "../deltas.ts";
import { Internal } from "../errors.ts";
import type {
  Accepted,
  Attainable,
  ChoiceFinished,
  Event,
  Finished,
  FinishReason,
  LatencyPromise,
  Model,
  Path,
  Quote,
  TokenLogprobs,
  Verdict,
} from "../types.ts";

const REASONS = new Map<PbFinishReason, FinishReason>([
  [PbFinishReason.EOS, "eos"],
  [PbFinishReason.STOP, "stop"],
  [PbFinishReason.LENGTH, "length"],
  [PbFinishReason.CANCELLED, "cancelled"],
  [PbFinishReason.DEADLINE, "deadline"],
  [PbFinishReason.FAILED, "failed"],
]);
const PATHS = new Map<PbPath, Path>([
  [PbPath.AGGREGATED, "aggregated"],
  [PbPath.DISAGGREGATED, "disaggregated"],
]);
const VERDICTS = new Map<PbVerdict, Verdict>([
  [PbVerdict.ACCEPTED, "accepted"],
  [PbVerdict.AT_RISK, "at risk"],
  [PbVerdict.REFUSED, "refused"],
]);

/** Return an event for the caller; undefined for one that this client does not know, which it ignores. */
export function eventOf({ event }: GenerationEvent): Event | undefined {
  switch (event.case) {
    case "tokens": {
      const { choice, firstIndex, tokenIds, text, logprobs, deltas } = event.value;
      const said = { logprobs: logprobs.map(logprobsOf), deltas: deltas.flatMap(deltaOf) };
      return { type: "tokens", choice, firstIndex, tokenIds, text, ...said };
    }
    case "accepted":
      return acceptedOf(event.value);
    case "queued": {
      const { position, workAheadTokens, predictedTtftMs } = event.value;
      return { type: "queued", position, workAheadTokens: Number(workAheadTokens), predictedTtftMs };
    }
    case "promptLogprobs": {
      const { firstIndex, logprobs } = event.value;
      return { type: "promptLogprobs", firstIndex, logprobs: logprobs.map(logprobsOf) };
    }
    case "choiceFinished":
      return choiceFinishedOf(event.value);
    case "finished":
      return finishedOf(event.value);
    default:
      return undefined;
  }
}

function acceptedOf(accepted: PbAccepted): Accepted {
  return { type: "accepted", ...fieldsOf(accepted), promise: promiseOf(accepted.promise) };
}

/** Return a delta in a list; an empty one for a delta that this client does not know. */
function deltaOf({ delta }: PbDelta): Delta[] {
  switch (delta.case) {
    case "content":
      return [{ type: "contentDelta", text: delta.value }];
    case "reasoning":
      return [{ type: "reasoningDelta", text: delta.value }];
    case "callBegun":
      return [{ type: "toolCallBegun", ...fieldsOf(delta.value) }];
    case "callArguments":
      return [{ type: "toolCallArguments", ...fieldsOf(delta.value) }];
    case "callEnded":
      return [{ type: "toolCallEnded", ...fieldsOf(delta.value) }];
    default:
      return [];
  }
}

function choiceFinishedOf(end: PbChoiceFinished): ChoiceFinished {
  const { choice, reason, outputTokens, matched, deltas } = end;
  const known = REASONS.get(reason);
  if (known === undefined) throw unknownValue("a finish reason", reason);
  return {
    type: "choiceFinished",
    choice,
    reason: known,
    outputTokens,
    stopString: matched.case === "stopString" ? matched.value : undefined,
    stopTokenId: matched.case === "stopTokenId" ? matched.value : undefined,
    deltas: deltas.flatMap(deltaOf),
  };
}

function finishedOf({ usage, promise, delivery, split, error, path }: PbFinished): Finished {
  return {
    type: "finished",
    usage: fieldsOf(usage ?? create(UsageSchema)),
    promise: promiseOf(promise),
    delivery: fieldsOf(delivery ?? create(DeliverySchema)),
    split: fieldsOf(split ?? create(TimeSplitSchema)),
    error,
    path: PATHS.get(path),
  };
}

function promiseOf(promise: PbLatencyPromise | undefined): LatencyPromise {
  return fieldsOf(promise ?? create(LatencyPromiseSchema));
}

function logprobsOf({ logprob, topTokenIds, topLogprobs }: PbTokenLogprobs): TokenLogprobs {
  if (topTokenIds.length !== topLogprobs.length) {
    throw new Internal(
      `${topTokenIds.length} alternatives came with ${topLogprobs.length} log-probabilities`,
    );
  }
  return {
    logprob,
    top: topTokenIds.map((tokenId, rank) => [tokenId, topLogprobs[rank] as number] as const),
  };
}

export function attainableOf(refusal: SloRefusal): Attainable {
  return {
    ttftMs: refusal.attainableTtftMs,
    tpotMs: refusal.attainableTpotMs,
    predictedTtftMs: refusal.predictedTtftMs,
    predictedTpotMs: refusal.predictedTpotMs,
    itlMs: refusal.attainableItlMs,
    predictedItlMs: refusal.predictedItlMs,
  };
}

export function quoteOf(quote: QuoteResponse): Quote {
  const verdict = VERDICTS.get(quote.verdict);
  if (verdict === undefined) throw unknownValue("a verdict", quote.verdict);
  return {
    verdict,
    promise: promiseOf(quote.promise),
    promptTokens: quote.promptTokens,
    retryAfterS: verdict === "refused" ? quote.retryAfterMs / 1000 : undefined,
    attainable: quote.refusal === undefined ? undefined : attainableOf(quote.refusal),
  };
}

export function modelOf(model: PbModel): Model {
  const { temperature, topK, topP, minP, repetitionPenalty } = model.defaultSampling ?? {};
  const defaultSampling = { temperature, topK, topP, minP, repetitionPenalty };
  return { ...fieldsOf(model), defaultSampling };
}

/** Return the fields of a message. Those that are not set are missing. */
function fieldsOf<T extends Message>({ $typeName: _, $unknown: __, ...fields }: T): Omit<T, keyof Message> {
  return fields;
}

function unknownValue(what: string, value: unknown): Internal {
  return new Internal(`the router sent ${what} this client does not know: ${value}`);
}
