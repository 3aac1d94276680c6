/** The deltas of an output: content, reasoning and calls, without the white space between them. */

import { createHash } from "node:crypto";
import { trimEnd, trimStart } from "./space.ts";
import type { Delta } from "./types.ts";

/** A tool whose calls are looked for. `parameters` is the JSON Schema of its arguments, as a value. */
export interface ParsedTool {
  name: string;
  parameters: unknown;
}

/** Return the id of a call, the same one each time. Mistral's templates take nine letters and digits. */
export function callId(seed: string, index: number, isShort: boolean): string {
  const digest = createHash("sha256").update(`${seed}/${index}`).digest("hex");
  return isShort ? digest.slice(0, 9) : `call_${digest.slice(0, 24)}`;
}

type Kind = "content" | "reasoning" | "arguments";

/** Gathers deltas. White space at the edges of reasoning and next to calls belongs to the format. */
export class Output {
  readonly #tools: ReadonlyMap<string, ParsedTool>;
  readonly #seed: string;
  readonly #hasShortIds: boolean;
  #deltas: Delta[] = [];
  #pieces: string[] = [];
  #kind: Kind = "content";
  #space: string[] = [];
  /** The text before belongs to the format, so white space that follows is left out. */
  #isFresh = false;
  #numCalls = 0;

  get numCalls(): number {
    return this.#numCalls;
  }

  constructor(tools: readonly ParsedTool[], seed: string, hasShortIds: boolean) {
    this.#tools = new Map(tools.map((tool) => [tool.name, tool]));
    this.#seed = seed;
    this.#hasShortIds = hasShortIds;
  }

  /** Return the tool of this name; undefined if there is none. */
  tool(name: string): ParsedTool | undefined {
    return this.#tools.get(name);
  }

  content(text: string): void {
    this.#text("content", text);
  }

  reasoning(text: string): void {
    this.#text("reasoning", text);
  }

  /** Leave out the white space before and after this place. */
  pause(): void {
    this.#space = [];
    this.#isFresh = true;
  }

  /** Begin a call, to which the arguments that follow belong. */
  begin(name: string): void {
    this.#flush();
    this.pause();
    const id = callId(this.#seed, this.#numCalls, this.#hasShortIds);
    this.#deltas.push({ type: "toolCallBegun", index: this.#numCalls, name, id });
    this.#numCalls += 1;
  }

  arguments(text: string): void {
    this.#add("arguments", text);
  }

  /** Return the deltas since the last time. */
  take(): Delta[] {
    this.#flush();
    const deltas = this.#deltas;
    this.#deltas = [];
    return deltas;
  }

  /** Keep the white space that was held back. */
  end(): void {
    this.#pieces.push(this.#space.splice(0).join(""));
  }

  #text(kind: Kind, given: string): void {
    const text = this.#isFresh ? trimStart(given) : given;
    const body = trimEnd(text);
    if (body !== "") {
      this.#isFresh = false;
      this.#add(kind, this.#space.join("") + body);
      this.#space = [];
    }
    if (body.length < text.length) this.#space.push(text.slice(body.length));
  }

  #add(kind: Kind, text: string): void {
    if (kind !== this.#kind) {
      this.#flush();
      this.#kind = kind;
    }
    this.#pieces.push(text);
  }

  #flush(): void {
    const text = this.#pieces.join("");
    this.#pieces = [];
    if (text === "") return;
    if (this.#kind === "arguments") {
      this.#deltas.push({ type: "toolCallArguments", index: this.#numCalls - 1, text });
    } else {
      this.#deltas.push({ type: `${this.#kind}Delta`, text });
    }
  }
}
