/**
 * The bodies of calls in every notation, told apart by how they begin.
 *
 *     {"name": "f", "arguments": {...}}       one object, or several; in a list too
 *     [f(a=1), g()]                           Python's notation
 *     <function=f><parameter=a>1</parameter></function>
 *     f[ARGS]{...}                            a name, and its arguments
 */

import type { Output } from "./output.ts";
import { parameterTypes, typeOf } from "./schemas.ts";
import { Markers, type Reader, type Source } from "./source.ts";
import { SPACE, WORD } from "./space.ts";
import { asJson, escaped, readString, readValue } from "./values.ts";

export const FUNCTION = "<function=";
const PARAMETER_END = new Markers(["\n</parameter>", "</parameter>"]);
const NAME = new RegExp(`[${WORD}.-]*`, "uy");
const TAG_NAME = new RegExp(`[^<>${SPACE}]*`, "y");
const ID = /[A-Za-z0-9]*/y;

/**
 * Read the calls that come next.
 *
 * Returns false where what comes is not a call, or not the rest of one; what the source kept then belongs to
 * the message.
 */
export function* readCalls(source: Source, output: Output): Reader<boolean> {
  yield* source.skipSpace();
  const char = yield* source.peek();
  if (char === "{") return yield* readObjects(source, output, "");
  if (char === "[") {
    source.skip();
    yield* source.skipSpace();
    if ((yield* source.peek()) === "{") return yield* readObjects(source, output, "]");
    return yield* readPython(source, output);
  }
  if (char === "<" && (yield* source.take(FUNCTION))) return yield* readFunction(source, output);
  return yield* readNamed(source, output);
}

function* readObjects(source: Source, output: Output, closer: "" | "]"): Reader<boolean> {
  while (yield* readObject(source, output)) {
    yield* source.skipSpace();
    let char = yield* source.peek();
    if (closer !== "" && char === closer) {
      source.skip();
      return true;
    }
    if (char === "," || char === ";") {
      source.skip();
      yield* source.skipSpace();
      char = yield* source.peek();
    } else if (closer === "" && char !== "{") {
      return true;
    }
    if (char !== "{") return false;
  }
  return false;
}

/** The parts of a call that have been read so far. */
interface PartOfCall {
  name: string;
  /** Arguments that came before the name; empty if they are not an object. */
  held: string | undefined;
  isBegun: boolean;
}

function* readObject(source: Source, output: Output): Reader<boolean> {
  source.skip();
  const call: PartOfCall = { name: "", held: undefined, isBegun: false };
  for (;;) {
    yield* source.skipSpace();
    if (yield* source.take("}")) break;
    if (!(yield* source.take(",")) && !(yield* readField(source, output, call))) return false;
  }
  if (call.name === "") return false;
  if (!call.isBegun) addWhole(source, output, call.name, "{}");
  source.keep();
  return true;
}

function* readField(source: Source, output: Output, call: PartOfCall): Reader<boolean> {
  const key = yield* readText(source);
  yield* source.skipSpace();
  if (key === undefined || !(yield* source.take(":"))) return false;
  yield* source.skipSpace();
  if (key === "name" && call.name === "") {
    call.name = (yield* readText(source)) ?? "";
    if (output.tool(call.name) === undefined || call.held === "") return false;
    call.isBegun = call.held !== undefined;
    if (call.held !== undefined) addWhole(source, output, call.name, call.held);
    return true;
  }
  const isArguments = key === "arguments" || key === "parameters";
  if (isArguments && call.name !== "" && !call.isBegun) {
    call.isBegun = true;
    return yield* readArguments(source, output, call.name);
  }
  const value = yield* readJson(source);
  if (value === undefined) return false;
  if (isArguments) call.held ??= objectOf(value);
  return true;
}

/** Read the arguments of a call: an object, or one inside a string, or nothing. */
function* readArguments(source: Source, output: Output, name: string): Reader<boolean> {
  if ((yield* source.peek()) === "{") return yield* streamArguments(source, output, name);
  const value = yield* readJson(source);
  const found = value === undefined ? "" : objectOf(value);
  if (found !== "") addWhole(source, output, name, found);
  return found !== "";
}

/** Read an object, the arguments of a call. Returns false as `readCalls` does. */
export function* streamArguments(source: Source, output: Output, name: string): Reader<boolean> {
  output.begin(name);
  return yield* streamValue(source, output);
}

/** Read a value of a call's arguments as it comes. Returns false if it breaks off. */
function* streamValue(source: Source, output: Output): Reader<boolean> {
  source.kept();
  const unread = yield* readValue(source, (text) => output.arguments(text));
  source.keep(unread ?? "");
  return unread === undefined;
}

function addWhole(source: Source, output: Output, name: string, text: string): void {
  output.begin(name);
  output.arguments(text);
  source.keep();
}

/** Return arguments as a JSON object; empty if they are not one. The text stays as it is, so numbers do too. */
function objectOf(text: string): string {
  try {
    const stated: unknown = JSON.parse(text);
    const [inner, value] = typeof stated === "string" ? [stated, JSON.parse(stated)] : [text, stated];
    if (value === null) return "{}";
    return typeof value === "object" && !Array.isArray(value) ? inner : "";
  } catch {
    return ""; // a string that contains no JSON
  }
}

/** Return the JSON of the value that comes next; undefined if something else does. */
function* readJson(source: Source): Reader<string | undefined> {
  const pieces: string[] = [];
  const unread = yield* readValue(source, (text) => pieces.push(text));
  return unread === undefined ? pieces.join("") : undefined;
}

/** Return the string that comes next; undefined if something else does. */
function* readText(source: Source): Reader<string | undefined> {
  const pieces: string[] = [];
  const isWhole = yield* readString(source, (text) => pieces.push(text));
  return isWhole ? (JSON.parse(pieces.join("")) as string) : undefined;
}

function* readNamed(source: Source, output: Output): Reader<boolean> {
  const name = yield* source.word(NAME);
  if (output.tool(name) === undefined) return false;
  if (yield* source.take("[CALL_ID]")) yield* source.word(ID);
  yield* source.take("[ARGS]");
  yield* source.skipSpace();
  if ((yield* source.peek()) !== "{") return false;
  return yield* streamArguments(source, output, name);
}

function* readPython(source: Source, output: Output): Reader<boolean> {
  for (;;) {
    const name = yield* source.word(NAME);
    yield* source.skipSpace();
    if (output.tool(name) === undefined || !(yield* source.take("("))) return false;
    addWhole(source, output, name, "{");
    if (!(yield* readKeywords(source, output))) return false;
    yield* source.skipSpace();
    if (yield* source.take("]")) return true;
    if (!(yield* source.take(","))) return false;
    yield* source.skipSpace();
  }
}

function* readKeywords(source: Source, output: Output): Reader<boolean> {
  for (let separator = ""; ; separator = ", ") {
    yield* source.skipSpace();
    if (yield* source.take(")")) break;
    const key = yield* source.word(NAME);
    yield* source.skipSpace();
    if (key === "" || !(yield* source.take("="))) return false;
    output.arguments(`${separator}"${escaped(key)}": `);
    if (!(yield* streamValue(source, output))) return false;
    yield* source.skipSpace();
    if (!(yield* source.take(",")) && (yield* source.peek()) !== ")") return false;
  }
  output.arguments("}");
  source.keep();
  return true;
}

/** Read the rest of a call that begins with `<function=`. */
export function* readFunction(source: Source, output: Output): Reader<boolean> {
  const name = yield* source.word(TAG_NAME);
  const tool = output.tool(name);
  if (tool === undefined || !(yield* source.take(">"))) return false;
  addWhole(source, output, name, "{");
  for (let separator = ""; ; separator = ", ") {
    yield* source.skipSpace();
    if (yield* source.take("</function>")) break;
    if (!(yield* source.take("<parameter="))) return false;
    const key = yield* source.word(TAG_NAME);
    if (!(yield* source.take(">"))) return false;
    output.arguments(`${separator}"${escaped(key)}": `);
    yield* source.take("\n");
    source.kept();
    if (!(yield* readParameter(source, output, parameterTypes(tool, key)))) return false;
    source.keep();
  }
  output.arguments("}");
  source.keep();
  return true;
}

/** Read a value up to the end of its tag: text as it comes, everything else when it is complete. */
function* readParameter(source: Source, output: Output, types: ReadonlySet<string>): Reader<boolean> {
  if (types.size === 1 && types.has("string")) {
    output.arguments('"');
    if (!(yield* source.until(PARAMETER_END, (text) => output.arguments(escaped(text))))) return false;
    output.arguments('"');
    return true;
  }
  const pieces: string[] = [];
  const marker = yield* source.until(PARAMETER_END, (text) => pieces.push(text));
  const text = pieces.join("");
  if (marker === "") {
    source.keep(text);
    return false;
  }
  const value = asJson(text);
  output.arguments(value !== "" && types.has(typeOf(value)) ? value : `"${escaped(text)}"`);
  return true;
}
