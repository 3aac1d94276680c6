/** The JSON types that a schema allows, as far as a notation without quotes needs them. */

import type { ParsedTool } from "./output.ts";

const ANY: ReadonlySet<string> = new Set([
  "null",
  "boolean",
  "integer",
  "number",
  "string",
  "array",
  "object",
]);
const MAX_VISITS = 1000;
const KINDS: ReadonlyMap<string, string> = new Map([
  ["{", "object"],
  ["[", "array"],
  ['"', "string"],
  ["t", "boolean"],
  ["f", "boolean"],
  ["n", "null"],
]);

/** Return the types of a tool's parameter. */
export function parameterTypes({ parameters }: ParsedTool, name: string): ReadonlySet<string> {
  return typesOf(field(field(parameters, "properties"), name), parameters);
}

/**
 * Return the types that a schema inside the document `root` allows; all if it does not say.
 *
 * All as well if it has more parts than are worth reading: they may refer to each other in any number.
 */
export function typesOf(schema: unknown, root: unknown): ReadonlySet<string> {
  const types = new Set<string>();
  const references = new Set<string>();
  const waiting = [schema];
  for (let visits = 0; visits < MAX_VISITS; visits += 1) {
    if (waiting.length === 0) return types.size > 0 ? types : ANY;
    const part = waiting.pop();
    const alternatives = [field(part, "anyOf"), field(part, "oneOf")].find(Array.isArray);
    if (hasField(part, "$ref")) {
      const reference = String(part.$ref);
      if (!references.has(reference)) waiting.push(referred(reference, root));
      references.add(reference);
    } else if (alternatives !== undefined) {
      for (const other of alternatives) waiting.push(other);
    } else {
      for (const type of statedTypes(part)) types.add(type);
    }
  }
  return ANY;
}

function statedTypes(schema: unknown): Iterable<string> {
  const stated = field(schema, "type");
  if (typeof stated === "string" || Array.isArray(stated)) {
    const types = [stated].flat().map(String);
    return types.includes("number") ? [...types, "integer"] : types;
  }
  const values = hasField(schema, "const")
    ? (field(schema, "enum") ?? [schema.const])
    : field(schema, "enum");
  return Array.isArray(values) ? values.map((value) => typeOf(JSON.stringify(value))) : ANY;
}

/** Return what a reference such as `#/$defs/City` refers to; undefined if there is nothing. */
function referred(reference: string, root: unknown): unknown {
  const path = reference.replace(/^#/, "").replace(/^\/+|\/+$/g, "");
  return path.split("/").reduce(field, root);
}

/** Return the type of a value in JSON. */
export function typeOf(value: string): string {
  return KINDS.get(value.charAt(0)) ?? (/[.eE]/.test(value) ? "number" : "integer");
}

function field(value: unknown, name: string): unknown {
  return hasField(value, name) ? value[name] : undefined;
}

function hasField<Name extends string>(value: unknown, name: Name): value is Record<Name, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value) && Object.hasOwn(value, name);
}
