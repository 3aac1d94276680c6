/** Read the messages of GenerateMany: rows of tokens in columns, and other events between them. */

import { create } from "@bufbuild/protobuf";
import {
  type GenerateManyResponse,
  type GenerationEvent,
  GenerationEventSchema,
  type TokenRows,
} from "../../gen/baton/v1/inference_pb.js";

/** An event of a generation, or the status that ends it in place of its `finished`. */
export type Heard =
  | { id: bigint; event: GenerationEvent; status?: undefined }
  | { id: bigint; status: Uint8Array };

/** A byte order mark is text as any other. */
const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/**
 * Yield a message's events with the ids of their generations, in order.
 *
 * Throws `RangeError` if the columns of its tokens do not fit each other, and `TypeError` for a text that is no UTF-8.
 */
export function* heardIn({ tokens, events }: GenerateManyResponse): Generator<Heard, void, undefined> {
  const numRows = tokens?.ids.length ?? 0;
  const rows = tokens === undefined ? [].values() : rowsIn(tokens);
  let taken = 0;
  for (const { id, afterRows, event } of events) {
    if (afterRows > numRows) throw new RangeError(`an event after row ${afterRows} of ${numRows}`);
    for (; taken < afterRows; taken += 1) {
      const { value } = rows.next();
      if (value !== undefined) yield value;
    }
    if (event.case === "status") yield { id, status: event.value };
    else if (event.case === "generation") yield { id, event: event.value };
  }
  yield* rows;
}

function* rowsIn(rows: TokenRows): Generator<Heard, void, undefined> {
  const { ids, choices, firstIndexes, numTokens, textLengths, numDeltas, tokenIds, textUtf8, deltas } = rows;
  const lengths = [choices, firstIndexes, numTokens, textLengths].map((column) => column.length);
  if (numDeltas.length > 0) lengths.push(numDeltas.length);
  if (lengths.some((length) => length !== ids.length)) {
    throw new RangeError(`${ids.length} rows, with columns of ${lengths}`);
  }
  let [tokenAt, textAt, deltaAt] = [0, 0, 0];
  for (const [row, id] of ids.entries()) {
    const tokenEnd = tokenAt + (numTokens[row] as number);
    const textEnd = textAt + (textLengths[row] as number);
    const deltaEnd = deltaAt + (numDeltas[row] ?? 0);
    const tokens = {
      choice: choices[row] as number,
      firstIndex: firstIndexes[row] as number,
      tokenIds: tokenIds.slice(tokenAt, tokenEnd),
      text: UTF8.decode(textUtf8.subarray(textAt, textEnd)),
      deltas: deltas.slice(deltaAt, deltaEnd),
    };
    yield { id, event: create(GenerationEventSchema, { event: { case: "tokens", value: tokens } }) };
    [tokenAt, textAt, deltaAt] = [tokenEnd, textEnd, deltaEnd];
  }
  if (tokenAt !== tokenIds.length || textAt !== textUtf8.length || deltaAt !== deltas.length) {
    throw new RangeError(
      `${tokenIds.length} tokens and ${textUtf8.length} bytes, with ${deltas.length} deltas; ` +
        `${tokenAt}, ${textAt} and ${deltaAt} have rows`,
    );
  }
}
