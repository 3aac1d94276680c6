/** Tool calls and reasoning in the text of one choice. */

import { FUNCTION, readCalls, readFunction } from "./calls.ts";
import {
  HARMONY,
  NO_TOOLS,
  type ReasoningFormat,
  reasoningFormatOf,
  type ToolFormat,
  toolFormatOf,
} from "./families.ts";
import { readHarmony } from "./harmony.ts";
import { Output, type ParsedTool } from "./output.ts";
import { Markers, type Reader, Source } from "./source.ts";
import { SPACE } from "./space.ts";
import type { ChatFormats, Delta } from "./types.ts";

const SPACES = new RegExp(`[${SPACE}]+`, "g");

/** How to take a text apart. */
export interface ParserOptions {
  /** Makes the ids of calls, which must be unique in a chat: a request's id and a choice's index. */
  seed: string;
  /** The prompt ends inside reasoning. */
  reasoningOpen: boolean;
  /** The content is calls or one text in a format, such as JSON that quotes a call. */
  hasFormat: boolean;
}

/**
 * Takes the text of one choice apart as it comes.
 *
 * The deltas are a function of the text from its beginning, however it is cut. Calls name only known tools;
 * what looks like a call and is none stays content. A call that breaks off stays cut off, and what follows is
 * content. Only what may begin a marker, a name or a number waits for more, and so does white space.
 */
export class OutputParser {
  readonly #tools: ToolFormat;
  readonly #reasoning: ReasoningFormat | undefined;
  readonly #hasFormat: boolean;
  readonly #names: readonly string[];
  readonly #source = new Source();
  readonly #output: Output;
  readonly #reading: Reader<void>;

  /** Without tools no calls are looked for. Throws `Internal` for a format that this client does not know. */
  constructor(formats: ChatFormats, tools: readonly ParsedTool[], options: ParserOptions) {
    this.#tools = tools.length > 0 && formats.tools !== "" ? toolFormatOf(formats.tools) : NO_TOOLS;
    this.#reasoning = formats.reasoning === "" ? undefined : reasoningFormatOf(formats.reasoning);
    this.#hasFormat = options.hasFormat;
    this.#names = tools.map(({ name }) => name);
    this.#output = new Output(tools, options.seed, formats.tools === "mistral");
    const isHarmony = formats.tools === HARMONY || formats.reasoning === HARMONY;
    this.#reading = isHarmony
      ? readHarmony(this.#source, this.#output, options.reasoningOpen)
      : this.#read(options.reasoningOpen);
  }

  /** Return what more text says. */
  feed(text: string): Delta[] {
    this.#source.feed(text);
    this.#reading.next();
    return this.#output.take();
  }

  /**
   * Return the rest. Feed nothing afterwards.
   *
   * If the output was cut off, `cutBefore` is the stop string that did it, or "". The half of a marker, a call
   * or a value is then left out; else, if the model itself ended there, it is content.
   */
  finish(cutBefore?: string): Delta[] {
    this.#source.end(cutBefore);
    this.#reading.next();
    if (!this.#source.hasDropped) this.#output.end();
    return this.#output.take();
  }

  *#read(reasoningOpen: boolean): Reader<void> {
    if (this.#reasoning !== undefined) yield* this.#readReasoning(this.#reasoning, reasoningOpen);
    yield* this.#readContent();
  }

  *#readReasoning(form: ReasoningFormat, isOpen: boolean): Reader<void> {
    const [source, output] = [this.#source, this.#output];
    if (!isOpen) {
      source.keep();
      yield* source.skipSpace();
      const opened = yield* source.takeOne(form.opens);
      const text = source.kept();
      if (opened === "") {
        output.content(text);
        return;
      }
    }
    output.pause();
    const markers = new Markers([...form.closes, ...form.controls]);
    let marker: string;
    do marker = yield* source.until(markers, (text) => output.reasoning(text));
    while (form.controls.includes(marker));
    if (marker !== "") output.pause();
  }

  *#readContent(): Reader<void> {
    const { bare, opens } = this.#tools;
    const controls = [...this.#tools.controls, ...(this.#reasoning?.controls ?? [])];
    const beginsWithCalls = (bare !== "" || this.#hasFormat) && (yield* this.#readFirstCalls(controls));
    const looked = this.#hasFormat && !beginsWithCalls ? [] : opens;
    const markers = new Markers([...looked, ...controls]);
    for (;;) {
      const marker = yield* this.#source.until(markers, (text) => this.#output.content(text));
      if (marker === "") return;
      if (!looked.includes(marker)) continue;
      this.#source.keep(marker);
      yield* this.#readCalls(marker, controls);
    }
  }

  /** Read calls at the beginning of the content; return whether there were some. */
  *#readFirstCalls(controls: readonly string[]): Reader<boolean> {
    const [{ bare, opens }, source] = [this.#tools, this.#source];
    source.keep();
    yield* source.skipSpace();
    const marker = this.#hasFormat ? yield* source.takeOne(opens) : "";
    if (marker !== "" || (bare !== "" && (yield* source.peek()) === bare)) {
      return yield* this.#readCalls(marker, controls);
    }
    this.#output.content(source.kept());
    return false;
  }

  /** Read what may be calls after a marker; return whether it was. */
  *#readCalls(marker: string, controls: readonly string[]): Reader<boolean> {
    const [source, output] = [this.#source, this.#output];
    const read = marker === FUNCTION ? readFunction : readCalls;
    const numBefore = output.numCalls;
    if (yield* read(source, output)) {
      yield* source.skipSpace();
      yield* source.takeOne(this.#tools.closes);
      source.kept();
      output.pause();
      return true;
    }
    const text = source.kept();
    if (source.isCut && (marker !== "" || output.numCalls > numBefore || this.#mayBeginCall(text))) {
      source.drop();
      return false;
    }
    const ending = new Markers(controls);
    // Where reading stopped may be inside a control.
    const end = ending.safeEnd(text, marker.length);
    output.content(ending.removedFrom(text.slice(0, end)));
    source.giveBack(text.slice(end));
    return false;
  }

  /** Return whether a text without a marker is the beginning of a call. */
  #mayBeginCall(text: string): boolean {
    const squeezed = text.replace(SPACES, "");
    const begins = this.#tools.bare === "[" ? "[" : '{"name":"';
    const wholes = this.#names.map((name) => begins + name);
    return wholes.some((whole) => whole.startsWith(squeezed) || squeezed.startsWith(whole));
  }
}
