/** Prompts: chats with their messages and tools, texts and token ids. */

/** Any value that JSON can carry. */
export type JsonValue = null | boolean | number | string | JsonValue[] | { [name: string]: JsonValue };

/** A JSON object. */
export type JsonObject = Readonly<Record<string, JsonValue>>;

/**
 * A call that an assistant's message makes. `arguments` is a JSON object as text. Other text, as of a call that was
 * cut off, is shown as it is.
 */
export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}

/** One message of a chat. The chat template defines the roles, such as system, user, assistant or tool. */
export interface ChatMessage {
  role: string;
  /** A text, or the texts of the content's parts. */
  content?: string | readonly string[] | undefined;
  /** The calls of an assistant's message. */
  toolCalls?: readonly ToolCall[] | undefined;
  /** The call whose result a tool's message is. */
  toolCallId?: string | undefined;
  /** Who speaks, or the tool whose result this is. */
  name?: string | undefined;
  /** What an assistant thought before its message. */
  reasoning?: string | undefined;
}

/** A function that the model may ask the caller to call. */
export interface Tool {
  name: string;
  description?: string | undefined;
  /** A JSON Schema of the arguments, a value or its text; without it they are any object. */
  parameters?: JsonObject | string | undefined;
  /** All arguments validate against the schema, as those of forced calls always do. */
  strict?: boolean | undefined;
}

/** Which tools a choice calls: as the model likes, none, at least one, or the one of this name. */
export type ToolChoice = "auto" | "none" | "required" | { name: string };

/** A chat with tools, and with variables and options for the model's chat template. */
export interface Chat {
  messages: readonly ChatMessage[];
  /** Variables of the template, such as enable_thinking. */
  templateArguments?: JsonObject | undefined;
  /** Begin a new assistant message; by default unless the last message is continued. */
  addGenerationPrompt?: boolean | undefined;
  /** Continue the last message. */
  continueFinalMessage?: boolean | undefined;
  tools?: readonly Tool[] | undefined;
  /** By default as the model likes. */
  toolChoice?: ToolChoice | undefined;
  /** A choice may hold several calls; by default it may. */
  parallelToolCalls?: boolean | undefined;
}

/** Text, the messages of a chat, a chat with tools and options, or token ids. */
export type Prompt = string | readonly ChatMessage[] | Chat | readonly number[];
