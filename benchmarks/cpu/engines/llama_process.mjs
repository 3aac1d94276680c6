// llama.cpp in a process of its own, by the binaries of node-llama-cpp, which are in .venv-llama-cpp.
//
// Called with `PACKAGES FILE THREADS TOKEN_BUDGET`. It speaks as engines in Python do (serving.py): a line of JSON
// comes for each load, and another one is returned.

import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const [packages, file, threads, tokenBudget] = process.argv.slice(2);
const entry = path.resolve(packages, "node_modules", "node-llama-cpp", "dist", "index.js");
const { getLlama } = await import(pathToFileURL(entry).href);

const llama = await getLlama({
  gpu: false,
  build: "never",
  progressLogs: false,
  logLevel: "error",
  maxThreads: Number(threads),
});
const model = await llama.loadModel({ modelPath: file });

// Sequences go round by round: left alone, each asks for its next token once it has one, and steps are of some of
// them. The first round computes all prompts.
async function play({ prompts, output_tokens: outputTokens, num_steps: numSteps }) {
  const context = await model.createContext({
    sequences: prompts.length,
    contextSize: prompts[0].length + outputTokens,
    batchSize: Number(tokenBudget),
    threads: Number(threads),
  });
  const began = performance.now();
  const outputs = prompts.map((prompt) =>
    context.getSequence().evaluate(prompt, { temperature: 0, yieldEogToken: true }),
  );
  const at = [];
  let firstTokens;
  while (at.length < (numSteps ? numSteps + 1 : outputTokens)) {
    const round = await Promise.all(outputs.map((output) => output.next()));
    at.push(performance.now());
    firstTokens ??= round.map(({ value }) => value);
    if (round.some(({ done }) => done)) throw new Error("an output ended early");
  }
  await Promise.all(outputs.map((output) => output.return()));
  await context.dispose();
  const seconds = (from) => (at.at(-1) - from) / 1000;
  return {
    total_s: numSteps ? 0 : seconds(began),
    step_s: numSteps ? seconds(at[0]) / numSteps : 0,
    first_tokens: firstTokens,
  };
}

const reply = (message) => process.stdout.write(JSON.stringify(message) + "\n");
reply({ ready: true });
for await (const line of readline.createInterface({ input: process.stdin })) {
  reply(await play(JSON.parse(line)));
}
process.exit(0);
