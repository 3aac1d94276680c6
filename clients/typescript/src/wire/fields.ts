/** Set fields of the contract's messages, and name the one whose value protobuf cannot carry. */

import { type DescField, type DescMessage, type Message, ScalarType } from "@bufbuild/protobuf";
import { FieldError, type ReflectMessage, reflect } from "@bufbuild/protobuf/reflect";
import { InvalidRequest } from "../errors.ts";

/** The values that a field can carry, by its protobuf type. */
const ACCEPTED = new Map<ScalarType | undefined, string>([
  [ScalarType.UINT32, `a whole number from 0 to ${2 ** 32 - 1}`],
  [ScalarType.UINT64, `a whole number from 0 to ${2n ** 64n - 1n}`],
  [ScalarType.DOUBLE, "a number"],
  [ScalarType.BOOL, "true or false"],
  [ScalarType.STRING, "text"],
]);

/** Set the fields of a message that `options` names by their TypeScript names, or by those in `renamed`. */
export function put(
  desc: DescMessage,
  message: Message | undefined,
  path: string,
  options: object = {},
  renamed: Readonly<Record<string, string>> = {},
): void {
  const target = reflect(desc, message);
  const given = Object.entries(options).filter(([, value]) => value !== undefined && value !== null);
  for (const [name, value] of given) {
    const field = desc.field[renamed[name] ?? name];
    if (field === undefined) throw invalid(path + name, value, "there is no such option");
    try {
      putField(target, field, value);
    } catch (error) {
      if (!(error instanceof FieldError)) throw error;
      const one = ACCEPTED.get(field.scalar) ?? error.message;
      const accepted = { list: `a list, each of it ${one}`, map: `token ids with ${one} for each` };
      throw invalid(
        path + field.name,
        value,
        accepted[field.fieldKind as "list" | "map"] ?? `it must be ${one}`,
      );
    }
  }
}

function putField(target: ReflectMessage, field: DescField, value: unknown): void {
  if (field.fieldKind === "list") {
    if (!Array.isArray(value)) throw new FieldError(field, "a list");
    for (const part of value) target.get(field).add(part);
  } else if (field.fieldKind === "map") {
    if (!isObject(value)) throw new FieldError(field, "an object");
    for (const [key, part] of Object.entries(value)) target.get(field).set(Number(key), part);
  } else {
    target.set(field, value);
  }
}

export function checkedText(field: string, text: string): string {
  if (!text.isWellFormed()) throw invalid(field, text, "it must be text");
  return text;
}

export function isObject(value: unknown): value is object {
  return typeof value === "object" && value !== null;
}

export function invalid(field: string, value: unknown, accepted: string): InvalidRequest {
  const text = shown(value);
  const short = text.length <= 60 ? text : `${text.slice(0, 57)}...`;
  return new InvalidRequest(`${field} is ${short}: ${accepted}`, [{ field, description: accepted }]);
}

function shown(value: unknown): string {
  try {
    return JSON.stringify(value) ?? String(value);
  } catch {
    return String(value); // a bigint, or a circle
  }
}
