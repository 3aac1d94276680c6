// The Vercel AI SDK by each of its providers: texts, streams, tools, objects and a chat that goes on.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false;
const name = process.env.BATON_MODEL;
const { PLAIN, RAIN } = process.env;
const options = { baseURL: `${process.env.BATON_URL}/v1`, apiKey: "none" };
const openai = createOpenAI(options);
const anthropic = createAnthropic(options);
const compatible = createOpenAICompatible({ ...options, name: "baton", supportsStructuredOutputs: true, includeUsage: true });

const providers = {
  "openai, responses": { model: openai(name), served: { search: openai.tools.webSearch({}) } },
  "openai, chat": { model: openai.chat(name), served: {} },
  "openai-compatible": { model: compatible(name), served: {} },
  anthropic: { model: anthropic(name), served: { search: anthropic.tools.webSearch_20250305({ maxUses: 2 }) } },
};

for (const [provider, { model, served }] of Object.entries(providers)) {
  const asked = [];
  const weather = tool({
    description: "Say what the weather is.",
    inputSchema: z.object({ city: z.literal("Oslo") }),
    execute: async ({ city }) => {
      asked.push(city);
      return { sky: "rain" };
    },
  });
  // Tools that OpenAI or Anthropic run themselves are left out.
  const called = { model, tools: { weather, ...served }, stopWhen: stepCountIs(3), prompt: "Do script weather." };

  const whole = await generateText(called);
  assert.deepEqual([whole.text, whole.finishReason, whole.steps.length], [RAIN, "stop", 2], provider);

  const kinds = [];
  const stream = streamText({ ...called, onError: ({ error }) => assert.fail(error) });
  for await (const part of stream.fullStream) kinds.push(part.type);
  assert.equal(await stream.text, RAIN, provider);
  assert.equal(kinds.filter((kind) => kind === "tool-result").length, 1, provider);
  assert.ok((await stream.totalUsage).outputTokens > 8, provider);

  const forced = await generateText({ ...called, stopWhen: stepCountIs(1), toolChoice: { type: "tool", toolName: "weather" } });
  assert.deepEqual(forced.toolCalls[0].input, { city: "Oslo" }, provider);
  assert.deepEqual(asked, ["Oslo", "Oslo", "Oslo"], provider);

  const schema = z.object({ city: z.literal("Bergen"), degrees: z.literal(7) });
  const { output } = await generateText({ model, prompt: "Do script report.", output: Output.object({ schema }) });
  assert.deepEqual(output, { city: "Bergen", degrees: 7 }, provider);

  // A chat that goes on sends back what was said and called.
  const chat = [{ role: "user", content: "Do script weather." }, ...whole.response.messages];
  const next = await generateText({ ...called, prompt: undefined, messages: [...chat, { role: "user", content: "Now script plain." }] });
  assert.equal(next.text, PLAIN, provider);
  const last = [...chat, { role: "user", content: "Now script plain." }, ...next.response.messages];
  const again = await generateText({ model, messages: [...last, { role: "user", content: "Once more script plain." }] });
  assert.equal(again.text, PLAIN, provider);
}
console.log("ok");
