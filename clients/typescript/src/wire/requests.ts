/** Build the contract's requests from the types of the SDK. */

import { create } from "@bufbuild/protobuf";
import {
  OutputFormatSchema,
  type OutputFormat as PbOutputFormat,
  SloClass as PbSloClass,
  ProgramSchema,
  SamplingParamsSchema,
  SloSchema,
  StopRulesSchema,
  TextChoicesSchema,
} from "../../gen/baton/v1/generation_pb.js";
import {
  type CountTokensRequest,
  CountTokensRequestSchema,
  type DetokenizeRequest,
  DetokenizeRequestSchema,
  type GenerateRequest,
  GenerateRequestSchema,
  type ResumeRequest,
  ResumeRequestSchema,
} from "../../gen/baton/v1/inference_pb.js";
import type { Prompt } from "../chat.ts";
import type { Progress } from "../progress.ts";
import type { OutputFormat, Program, Sampling, Slo, Stop } from "../types.ts";
import { invalid, put } from "./fields.ts";
import { putPrompt } from "./prompt.ts";

const SLO_CLASSES = new Map<unknown, PbSloClass>([
  [undefined, PbSloClass.STANDARD],
  ["interactive", PbSloClass.INTERACTIVE],
  ["standard", PbSloClass.STANDARD],
  ["batch", PbSloClass.BATCH],
]);

/** The parts of a request that `generate` and `quote` share. */
export interface RequestParts {
  sampling?: Sampling | undefined;
  stop?: Stop | undefined;
  slo?: Slo | undefined;
  /** Keep only the last tokens of the prompt. */
  truncatePromptTokens?: number | undefined;
  outputFormat?: OutputFormat | undefined;
  /** The caller's own user, for the fleet's logs. */
  user?: string | undefined;
  /** One of the fleet's LoRA adapters, by its name. */
  adapter?: string | undefined;
  /** The program that this is a call of. */
  program?: Program | undefined;
}

/** What a client adds to its requests. */
export interface Sender {
  requestId?: string;
  tenant: string;
  model: string;
  resumeGraceMs?: number;
}

/** Build a request. Throws `InvalidRequest` for values that protobuf cannot carry. */
export function requestOf(prompt: Prompt, parts: RequestParts, sender: Sender): GenerateRequest {
  const { sampling, stop, slo, outputFormat, program, ...others } = parts;
  const request = create(GenerateRequestSchema, { sampling: {}, stop: {}, slo: {} });
  put(GenerateRequestSchema, request, "", { ...others, ...sender });
  putPrompt(request, prompt);
  put(SamplingParamsSchema, request.sampling, "sampling.", sampling);
  put(StopRulesSchema, request.stop, "stop.", stop, { strings: "stopStrings", tokenIds: "stopTokenIds" });
  putSlo(request, slo);
  if (program !== undefined) {
    request.program = create(ProgramSchema);
    put(ProgramSchema, request.program, "program.", program);
  }
  if (outputFormat !== undefined) request.outputFormat = formatOf(outputFormat);
  return request;
}

export function countTokensOf(prompt: Prompt, model: string): CountTokensRequest {
  const request = create(CountTokensRequestSchema, { model });
  putPrompt(request, prompt);
  return request;
}

export function detokenizeOf(options: {
  model: string;
  tokenIds: readonly number[];
  skipSpecialTokens: boolean;
  includeTokenBytes: boolean;
}): DetokenizeRequest {
  const request = create(DetokenizeRequestSchema);
  put(DetokenizeRequestSchema, request, "", options);
  return request;
}

/** Build the call that continues `request` after what has been received. */
export function resumeOf(request: GenerateRequest, progress: Progress): ResumeRequest {
  return create(ResumeRequestSchema, {
    request,
    session: progress.session,
    received: progress.received(),
    failedAttempts: progress.failedAttempts,
    receivedPromptLogprobs: progress.numPromptLogprobs,
  });
}

function putSlo(request: GenerateRequest, { sloClass, ...limits }: Slo = {}): void {
  const found = SLO_CLASSES.get(sloClass);
  if (found === undefined) throw invalid("slo.slo_class", sloClass, "interactive, standard or batch");
  put(SloSchema, request.slo, "slo.", { ...limits, sloClass: found });
}

function formatOf(given: OutputFormat): PbOutputFormat {
  const format = create(OutputFormatSchema);
  const { jsonSchema, oneOf, ...others } = given as Partial<Record<string, unknown>>;
  if (Object.keys(given).length !== 1) {
    throw invalid("output_format", given, "one of jsonSchema, jsonObject, regex, grammar and oneOf");
  }
  if (oneOf !== undefined) {
    const choice = create(TextChoicesSchema);
    put(TextChoicesSchema, choice, "output_format.choice.", { texts: oneOf });
    format.format = { case: "choice", value: choice };
  } else {
    const text =
      typeof jsonSchema === "object" || typeof jsonSchema === "boolean"
        ? JSON.stringify(jsonSchema)
        : jsonSchema;
    put(OutputFormatSchema, format, "output_format.", { ...others, jsonSchema: text });
  }
  return format;
}
