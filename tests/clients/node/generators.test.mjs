// What people generate from the contract compiles, with the generators that they use.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const contract = path.resolve(here, "../../../proto");
const bin = path.join(here, "node_modules", ".bin");
const buf = process.env.BATON_BUF;

let scratch;
before(() => {
  // Below this folder, so that the compiler finds the packages that the generated code imports.
  scratch = mkdtempSync(path.join(here, "node_modules", ".generated-"));
});
after(() => rmSync(scratch, { recursive: true }));

function run(command, args, cwd) {
  const ran = spawnSync(command, args, { cwd, encoding: "utf8" });
  assert.equal(ran.status, 0, `${command} ${args.join(" ")}\n${ran.error ?? ""}${ran.stdout}${ran.stderr}`);
}

const GENERATORS = [
  ["ts-proto, services for grpc-js", "protoc-gen-ts_proto", ["outputServices=grpc-js", "esModuleInterop=true"]],
  ["ts-proto, services of its own", "protoc-gen-ts_proto", ["esModuleInterop=true", "useAsyncIterable=true"]],
  ["protobuf-es", "protoc-gen-es", ["target=ts"]],
];

for (const [name, plugin, opt] of GENERATORS) {
  test(`the client's door compiles from ${name}`, () => {
    const folder = mkdtempSync(path.join(scratch, "ts-"));
    const template = { version: "v2", plugins: [{ local: path.join(bin, plugin), out: folder, opt, include_imports: true }] };
    writeFileSync(path.join(folder, "buf.gen.json"), JSON.stringify(template));
    const door = ["--path", path.join(contract, "baton", "v1")];
    run(buf, ["generate", contract, "--template", path.join(folder, "buf.gen.json"), ...door], contract);
    const files = readdirSync(folder, { recursive: true }).filter((file) => file.endsWith(".ts"));
    assert.ok(files.some((file) => file.includes("inference")));
    const compilerOptions = {
      strict: true,
      noEmit: true,
      skipLibCheck: true,
      target: "es2022",
      module: "esnext",
      moduleResolution: "bundler",
      types: ["node"],
    };
    writeFileSync(path.join(folder, "tsconfig.json"), JSON.stringify({ compilerOptions, files }));
    run(path.join(bin, "tsc"), ["--project", folder], folder);
  });
}
