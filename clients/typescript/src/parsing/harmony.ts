/**
 * The channels of gpt-oss: what it thinks, what it says, and to whom.
 *
 *     <|channel|>analysis<|message|>...<|end|>
 *     <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>
 *     <|start|>assistant<|channel|>final<|message|>...<|return|>
 */

import { streamArguments } from "./calls.ts";
import { HARMONY_CONTROLS } from "./families.ts";
import type { Output } from "./output.ts";
import { Markers, type Reader, type Source } from "./source.ts";
import { trimStart, WORD } from "./space.ts";

const MARKERS = new Markers(HARMONY_CONTROLS);
const HEADER_CHARACTERS = new RegExp(`[${WORD}.=\\- ]*`, "uy");
const IN_HEADER: readonly string[] = ["<|channel|>", "<|constrain|>", "<|start|>"];
/** Characters between two markers of a header; a model never writes as many. */
const MAX_HEADER = 256;
const RECIPIENT = new RegExp(`to=functions\\.([${WORD}.-]+)`, "u");

/** Read a whole output. It begins with a header, or inside the analysis if the prompt did. */
export function* readHarmony(source: Source, output: Output, reasoningOpen: boolean): Reader<void> {
  let header = reasoningOpen ? "<|channel|>analysis" : yield* readHeader(source, output, "");
  for (;;) {
    if (header === undefined) output.pause();
    const marker: string =
      header === undefined
        ? yield* source.until(MARKERS, (text) => output.content(text))
        : yield* readBody(source, output, header);
    output.pause();
    if (marker === "") return;
    const isHeader = marker === "<|start|>" || marker === "<|channel|>";
    header = isHeader ? yield* readHeader(source, output, marker) : undefined;
  }
}

/** Return a header up to its `<|message|>`; undefined if it turns out to be content. */
function* readHeader(source: Source, output: Output, first: string): Reader<string | undefined> {
  source.keep(first);
  let header = first;
  while ([...header].length < MAX_HEADER) {
    header += yield* source.word(HEADER_CHARACTERS);
    const marker = yield* source.takeOne(HARMONY_CONTROLS);
    if (marker === "<|message|>") {
      source.kept();
      return header;
    }
    if (!IN_HEADER.includes(marker)) break;
    header += marker;
  }
  const text = source.kept();
  if (source.isCut && MARKERS.isIn(text)) return undefined; // half a header
  output.content(MARKERS.removedFrom(text));
  return undefined;
}

/** Read a message up to the marker that ends it, which is returned; nothing at the end. */
function* readBody(source: Source, output: Output, header: string): Reader<string> {
  const name = RECIPIENT.exec(header)?.[1];
  if (name !== undefined && output.tool(name) !== undefined) {
    source.keep();
    yield* source.skipSpace();
    if ((yield* source.peek()) === "{") {
      if (yield* streamArguments(source, output, name)) yield* source.skipSpace();
      const unread = trimStart(source.kept());
      if (!source.isCut) output.content(unread);
      return yield* source.until(MARKERS, (text) => output.content(text));
    }
    output.content(source.kept());
  }
  const isThought = header.includes("<|channel|>analysis");
  return yield* source.until(MARKERS, (text) => (isThought ? output.reasoning(text) : output.content(text)));
}
