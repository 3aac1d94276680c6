import assert from "node:assert/strict";
import { test } from "node:test";
import { type Completion, Internal, messageOf, type Tool } from "../src/index.ts";
import { OutputParser } from "../src/parsing/parser.ts";
import { type Message, messageOfDeltas } from "../src/parsing/types.ts";
import { deltas, deltasOf, messages, type Output, plain } from "./outputs.ts";

const SPLITS = 20;

/** Return random numbers from 0 to 1, the same ones for a seed (mulberry32). */
function* random(seed: number): Generator<number, never, void> {
  for (let state = seed; ; ) {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    yield ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  }
}

/** Cut a text anywhere, between the two halves of a character too. */
function cut(text: string, numbers: Generator<number, never, void>): string[] {
  const often = numbers.next().value;
  const pieces = [""];
  for (let at = 0; at < text.length; at += 1) {
    if (numbers.next().value < often) pieces.push("");
    pieces[pieces.length - 1] += text.charAt(at);
  }
  return pieces;
}

function said(vector: Output, pieces: readonly string[]): Message {
  return messageOfDeltas(deltasOf(vector, pieces).flat());
}

for (const vector of messages) {
  test(`in any pieces: ${vector.name}`, () => {
    const { text, says } = vector;
    const whole = said(vector, [text]);
    assert.equal(whole.content, says.content ?? "");
    assert.equal(whole.reasoning, says.reasoning ?? "");
    assert.deepEqual(
      whole.calls.map((call) => [call.name, call.arguments]),
      says.calls ?? [],
    );
    assert.deepEqual(said(vector, text.split("")), whole);
    const numbers = random(text.length);
    for (let split = 0; split < SPLITS; split += 1) {
      assert.deepEqual(said(vector, cut(text, numbers)), whole);
    }
  });
}

for (const vector of deltas) {
  test(`as it comes: ${vector.name}`, () => {
    const pieces = vector.pieces.map(([piece]) => piece);
    const expected = [...vector.pieces.map(([, added]) => added), vector.end];
    assert.deepEqual(deltasOf(vector, pieces).map(plain), expected);
  });
}

const CALL = '{"name": "f", "arguments": {"a": 1}}';

function completionOf(text: string, toolFormat = "hermes"): Completion {
  const choice = { text, tokenIds: [], finishReason: "eos", logprobs: [] } as const;
  const ended = { stopString: undefined, stopTokenId: undefined };
  const choices = [0, 1].map((index) => ({ index, ...choice, ...ended }));
  const formats = { toolFormat, reasoningFormat: "", reasoningOpen: false };
  return { requestId: "r", seed: 1n, text, choices, resumes: 0, promptLogprobs: [], ...formats } as never;
}

test("each choice is a message whose calls have ids of their own", () => {
  const completion = completionOf(`<tool_call>${CALL}</tool_call>`.repeat(2));
  const tools: Tool[] = [{ name: "f", parameters: '{"type": "object"}' }];
  const both = [0, 1].map((choice) => messageOf(completion, tools, { choice }));
  assert.deepEqual(messageOf(completion, tools), both[0]);
  const calls = both.flatMap(({ toolCalls }) => toolCalls);
  assert.equal(new Set(calls.map(({ id }) => id)).size, 4);
  assert.ok(calls.every((call) => call.name === "f" && call.arguments === '{"a": 1}'));
});

test("a message says nothing of calls without tools", () => {
  const message = messageOf(completionOf(CALL, "llama3_json"));
  assert.deepEqual(message, { role: "assistant", content: CALL, reasoning: "", toolCalls: [] });
});

test("what a message cannot be made of is named", () => {
  const completion = completionOf("");
  assert.throws(() => messageOf(completion, [], { choice: 2 }), /choice is 2: accepted: 0 to 1/);
  assert.throws(() => messageOf(completion, [{ name: "f", parameters: "{" }]), /tools\[0\].parameters is {/);
});

test("a format that this client does not know is named", () => {
  const options = { seed: "s", reasoningOpen: false, hasFormat: false };
  const tool = { name: "f", parameters: {} };
  const unknown = { tools: "kimi", reasoning: "" };
  assert.throws(() => new OutputParser(unknown, [tool], options), Internal);
  assert.throws(() => new OutputParser(unknown, [tool], options), /tool calls .* kimi; known: granite, /);
  const parser = new OutputParser(unknown, [], options);
  assert.deepEqual(plain(parser.feed("a")), [{ type: "content_delta", text: "a" }]);
});

const REPEATED: Record<string, [begin: string, middle: string, end: string]> = {
  hermes: ['<tool_call>{"name": "f", "arguments": {"a": "', "x<tool_call", '"}}</tool_call>'],
  llama3_json: ['{"other": "', "x\\n", '", "name": "f"}'],
  qwen3_coder: ["<function=get_weather><parameter=days>", "1", "x</parameter></function>"],
  pythonic: ["[f(a='", "x)]", "')]"],
  mistral: ["", "[TOOL_CALL", ""],
  phi4: ["", " \n", ""],
  harmony: ["<|channel|>analysis<|message|>", "<|", "<|end|>"],
};

for (const [tool_format, [begin, middle, end]] of Object.entries(REPEATED)) {
  test(`ten times the text of ${tool_format} costs about ten times as much`, () => {
    const seconds = (size: number) => {
      const began = process.cpuUsage();
      deltasOf({ tool_format }, [begin, ...Array<string>(size).fill(middle), end]);
      const { user, system } = process.cpuUsage(began);
      return (user + system) / 1e6;
    };
    const best = (size: number) => Math.min(...Array.from({ length: 4 }, () => seconds(size)));
    const small = best(2_000);
    assert.ok(best(20_000) < 40 * Math.max(small, 0.005));
  });
}
