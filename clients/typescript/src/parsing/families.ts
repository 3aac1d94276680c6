/** The formats by name. */

import { Internal } from "../errors.ts";

export const HARMONY = "harmony";

/** How calls stand in a text. */
export interface ToolFormat {
  /** What comes before calls; which notation follows shows at its first character. */
  opens: readonly string[];
  /** What may come after them. */
  closes: readonly string[];
  /** A message that begins with this character may consist of calls, without a marker. */
  bare: string;
  /** Other tokens of the family that mean nothing to a reader. */
  controls: readonly string[];
}

/** How reasoning stands at the beginning of a text; `controls` as in `ToolFormat`. */
export interface ReasoningFormat {
  opens: readonly string[];
  closes: readonly string[];
  controls: readonly string[];
}

const LLAMA = [
  "<|begin_of_text|>",
  "<|end_of_text|>",
  "<|start_header_id|>",
  "<|end_header_id|>",
  "<|eom_id|>",
  "<|eot_id|>",
];
const MISTRAL = [
  "<s>",
  "</s>",
  "[INST]",
  "[/INST]",
  "[AVAILABLE_TOOLS]",
  "[/AVAILABLE_TOOLS]",
  "[TOOL_RESULTS]",
  "[/TOOL_RESULTS]",
];
const GRANITE = ["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"];
const PHI = ["<|end|>", "<|endoftext|>", "<|assistant|>", "<|user|>", "<|system|>"];

/** The format of a model that writes no calls. */
export const NO_TOOLS: ToolFormat = { opens: [], closes: [], bare: "", controls: [] };

const TOOL_FORMATS: ReadonlyMap<string, ToolFormat> = new Map(
  Object.entries<Partial<ToolFormat>>({
    granite: { opens: ["<|tool_call|>", "<tool_call>"], closes: ["</tool_call>"], controls: GRANITE },
    [HARMONY]: {},
    hermes: { opens: ["<tool_call>"], closes: ["</tool_call>"] },
    llama3_json: { opens: ["<|python_tag|>"], bare: "{", controls: LLAMA },
    mistral: { opens: ["[TOOL_CALLS]"], controls: MISTRAL },
    phi4: { opens: ["<|tool_call|>"], closes: ["<|/tool_call|>"], controls: PHI },
    pythonic: {
      opens: ["<|python_start|>", "<|python_tag|>"],
      closes: ["<|python_end|>"],
      bare: "[",
      controls: LLAMA,
    },
    qwen3_coder: { opens: ["<tool_call>", "<function="], closes: ["</tool_call>"] },
  }).map(([name, form]) => [name, { ...NO_TOOLS, ...form }]),
);
const REASONING_FORMATS: ReadonlyMap<string, ReasoningFormat> = new Map(
  Object.entries<ReasoningFormat>({
    granite: {
      opens: ["<think>", "Here is my thought process:", "Here's my thought process:"],
      closes: ["</think>", "Here is my response:", "Here's my response:"],
      controls: ["<response>", "</response>"],
    },
    [HARMONY]: { opens: [], closes: [], controls: [] },
    mistral: { opens: ["[THINK]"], closes: ["[/THINK]"], controls: MISTRAL },
    think: { opens: ["<think>"], closes: ["</think>"], controls: [] },
  }),
);
export const HARMONY_CONTROLS: readonly string[] = [
  "<|start|>",
  "<|end|>",
  "<|message|>",
  "<|channel|>",
  "<|constrain|>",
  "<|return|>",
  "<|call|>",
];

/** Return the format of calls of this name. Throws `Internal` for one that this client does not know. */
export function toolFormatOf(name: string): ToolFormat {
  return known(TOOL_FORMATS, name, "tool calls");
}

/** Return the format of reasoning of this name. Throws `Internal` for one that this client does not know. */
export function reasoningFormatOf(name: string): ReasoningFormat {
  return known(REASONING_FORMATS, name, "reasoning");
}

function known<T>(formats: ReadonlyMap<string, T>, name: string, what: string): T {
  const form = formats.get(name);
  if (form !== undefined) return form;
  const names = [...formats.keys()].join(", ");
  throw new Internal(
    `the router named a format of ${what} this client does not know: ${name}; known: ${names}`,
  );
}
