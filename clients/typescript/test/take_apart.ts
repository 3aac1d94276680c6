// Takes outputs apart: reads them as lines of JSON, each with its `pieces`, and writes the deltas of each piece.
// `tests/vectors/outputs/test_typescript.py` drives it.
import { createInterface } from "node:readline";
import { deltasOf, plain } from "./outputs.ts";

for await (const line of createInterface({ input: process.stdin })) {
  const { pieces, ...vector } = JSON.parse(line);
  process.stdout.write(`${JSON.stringify(deltasOf(vector, pieces).map(plain))}\n`);
}
