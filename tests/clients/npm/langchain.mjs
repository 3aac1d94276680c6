// LangChain.js by chats and by responses: texts, streams, tools, structured output and a chat that goes on.
import assert from "node:assert/strict";
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";

const { PLAIN, RAIN } = process.env;
const weather = tool(async () => "rain", {
  name: "weather",
  description: "Say what the weather is.",
  schema: z.object({ city: z.string() }),
});

for (const useResponsesApi of [false, true]) {
  const configuration = { baseURL: `${process.env.BATON_URL}/v1` };
  const model = new ChatOpenAI({ model: process.env.BATON_MODEL, apiKey: "none", configuration, useResponsesApi, maxRetries: 0 });
  const plain = await model.invoke("Do script plain.");
  assert.equal(plain.text, PLAIN);
  assert.ok(plain.usage_metadata.output_tokens > 4);

  let streamed;
  for await (const chunk of await model.stream("Do script plain.")) streamed = streamed?.concat(chunk) ?? chunk;
  assert.equal(streamed.text, PLAIN);

  const bound = model.bindTools([weather]);
  const messages = [new HumanMessage("Do script weather.")];
  for (const forced of [false, true]) {
    const called = await (forced ? model.bindTools([weather], { tool_choice: "weather" }) : bound).invoke(messages);
    assert.deepEqual([called.tool_calls[0].name, called.tool_calls[0].args], ["weather", { city: "Oslo" }]);
    if (forced) continue;
    const result = await weather.invoke(called.tool_calls[0]);
    assert.ok(result instanceof ToolMessage);
    const said = await bound.invoke([...messages, called, result]);
    assert.equal(said.text, RAIN);
    const next = await bound.invoke([...messages, called, result, said, new HumanMessage("Now script plain.")]);
    assert.equal(next.text, PLAIN);
  }
  const report = z.object({ city: z.string(), degrees: z.number().int() });
  for (const method of ["jsonSchema", "functionCalling"]) {
    const script = method === "jsonSchema" ? "report" : "extract";
    const found = await model.withStructuredOutput(report, { method, name: "final_result" }).invoke(`Do script ${script}.`);
    assert.deepEqual(found, { city: "Bergen", degrees: 7 });
  }
}
console.log("ok");
