// Vectors of outputs (`tests/vectors/outputs/reading.py` describes them), and what the parser says of them.
import { readFileSync } from "node:fs";
import type { ParsedTool } from "../src/parsing/output.ts";
import { OutputParser } from "../src/parsing/parser.ts";
import type { Delta } from "../src/parsing/types.ts";

const VECTORS = new URL("../../../tests/vectors/outputs/", import.meta.url);

export interface Output {
  name?: string;
  tool_format?: string;
  reasoning_format?: string;
  reasoning_open?: boolean;
  has_format?: boolean;
  tools?: string[];
  cut_before?: string | null;
}

export interface WholeOutput extends Output {
  text: string;
  says: { content?: string; reasoning?: string; calls?: [name: string, text: string][] };
}

export interface OutputInPieces extends Output {
  pieces: [piece: string, deltas: unknown[]][];
  end: unknown[];
}

export const messages: WholeOutput[] = read("messages");
export const deltas: OutputInPieces[] = read("deltas");
const tools: ParsedTool[] = read("tools");

/** Return the deltas that each piece of a text adds, and those at its end. */
export function deltasOf(vector: Output, pieces: readonly string[]): Delta[][] {
  const { tool_format = "", reasoning_format = "", reasoning_open = false, has_format = false } = vector;
  const known = tools.filter(({ name }) => vector.tools?.includes(name) ?? true);
  const formats = { tools: tool_format, reasoning: reasoning_format };
  const options = { seed: "s", reasoningOpen: reasoning_open, hasFormat: has_format };
  const parser = new OutputParser(formats, known, options);
  return [...pieces.map((piece) => parser.feed(piece)), parser.finish(vector.cut_before ?? undefined)];
}

/** Return deltas as the vectors name them. */
export function plain(given: readonly Delta[]): unknown[] {
  return given.map((delta) => ({
    ...delta,
    type: delta.type.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
  }));
}

function read<T>(name: string): T {
  return JSON.parse(readFileSync(new URL(`${name}.json`, VECTORS), "utf8"));
}
