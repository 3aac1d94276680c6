/** Take the texts of choices apart: content, reasoning and tool calls, as the model writes them. */

import type { ChatMessage, Tool, ToolCall } from "../chat.ts";
import type {
  Accepted,
  Choice,
  ChoiceFinished,
  Completion,
  Event,
  Finished,
  PromptLogprobs,
  Queued,
} from "../types.ts";
import type { ParsedTool } from "./output.ts";
import { OutputParser } from "./parser.ts";
import { type Delta, messageOfDeltas } from "./types.ts";

/** More content, reasoning or tool calls of one choice. */
export interface ChoiceDelta {
  type: "choiceDelta";
  choice: number;
  delta: Delta;
}

/** An event of a stream, with deltas in place of tokens. */
export type ParsedEvent = Accepted | Queued | PromptLogprobs | ChoiceDelta | ChoiceFinished | Finished;

/** A choice as a message of the next request. */
export interface AssistantMessage extends ChatMessage {
  role: "assistant";
  content: string;
  toolCalls: readonly ToolCall[];
  reasoning: string;
}

export interface MessageOptions {
  /** The index of the choice; 0 by default. */
  choice?: number | undefined;
  /** The request had an output format, so the content is calls or one text in the format. */
  hasFormat?: boolean | undefined;
}

/**
 * Return a choice as the assistant's message of the next request. `tools` are those of this one.
 *
 * Throws `RangeError` for a choice that there is not, and for parameters of a tool that are not JSON.
 */
export function messageOf(
  completion: Completion,
  tools: readonly Tool[] = [],
  { choice = 0, hasFormat = false }: MessageOptions = {},
): AssistantMessage {
  const found = completion.choices[choice];
  if (found === undefined) {
    throw new RangeError(`choice is ${choice}: accepted: 0 to ${completion.choices.length - 1}`);
  }
  const parser = parserOf(tools, completion, choice, hasFormat);
  const { calls, ...said } = messageOfDeltas([
    ...parser.feed(found.text),
    ...parser.finish(cutBefore(found)),
  ]);
  return { role: "assistant", ...said, toolCalls: calls };
}

/** Replaces the tokens of a stream's events by what they say. */
export class EventParser {
  readonly #tools: readonly Tool[];
  readonly #hasFormat: boolean;
  readonly #parsers = new Map<number, OutputParser>();
  #accepted: Accepted | undefined;

  constructor(tools: readonly Tool[], hasFormat: boolean) {
    this.#tools = tools;
    this.#hasFormat = hasFormat;
  }

  /** Return what one event says. */
  feed(event: Event): ParsedEvent[] {
    switch (event.type) {
      case "tokens":
        return choiceDeltas(event.choice, this.#parser(event.choice).feed(event.text));
      case "choiceFinished":
        return [
          ...choiceDeltas(
            event.choice,
            this.#parser(event.choice).finish(cutBefore({ ...event, finishReason: event.reason })),
          ),
          event,
        ];
      case "accepted":
        this.#accepted = event;
    }
    return [event];
  }

  #parser(choice: number): OutputParser {
    let parser = this.#parsers.get(choice);
    if (parser === undefined) {
      if (this.#accepted === undefined) throw new Error("a stream begins with accepted");
      parser = parserOf(this.#tools, this.#accepted, choice, this.#hasFormat);
      this.#parsers.set(choice, parser);
    }
    return parser;
  }
}

/** Return a parser for the text of one choice, from its beginning. */
function parserOf(
  tools: readonly Tool[],
  { toolFormat, reasoningFormat, reasoningOpen, requestId }: Accepted | Completion,
  choice: number,
  hasFormat: boolean,
): OutputParser {
  return new OutputParser({ tools: toolFormat, reasoning: reasoningFormat }, tools.map(parsedTool), {
    seed: `${requestId}/${choice}`,
    reasoningOpen,
    hasFormat,
  });
}

function parsedTool({ name, parameters }: Tool, position: number): ParsedTool {
  if (typeof parameters !== "string") return { name, parameters };
  try {
    return { name, parameters: JSON.parse(parameters || "{}") };
  } catch {
    throw new RangeError(`tools[${position}].parameters is ${parameters}: accepted: a JSON Schema`);
  }
}

function choiceDeltas(choice: number, deltas: readonly Delta[]): ChoiceDelta[] {
  return deltas.map((delta) => ({ type: "choiceDelta", choice, delta }));
}

/** Return the stop string before which an output was cut off, or "" if none did; undefined if it is whole. */
function cutBefore(end: Pick<Choice, "finishReason" | "stopString" | "stopTokenId">): string | undefined {
  return end.finishReason === "eos" || end.stopTokenId !== undefined ? undefined : (end.stopString ?? "");
}
