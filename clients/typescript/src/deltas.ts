/** The deltas of a choice: content, reasoning and tool calls, as routers read them in its text. */

import type { ChatMessage, ToolCall } from "./chat.ts";

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

/** A call of one of the tools; `index` counts the calls of the choice. */
export interface ToolCallBegun {
  type: "toolCallBegun";
  index: number;
  name: string;
  id: string;
}

/** More of a call's arguments. All of a call together are a JSON object, unless it was cut off. */
export interface ToolCallArguments {
  type: "toolCallArguments";
  index: number;
  text: string;
}

/** A call is complete. One without this was cut off, or broke off, and must not be run. */
export interface ToolCallEnded {
  type: "toolCallEnded";
  index: number;
}

export type Delta = ContentDelta | ReasoningDelta | ToolCallBegun | ToolCallArguments | ToolCallEnded;

/** A choice as a message of the next request. */
export interface AssistantMessage extends ChatMessage {
  role: "assistant";
  content: string;
  toolCalls: readonly ToolCall[];
  reasoning: string;
}

/** Return what all deltas of a choice add up to, as the assistant's message of the next request. */
export function saidByAssistant(deltas: Iterable<Delta>): AssistantMessage {
  const toolCalls: ToolCall[] = [];
  const message = { role: "assistant" as const, content: "", reasoning: "", toolCalls };
  for (const delta of deltas) {
    switch (delta.type) {
      case "contentDelta":
        message.content += delta.text;
        break;
      case "reasoningDelta":
        message.reasoning += delta.text;
        break;
      case "toolCallBegun":
        toolCalls.push({ id: delta.id, name: delta.name, arguments: "" });
        break;
      case "toolCallArguments":
        (toolCalls[delta.index] as ToolCall).arguments += delta.text;
    }
  }
  return message;
}
