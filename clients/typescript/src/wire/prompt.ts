/** Put prompts into the contract's messages. */

import { create, fromJson } from "@bufbuild/protobuf";
import { StructSchema } from "@bufbuild/protobuf/wkt";
import {
  type ChatInput,
  ChatInputSchema,
  ChatMessageSchema,
  ContentPartSchema,
  type CountTokensRequest,
  CountTokensRequestSchema,
  type GenerateRequest,
  type ChatMessage as PbChatMessage,
  type Tool as PbTool,
  type ToolChoice as PbToolChoice,
  TokenInputSchema,
  ToolCallSchema,
  ToolChoiceSchema,
  ToolMode,
  ToolSchema,
} from "../../gen/baton/v1/inference_pb.js";
import type { Chat, ChatMessage, JsonObject, Prompt, Tool, ToolChoice } from "../chat.ts";
import { checkedText, invalid, isObject, put } from "./fields.ts";

const TOOL_MODES = new Map<unknown, ToolMode>([
  ["auto", ToolMode.AUTO],
  ["none", ToolMode.NONE],
  ["required", ToolMode.REQUIRED],
]);

/** Set the field of a request that holds its prompt. Throws `InvalidRequest`. */
export function putPrompt(request: GenerateRequest | CountTokensRequest, prompt: Prompt): void {
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

function chatOf(given: Chat): ChatInput {
  const { messages, tools = [], toolChoice, templateArguments, ...options } = given;
  const chat = create(ChatInputSchema);
  put(ChatInputSchema, chat, "chat.", options);
  chat.messages = listed("chat.messages", messages).map(messageOf);
  chat.tools = listed("chat.tools", tools).map(toolOf);
  if (toolChoice !== undefined) chat.toolChoice = toolChoiceOf(toolChoice);
  if (templateArguments !== undefined) chat.templateArguments = checkedArguments(templateArguments);
  return chat;
}

function messageOf(given: ChatMessage, position: number): PbChatMessage {
  const where = `chat.messages[${position}].`;
  const { content, toolCalls = [], ...others } = given;
  const texts = Array.isArray(content) ? content : [];
  const message = create(ChatMessageSchema);
  put(ChatMessageSchema, message, where, Array.isArray(content) ? others : { ...others, content });
  message.parts = texts.map((text, place) => {
    const part = create(ContentPartSchema);
    put(ContentPartSchema, part, `${where}parts[${place}].`, { text });
    return part;
  });
  message.toolCalls = listed(`${where}tool_calls`, toolCalls).map((call, place) => {
    const target = create(ToolCallSchema);
    put(ToolCallSchema, target, `${where}tool_calls[${place}].`, call);
    return target;
  });
  return message;
}

function toolOf({ parameters, ...others }: Tool, position: number): PbTool {
  const tool = create(ToolSchema);
  const text = isObject(parameters) ? JSON.stringify(parameters) : parameters;
  put(ToolSchema, tool, `chat.tools[${position}].`, { ...others, parameters: text });
  return tool;
}

function toolChoiceOf(given: ToolChoice): PbToolChoice {
  const choice = create(ToolChoiceSchema);
  const mode = TOOL_MODES.get(given);
  if (mode !== undefined) choice.choice = { case: "mode", value: mode };
  else if (isObject(given)) put(ToolChoiceSchema, choice, "chat.tool_choice.", given);
  else throw invalid("chat.tool_choice", given, "auto, none, required or an object with the name of a tool");
  return choice;
}

function checkedArguments(given: JsonObject): JsonObject {
  try {
    fromJson(StructSchema, given);
  } catch {
    throw invalid("chat.template_arguments", given, "names with JSON values");
  }
  return given;
}

/** Check what a caller without types may have given. */
function listed<T extends object>(field: string, given: readonly T[]): readonly T[] {
  const all: unknown = given;
  if (!Array.isArray(all) || !all.every(isObject)) throw invalid(field, given, "a list of objects");
  return given;
}
