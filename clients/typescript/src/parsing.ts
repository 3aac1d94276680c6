/** The events of a stream, and whole completions, by what they say: content, reasoning and tool calls. */

import { type AssistantMessage, type Delta, saidByAssistant } from "./deltas.ts";
import { Unsupported } from "./errors.ts";
import type {
  Accepted,
  Choice,
  ChoiceFinished,
  Completion,
  Event,
  Finished,
  PromptLogprobs,
  Queued,
  Tokens,
} from "./types.ts";

/** More content, reasoning or tool calls of one choice. */
export interface ChoiceDelta {
  type: "choiceDelta";
  choice: number;
  delta: Delta;
}

/** An event of a stream, with deltas in place of tokens. */
export type ParsedEvent = Accepted | Queued | PromptLogprobs | ChoiceDelta | ChoiceFinished | Finished;

type Reading = Pick<Accepted, "hasDeltas" | "toolFormat" | "reasoningFormat">;

/**
 * Return a choice, the first one by default, as the assistant's message of the next request.
 *
 * Throws `RangeError` for a choice that there is not, and `Unsupported` if the router does not read what it says.
 */
export function messageOf(completion: Completion, choice = 0): AssistantMessage {
  const found = completion.choices[choice];
  if (found === undefined) {
    throw new RangeError(`choice is ${choice}: accepted: 0 to ${completion.choices.length - 1}`);
  }
  return saidByAssistant(deltasOf(found, completion));
}

/** Replaces the tokens of a stream's events by what they say. */
export class EventParser {
  #accepted: Accepted | undefined;

  /** Return what one event says. Throws `Unsupported` if the router does not read it. */
  feed(event: Event): ParsedEvent[] {
    switch (event.type) {
      case "tokens":
        if (this.#accepted === undefined) throw new Error("a stream begins with accepted");
        return choiceDeltas(event.choice, deltasOf(event, this.#accepted));
      case "choiceFinished":
        return [...choiceDeltas(event.choice, event.deltas), event];
      case "accepted":
        checkReads(event);
        this.#accepted = event;
    }
    return [event];
  }
}

/** Return what tokens, or a whole choice, say. */
function deltasOf({ text, deltas }: Tokens | Choice, accepted: Reading): readonly Delta[] {
  if (accepted.hasDeltas) return deltas;
  checkReads(accepted);
  return text === "" ? [] : [{ type: "contentDelta", text }];
}

/** Throw `Unsupported` if texts write calls or reasoning, and the router does not read them. */
function checkReads({ hasDeltas, toolFormat, reasoningFormat }: Reading): void {
  if (!hasDeltas && (toolFormat !== "" || reasoningFormat !== "")) {
    throw new Unsupported("the router is older than this client: it does not read tool calls and reasoning");
  }
}

function choiceDeltas(choice: number, deltas: readonly Delta[]): ChoiceDelta[] {
  return deltas.map((delta) => ({ type: "choiceDelta", choice, delta }));
}
