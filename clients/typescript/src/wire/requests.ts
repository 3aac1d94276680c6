/** Build the contract's requests from the types of the SDK. No other module does. */

import {
  create,
  type DescField,
  type DescMessage,
  fromJson,
  type Message,
  ScalarType,
} from "@bufbuild/protobuf";
import { FieldError, type ReflectMessage, reflect } from "@bufbuild/protobuf/reflect";
import { StructSchema } from "@bufbuild/protobuf/wkt";
import {
  OutputFormatSchema,
  type OutputFormat as PbOutputFormat,
  SloClass as PbSloClass,
  SamplingParamsSchema,
  SloSchema,
  StopRulesSchema,
  TextChoicesSchema,
} from "../../gen/baton/v1/generation_pb.js";
import {
  type ChatInput,
  ChatInputSchema,
  ChatMessageSchema,
  type CountTokensRequest,
  CountTokensRequestSchema,
  type DetokenizeRequest,
  DetokenizeRequestSchema,
  type GenerateRequest,
  GenerateRequestSchema,
  type ResumeRequest,
  ResumeRequestSchema,
  TokenInputSchema,
} from "../../gen/baton/v1/inference_pb.js";
import { InvalidRequest } from "../errors.ts";
import type { Progress } from "../progress.ts";
import type { Chat, ChatMessage, OutputFormat, Prompt, Sampling, Slo, Stop } from "../types.ts";

/** The values that a field can carry, by its protobuf type. */
const ACCEPTED = new Map<ScalarType | undefined, string>([
  [ScalarType.UINT32, `a whole number from 0 to ${2 ** 32 - 1}`],
  [ScalarType.UINT64, `a whole number from 0 to ${2n ** 64n - 1n}`],
  [ScalarType.DOUBLE, "a number"],
  [ScalarType.BOOL, "true or false"],
  [ScalarType.STRING, "text"],
]);

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
  const { sampling, stop, slo, outputFormat, ...others } = parts;
  const request = create(GenerateRequestSchema, { sampling: {}, stop: {}, slo: {} });
  put(GenerateRequestSchema, request, "", { ...others, ...sender });
  putPrompt(request, prompt);
  put(SamplingParamsSchema, request.sampling, "sampling.", sampling);
  put(StopRulesSchema, request.stop, "stop.", stop, { strings: "stopStrings", tokenIds: "stopTokenIds" });
  putSlo(request, slo);
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
export function resumeOf(request: GenerateRequest, session: number, progress: Progress): ResumeRequest {
  return create(ResumeRequestSchema, {
    request,
    session,
    received: progress.received(),
    failedAttempts: progress.failedAttempts,
    receivedPromptLogprobs: progress.numPromptLogprobs,
  });
}

function putPrompt(request: GenerateRequest | CountTokensRequest, prompt: Prompt): void {
  if (typeof prompt === "string") {
    request.input = { case: "text", value: checkedText("text", prompt) };
  } else if (isChat(prompt)) {
    request.input = { case: "chat", value: chatOf(prompt) };
  } else if (isMessages(prompt)) {
    request.input = { case: "chat", value: chatOf({ messages: prompt }) };
  } else if (!Array.isArray(prompt)) {
    throw invalid("input", prompt, "text, chat messages or token ids");
  } else if (request.$typeName === CountTokensRequestSchema.typeName) {
    throw invalid("input", prompt, "text or chat messages");
  } else {
    const tokens = create(TokenInputSchema);
    put(TokenInputSchema, tokens, "tokens.", { tokenIds: prompt });
    request.input = { case: "tokens", value: tokens };
  }
}

function isChat(prompt: Prompt): prompt is Chat {
  return isObject(prompt) && "messages" in prompt;
}

function isMessages(prompt: Prompt): prompt is readonly ChatMessage[] {
  return Array.isArray(prompt) && prompt.length > 0 && prompt.every(isObject);
}

function chatOf({ messages, templateArguments, ...options }: Chat): ChatInput {
  const chat = create(ChatInputSchema);
  put(ChatInputSchema, chat, "chat.", options);
  for (const [position, given] of messages.entries()) {
    const message = create(ChatMessageSchema);
    put(ChatMessageSchema, message, `chat.messages[${position}].`, given);
    chat.messages.push(message);
  }
  if (templateArguments !== undefined) {
    try {
      fromJson(StructSchema, templateArguments);
    } catch {
      throw invalid("chat.template_arguments", templateArguments, "names with JSON values");
    }
    chat.templateArguments = templateArguments;
  }
  return chat;
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

/** Set the fields of a message that `options` names by their TypeScript names, or by those in `renamed`. */
function put(
  desc: DescMessage,
  message: Message | undefined,
  path: string,
  options: object = {},
  renamed: Readonly<Record<string, string>> = {},
): void {
  const target = reflect(desc, message);
  const given = Object.entries(options).filter(([, value]) => value !== undefined && value !== null);
  for (const [name, value] of given) {
    const field = desc.field[renamed[name] ?? name];
    if (field === undefined) throw invalid(path + name, value, "there is no such option");
    try {
      putField(target, field, value);
    } catch (error) {
      if (!(error instanceof FieldError)) throw error;
      const one = ACCEPTED.get(field.scalar) ?? error.message;
      const accepted = { list: `a list, each of it ${one}`, map: `token ids with ${one} for each` };
      throw invalid(
        path + field.name,
        value,
        accepted[field.fieldKind as "list" | "map"] ?? `it must be ${one}`,
      );
    }
  }
}

function putField(target: ReflectMessage, field: DescField, value: unknown): void {
  if (field.fieldKind === "list") {
    if (!Array.isArray(value)) throw new FieldError(field, "a list");
    for (const part of value) target.get(field).add(part);
  } else if (field.fieldKind === "map") {
    if (!isObject(value)) throw new FieldError(field, "an object");
    for (const [key, part] of Object.entries(value)) target.get(field).set(Number(key), part);
  } else {
    target.set(field, value);
  }
}

function checkedText(field: string, text: string): string {
  if (!text.isWellFormed()) throw invalid(field, text, "it must be text");
  return text;
}

function isObject(value: unknown): value is object {
  return typeof value === "object" && value !== null;
}

function invalid(field: string, value: unknown, accepted: string): InvalidRequest {
  const text = shown(value);
  const short = text.length <= 60 ? text : `${text.slice(0, 57)}...`;
  return new InvalidRequest(`${field} is ${short}: ${accepted}`, [{ field, description: accepted }]);
}

function shown(value: unknown): string {
  try {
    return JSON.stringify(value) ?? String(value);
  } catch {
    return String(value); // a bigint, or a circle
  }
}
