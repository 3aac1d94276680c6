/**
 * Conversion of values as models write them to JSON, piece by piece.
 *
 * Models write JSON, Python's literals, or a mixture. One reader takes both: either kind of quotes, `True` and
 * `true`, commas at the end, line breaks in strings. It emits only JSON, so whatever it has emitted so far is
 * the beginning of JSON.
 */

import { numberAsJson } from "./numbers.ts";
import { type Emit, type Reader, Source } from "./source.ts";

interface Container {
  closer: string;
  /** What closes it in JSON. */
  end: string;
  hasItems: boolean;
}

/** By the opening character: what closes it, and both in JSON. */
const CONTAINERS: ReadonlyMap<string, readonly [closer: string, begin: string, end: string]> = new Map([
  ["{", ["}", "{", "}"]],
  ["[", ["]", "[", "]"]],
  ["(", [")", "[", "]"]],
]);
const WORDS: ReadonlyMap<string, string> = new Map([
  ["true", "true"],
  ["True", "true"],
  ["false", "false"],
  ["False", "false"],
  ["null", "null"],
  ["None", "null"],
]);
const SCALAR = /[-+.\w]*/y;
/** By the quote: what stands for itself between such quotes. */
const PLAIN: ReadonlyMap<string, RegExp> = new Map([
  // biome-ignore lint/suspicious/noControlCharactersInRegex: JSON escapes control characters
  ['"', /[^"\\\x00-\x1f]*/y],
  // biome-ignore lint/suspicious/noControlCharactersInRegex: JSON escapes control characters
  ["'", /[^'\\\x00-\x1f]*/y],
]);
const SAME_ESCAPES: ReadonlySet<string> = new Set('"\\/bfnrt');
const HEX_DIGITS: ReadonlyMap<string, number> = new Map([
  ["x", 2],
  ["u", 4],
  ["U", 8],
]);
const MAX_CODE_POINT = 0x10ffff;

/**
 * Read one value and emit it as JSON.
 *
 * Returns undefined, or the text that was read without being emitted if what comes is not the rest of a value.
 */
export function* readValue(source: Source, emit: Emit): Reader<string | undefined> {
  const nested: Container[] = [];
  for (;;) {
    yield* source.skipSpace();
    let char = yield* source.peek();
    const around = nested.at(-1);
    if (around !== undefined && char !== around.closer) {
      if (around.hasItems) emit(", ");
      around.hasItems = true;
      if (around.end === "}") {
        if (!(yield* readKey(source, emit))) return "";
        char = yield* source.peek();
      }
    }
    const container = CONTAINERS.get(char);
    if (container !== undefined) {
      source.skip();
      const [closer, begin, end] = container;
      emit(begin);
      nested.push({ closer, end, hasItems: false });
      continue;
    }
    if (char !== around?.closer) {
      const unread = yield* readScalar(source, emit);
      if (unread !== undefined) return unread;
    }
    if (!(yield* close(source, emit, nested))) return "";
    if (nested.length === 0) return undefined;
  }
}

/** Read a field's name, up to its value. Returns false if what comes is none. */
function* readKey(source: Source, emit: Emit): Reader<boolean> {
  if (!(yield* readString(source, emit))) return false;
  yield* source.skipSpace();
  if (!(yield* source.take(":"))) return false;
  emit(": ");
  yield* source.skipSpace();
  return true;
}

/** Close what ends here, up to the next comma. Returns false if neither comes. */
function* close(source: Source, emit: Emit, nested: Container[]): Reader<boolean> {
  for (let around = nested.at(-1); around !== undefined; around = nested.at(-1)) {
    yield* source.skipSpace();
    const char = yield* source.peek();
    if (char !== around.closer && char !== ",") return false;
    source.skip();
    if (char === ",") return true;
    emit(around.end);
    nested.pop();
  }
  return true;
}

function* readScalar(source: Source, emit: Emit): Reader<string | undefined> {
  if (PLAIN.has(yield* source.peek())) {
    return (yield* readString(source, emit)) ? undefined : "";
  }
  const word = yield* source.word(SCALAR);
  if (source.isCut && (yield* source.peek()) === "") return word; // it may have gone on
  const found = WORDS.get(word) ?? numberAsJson(word);
  if (found === "") return word;
  emit(found);
  return undefined;
}

/** Read one string and emit it as JSON. Returns false if there is none, or if it does not end. */
export function* readString(source: Source, emit: Emit): Reader<boolean> {
  const quote = yield* source.peek();
  const plain = PLAIN.get(quote);
  if (plain === undefined) return false;
  source.skip();
  emit('"');
  for (;;) {
    yield* source.run(plain, (text) => emit(text.replaceAll('"', '\\"')));
    const char = yield* source.peek();
    if (char === "") return false;
    source.skip();
    if (char === quote) {
      emit('"');
      return true;
    }
    emit(char === "\\" ? yield* readEscape(source) : escaped(char));
  }
}

/** Return an escape as JSON has it. A backslash before anything else stands for itself, as in Python. */
function* readEscape(source: Source): Reader<string> {
  const char = yield* source.peek();
  if (SAME_ESCAPES.has(char) || char === "'") {
    source.skip();
    return char === "'" ? char : `\\${char}`;
  }
  const numDigits = HEX_DIGITS.get(char);
  if (numDigits === undefined) return char === "" && source.isCut ? "" : "\\\\";
  source.skip();
  let digits = "";
  while (digits.length < numDigits) {
    const digit = yield* source.peek();
    if (digit === "" && source.isCut) return "";
    if (!/^[0-9a-fA-F]$/.test(digit)) return `\\\\${char}${digits}`;
    source.skip();
    digits += digit;
  }
  const code = Number.parseInt(digits, 16);
  return code <= MAX_CODE_POINT ? escapedToAscii(String.fromCodePoint(code)) : `\\\\${char}${digits}`;
}

/** Return text as it stands in a JSON string, without the quotes. */
export function escaped(text: string): string {
  return JSON.stringify(text).slice(1, -1);
}

/** Return text as `escaped` does, with everything outside of ASCII escaped as well. */
function escapedToAscii(text: string): string {
  return escaped(text).replace(/[^ -~]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Return the JSON of a whole value as a model writes it; empty if it is not one. */
export function asJson(text: string): string {
  const source = new Source();
  source.feed(text);
  source.end();
  const pieces: string[] = [];
  return readWhole(source, (piece) => pieces.push(piece)).next().value === true ? pieces.join("") : "";
}

/** Read one value and nothing else. */
function* readWhole(source: Source, emit: Emit): Reader<boolean> {
  const unread = yield* readValue(source, emit);
  yield* source.skipSpace();
  return unread === undefined && (yield* source.peek()) === "";
}
