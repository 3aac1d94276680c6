// Plays vectors: reads calls as lines of JSON, makes each, and writes what the caller of the SDK sees.
// `tests/vectors/test_typescript.py` drives it; `tests/vectors/playing.py` describes the vectors.
import { createInterface } from "node:readline";
import { BatonError, Client, type GenerateOptions, messageOf } from "../src/index.ts";

type Json = Record<string, unknown>;
/** A vector of JSON is not checked: some of its values are wrong on purpose. */
type Unchecked = { addresses: string[]; client?: Json; call: Json & { method: string } };

/** Objects whose keys are not names of the SDK. */
const VERBATIM = ["json_schema", "template_arguments", "parameters", "logit_bias"];

function camel(name: string): string {
  return name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
}

function snake(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

function camelised(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(camelised);
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value);
  return Object.fromEntries(
    entries.map(([name, part]) => [camel(name), VERBATIM.includes(name) ? part : camelised(part)]),
  );
}

/** Return a value of the SDK as JSON: seeds as text, bytes as hexadecimal digits, errors with their types. */
function plain(value: unknown): unknown {
  if (typeof value === "bigint") return String(value);
  if (value instanceof Uint8Array) return Buffer.from(value).toString("hex");
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== "object" || value === null) return value;
  const fields = Object.entries(value).map(([name, part]) => [snake(name), plain(part)]);
  const seen = Object.fromEntries(fields.filter(([, part]) => part !== undefined));
  if ("type" in seen) seen.type = snake(seen.type);
  if ("phase" in seen) seen.phase = snake(seen.phase);
  return value instanceof Error ? { ...seen, types: typesOf(value), message: value.message } : seen;
}

function typesOf(error: Error): string[] {
  const types: string[] = [];
  for (let kind = error; kind instanceof Error; kind = Object.getPrototypeOf(kind)) {
    if (kind !== error) types.push(kind.constructor.name);
  }
  return types;
}

async function observe({ addresses, client: options, call }: Unchecked, saw: () => void): Promise<Json> {
  const { method, prompt, times, abort_after, leave_after, ...others } = call;
  const seen: Json = { aborted: false };
  const { addresses: _, ...known } = camelised(options ?? {}) as Json;
  try {
    const client = new Client(addresses, known);
    try {
      const text = typeof times === "number" ? String(prompt).repeat(times) : prompt;
      const given = camelised(others) as Json;
      const asked = camelised(text) as never;
      const isParsed = method === "parsed";
      const stops = { abort_after, leave_after, isParsed };
      if (method === "generate" || isParsed) await iterate(client, asked, given, stops, seen, saw);
      else seen.result = plain(await make(client, camel(method), asked, given));
    } finally {
      await client.close();
    }
  } catch (error) {
    if (error instanceof Error && error.name === "AbortError") seen.aborted = true;
    else if (error instanceof BatonError || error instanceof RangeError) seen.error = plain(error);
    else throw error;
  }
  return seen;
}

async function iterate(
  client: Client,
  prompt: never,
  options: GenerateOptions,
  { abort_after, leave_after, isParsed }: Json,
  seen: Json,
  saw: () => void,
): Promise<void> {
  const controller = new AbortController();
  const events: unknown[] = [];
  seen.events = events;
  const stream = client.generate(prompt, { ...options, signal: controller.signal });
  for await (const event of isParsed ? stream.parsed() : stream) {
    Object.assign(seen, { resumes: stream.resumes, retries: stream.retries });
    events.push(plain(event));
    saw();
    if (events.length === abort_after) controller.abort();
    if (events.length === leave_after) break;
  }
}

async function make(client: Client, method: string, prompt: never, given: Json): Promise<unknown> {
  const { tokenIds, requestId, choice, ...options } = given;
  switch (method) {
    case "complete":
      return await client.complete(prompt, { ...options, requestId: requestId as never });
    case "messageOf":
      return messageOf(await client.complete(prompt, options), choice as never);
    case "quote":
      return await client.quote(prompt, options);
    case "countTokens":
      return await client.countTokens(prompt);
    case "detokenize":
      return await client.detokenize(tokenIds as never, options);
    case "tokenBytes":
      return await client.tokenBytes(tokenIds as never);
    case "models":
      return await client.models();
    case "provenTenant":
      return await client.provenTenant();
    case "cancel":
      return await client.cancel(requestId as never);
    default:
      throw new Error(`there is no call ${method}`);
  }
}

function write(line: Json): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

for await (const line of createInterface({ input: process.stdin })) {
  write({ outcome: await observe(JSON.parse(line), () => write({ saw: true })) });
}
