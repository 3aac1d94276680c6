/**
 * Text that arrives in pieces, for readers that are generators: they yield whenever they need more.
 *
 * A reader never looks at a character twice, except for the few that may begin a marker, so that the cost of a
 * text does not depend on how it is cut.
 */

import { SPACE } from "./space.ts";

/** A reader that returns a `T`. */
export type Reader<T> = Generator<void, T, void>;
/** Takes text that was read. */
export type Emit = (text: string) => void;

const SPACES = new RegExp(`[${SPACE}]*`, "y");

/** The text that was not read yet. */
export class Source {
  #text = "";
  #at = 0;
  #isEnded = false;
  #cutBefore: string | undefined;
  #hasDropped = false;
  #kept: string[] | undefined;
  #keptFrom = 0;
  /** The first half of a character whose second half is in the next piece. */
  #half = "";

  /** Add text. */
  feed(text: string): void {
    this.#save();
    const whole = this.#half + text;
    const end = whole.length - (isHighSurrogate(whole.charCodeAt(whole.length - 1)) ? 1 : 0);
    this.#half = whole.slice(end);
    this.#text = this.#text.slice(this.#at) + whole.slice(0, end);
    this.#at = this.#keptFrom = 0;
  }

  /** Say that nothing more will be added; `cutBefore` as for `OutputParser.finish`. */
  end(cutBefore?: string): void {
    this.#isEnded = true;
    this.#cutBefore = cutBefore;
    this.#text += this.#half;
  }

  /** Whether the text has ended, and was cut off. What was not certain before is half of something. */
  get isCut(): boolean {
    return this.#cutBefore !== undefined;
  }

  /** Whether the end of the text was left out, since it may begin a marker. */
  get hasDropped(): boolean {
    return this.#hasDropped;
  }

  /** Leave out what was not read yet. */
  drop(): void {
    this.#dropFrom(this.#at);
  }

  #dropFrom(start: number): void {
    this.#text = this.#text.slice(0, start);
    this.#hasDropped = true;
  }

  /** Leave out what the text was cut off in, if that may be the beginning of a marker. */
  #dropBegun(start: number, markers: Markers): void {
    if (this.#cutBefore === undefined) return;
    const at = markers.begunAt(this.#text, start, this.#cutBefore);
    if (at < this.#text.length) this.#dropFrom(at);
  }

  /** From here on, keep what is read, after `before`, since it may turn out to be content. */
  keep(before = ""): void {
    this.#kept = [before];
    this.#keptFrom = this.#at;
  }

  /** Return what was read since `keep`, and keep no more. */
  kept(): string {
    this.#save();
    const text = (this.#kept ?? []).join("");
    this.#kept = undefined;
    return text;
  }

  /** Read again `text`, which was read last. */
  giveBack(text: string): void {
    this.#text = text + this.#text.slice(this.#at);
    this.#at = 0;
  }

  #save(): void {
    if (this.#kept === undefined) return;
    this.#kept.push(this.#text.slice(this.#keptFrom, this.#at));
    this.#keptFrom = this.#at;
  }

  /** Return the next character without reading it, or nothing at the end. */
  *peek(): Reader<string> {
    while (this.#at === this.#text.length) {
      if (this.#isEnded) return "";
      yield;
    }
    return this.#text.charAt(this.#at);
  }

  /** Read the character that was peeked at. */
  skip(): void {
    this.#at += 1;
  }

  /** Read characters as long as they match `pattern`, a repeated class of characters with the flag y. */
  *run(pattern: RegExp, emit: Emit): Reader<void> {
    while (yield* this.peek()) {
      pattern.lastIndex = this.#at;
      const found = pattern.exec(this.#text)?.[0];
      if (!found) return;
      emit(found);
      this.#at += found.length;
    }
  }

  /** Read characters as `run` does, and return them. */
  *word(pattern: RegExp): Reader<string> {
    const pieces: string[] = [];
    yield* this.run(pattern, (text) => pieces.push(text));
    return pieces.join("");
  }

  *skipSpace(): Reader<void> {
    yield* this.run(SPACES, () => {});
  }

  /** Read `literal` if it comes next; otherwise read nothing. */
  *take(literal: string): Reader<boolean> {
    for (;;) {
      if (this.#text.startsWith(literal, this.#at)) {
        this.#at += literal.length;
        return true;
      }
      const numLeft = this.#text.length - this.#at;
      if (this.#isEnded || numLeft > literal.length || !literal.startsWith(this.#text.slice(this.#at))) {
        return false;
      }
      yield;
    }
  }

  /** Read the first of `literals` that comes next and return it; nothing if none does. */
  *takeOne(literals: readonly string[]): Reader<string> {
    for (const literal of literals) {
      if (yield* this.take(literal)) return literal;
    }
    if (this.#isEnded) this.#dropBegun(this.#at, new Markers(literals));
    return "";
  }

  /**
   * Read text up to a marker, and the marker, which is returned; nothing at the end.
   *
   * Only the beginning of a marker at the end of the text waits for more.
   */
  *until(markers: Markers, emit: Emit): Reader<string> {
    for (;;) {
      const found = markers.find(this.#text, this.#at);
      if (found !== undefined) {
        emit(this.#text.slice(this.#at, found.start));
        this.#at = found.start + found.marker.length;
        return found.marker;
      }
      if (this.#isEnded) this.#dropBegun(this.#at, markers);
      const end = this.#isEnded ? this.#text.length : markers.safeEnd(this.#text, this.#at);
      emit(this.#text.slice(this.#at, end));
      this.#at = end;
      if (this.#isEnded) return "";
      yield;
    }
  }
}

/** A marker, and where it begins. */
interface Found {
  marker: string;
  start: number;
}

/** Texts to look for, none of which begins another one. */
export class Markers {
  readonly #texts: readonly string[];
  readonly #pattern: RegExp;
  readonly #prefixes: ReadonlySet<string>;
  readonly #longest: number;

  constructor(texts: readonly string[]) {
    this.#texts = texts;
    this.#pattern = new RegExp(texts.map(escapedPattern).join("|") || "(?!)", "g");
    this.#prefixes = new Set(
      texts.flatMap((text) =>
        Array.from({ length: text.length - 1 }, (_, place) => text.slice(0, place + 1)),
      ),
    );
    this.#longest = Math.max(1, ...texts.map((text) => text.length)) - 1;
  }

  /** Return the first marker at `start` or behind it. */
  find(text: string, start: number): Found | undefined {
    this.#pattern.lastIndex = start;
    const found = this.#pattern.exec(text);
    return found === null ? undefined : { marker: found[0], start: found.index };
  }

  /** Return where the beginning of a marker may be at the end of `text`, or its end. */
  safeEnd(text: string, start: number): number {
    for (let at = Math.max(start, text.length - this.#longest); at < text.length; at += 1) {
      if (this.#prefixes.has(text.slice(at))) return at;
    }
    return text.length;
  }

  /**
   * Return where `text`, which `ahead` would follow, ends in the beginning of a marker, or its end.
   *
   * Markers that are words do not count: a text may as well have begun a sentence.
   */
  begunAt(text: string, start: number, ahead: string): number {
    for (let at = Math.max(start, text.length - this.#longest); at < text.length; at += 1) {
      const begun = text.slice(at);
      const isBegun = (marker: string) =>
        begun.length < marker.length &&
        !/^[A-Za-z]/.test(marker) &&
        marker.startsWith((begun + ahead).slice(0, marker.length));
      if (this.#texts.some(isBegun)) return at;
    }
    return text.length;
  }

  /** Return whether there is a marker in the text. */
  isIn(text: string): boolean {
    return this.find(text, 0) !== undefined;
  }

  /** Return the text without its markers. */
  removedFrom(text: string): string {
    return text.replace(this.#pattern, "");
  }
}

function isHighSurrogate(code: number): boolean {
  return code >= 0xd800 && code <= 0xdbff;
}

function escapedPattern(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
}
