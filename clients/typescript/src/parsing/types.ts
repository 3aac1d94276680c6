/** The parts of an output: what comes of it in a stream, and what a whole one says. */

import type { ToolCall } from "../chat.ts";

/** More of the message. */
export interface ContentDelta {
  type: "contentDelta";
  text: string;
}

/** More of what the model thinks before its message. */
export interface ReasoningDelta {
  type: "reasoningDelta";
  text: string;
}

/** A call of one of the tools; `index` counts the calls of the output. */
export interface ToolCallBegun {
  type: "toolCallBegun";
  index: number;
  name: string;
  id: string;
}

/** More of a call's arguments. All of a call together are a JSON object, unless the output is cut off. */
export interface ToolCallArguments {
  type: "toolCallArguments";
  index: number;
  text: string;
}

export type Delta = ContentDelta | ReasoningDelta | ToolCallBegun | ToolCallArguments;

/** How a model writes tool calls and reasoning, by name; empty: not at all. */
export interface ChatFormats {
  tools: string;
  reasoning: string;
}

/** A whole output. The arguments of a call are a JSON object unless the output was cut off. */
export interface Message {
  content: string;
  reasoning: string;
  calls: ToolCall[];
}

/** Return what all deltas of an output add up to. */
export function messageOfDeltas(deltas: Iterable<Delta>): Message {
  const message: Message = { content: "", reasoning: "", calls: [] };
  for (const delta of deltas) {
    switch (delta.type) {
      case "contentDelta":
        message.content += delta.text;
        break;
      case "reasoningDelta":
        message.reasoning += delta.text;
        break;
      case "toolCallBegun":
        message.calls.push({ id: delta.id, name: delta.name, arguments: "" });
        break;
      case "toolCallArguments":
        (message.calls[delta.index] as ToolCall).arguments += delta.text;
    }
  }
  return message;
}
