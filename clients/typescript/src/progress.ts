/** Keep track of one generation's events, check that no token is lost or repeated, and collect them. */

import { Internal, StreamCorrupt } from "./errors.ts";
import type { Accepted, Choice, ChoiceFinished, Completion, Event, PromptLogprobs, Tokens } from "./types.ts";

/** How often a generation without tokens takes its request back from an earlier caller. */
const MAX_TAKEN_BACK = 3;

/** Everything received for one request, over all of its sessions, in order of arrival. */
export class Progress {
  /** The count that the last router reported; a resumption passes it on. */
  failedAttempts = 0;
  /** The session of the newest call. Its router may have moved it to a later one. */
  session = 0;
  numPromptLogprobs = 0;
  readonly #numChoices: number;
  /** Filled as choices arrive: a caller may ask for billions, which the fleet then refuses. */
  readonly #tokenIds = new Map<number, number[]>();
  readonly #finished = new Map<number, ChoiceFinished>();
  #accepted: Accepted | undefined;
  #takenBack = 0;

  constructor(numChoices: number) {
    this.#numChoices = numChoices;
  }

  /** Whether any event arrived. From then on the request is resumed, not sent again. */
  get started(): boolean {
    return this.#accepted !== undefined || this.hasTokens;
  }

  get hasTokens(): boolean {
    return this.received().length > 0;
  }

  /** Return the tokens of each choice that has any. */
  received(): { choice: number; tokenIds: number[] }[] {
    const all = [...this.#tokenIds].map(([choice, tokenIds]) => ({ choice, tokenIds }));
    return all.filter(({ tokenIds }) => tokenIds.length > 0);
  }

  /**
   * Number the next call, which repeats the first one if there were no events.
   *
   * Each Resume is a session of its own: another router may still be at work on the one before it.
   */
  nextSession(): void {
    if (this.started || this.session > 0) this.session += 1;
  }

  /**
   * Take the request back from an earlier caller, who resumed it in this session.
   *
   * Return false if it stays with the other one: this generation has had tokens, or the session is not known. What
   * the other one sent may come in several calls, and late, also after this one was accepted. Two that both begin must
   * not take the request from each other for ever.
   */
  takeBack(session: number): boolean {
    this.#takenBack += 1;
    const hasBegun = this.hasTokens || this.numPromptLogprobs > 0 || this.#finished.size > 0;
    if (hasBegun || session === 0 || this.#takenBack > MAX_TAKEN_BACK) return false;
    this.session = Math.max(this.session, session) + 1;
    return true;
  }

  /**
   * Record an event. Return false if a resumed session only repeats it.
   *
   * Throws `StreamCorrupt` for a lost or repeated token, `Internal` for events that contradict each other.
   */
  admit(event: Event): boolean {
    switch (event.type) {
      case "tokens":
        this.#addTokens(event);
        return true;
      case "promptLogprobs":
        this.#addPromptLogprobs(event);
        return true;
      case "accepted":
        return this.#accept(event);
      case "choiceFinished":
        return this.#finish(event);
      case "finished":
        if (event.error === "") this.#checkAllEnded();
        return true;
      case "queued":
        return true;
    }
  }

  #accept(accepted: Accepted): boolean {
    const first = this.#accepted;
    if (first === undefined) {
      this.#accepted = accepted;
      return true;
    }
    const [began, goesOn] = [first.fingerprint, accepted.fingerprint];
    if (began !== "" && goesOn !== "" && began !== goesOn) {
      throw new Internal(`the generation began with weights ${began} and would go on with ${goesOn}`);
    }
    return false;
  }

  /** Return true if a session would go on without deltas, at an older router. */
  lacksDeltas(accepted: Accepted): boolean {
    return this.#accepted?.hasDeltas === true && !accepted.hasDeltas;
  }

  #addTokens({ choice, firstIndex, tokenIds }: Tokens): void {
    const received = this.#tokensOf(choice);
    if (firstIndex !== received.length) throw new StreamCorrupt(choice, received.length, firstIndex);
    if (this.#finished.has(choice)) throw new Internal(`choice ${choice} went on after its end`);
    for (const tokenId of tokenIds) received.push(tokenId);
  }

  #addPromptLogprobs({ firstIndex, logprobs }: PromptLogprobs): void {
    const expected = 1 + this.numPromptLogprobs;
    if (firstIndex !== expected) {
      const at = `at token ${firstIndex}, expected ${expected}`;
      throw new Internal(`log-probabilities of the prompt went on ${at}`);
    }
    this.numPromptLogprobs += logprobs.length;
  }

  #finish(end: ChoiceFinished): boolean {
    const received = this.#tokensOf(end.choice).length;
    if (end.outputTokens !== received) throw new StreamCorrupt(end.choice, received, end.outputTokens);
    if (this.#finished.has(end.choice)) return false;
    this.#finished.set(end.choice, end);
    return true;
  }

  #checkAllEnded(): void {
    const choices = Array.from({ length: this.#numChoices }, (_, choice) => choice);
    const missing = choices.filter((choice) => !this.#finished.has(choice));
    if (missing.length > 0) throw new Internal(`the generation ended without an end of choices ${missing}`);
  }

  #tokensOf(choice: number): number[] {
    if (choice >= this.#numChoices) {
      throw new Internal(`choice ${choice} arrived, but ${this.#numChoices} were requested`);
    }
    const tokenIds = this.#tokenIds.get(choice) ?? [];
    this.#tokenIds.set(choice, tokenIds);
    return tokenIds;
  }
}

/** Return the whole generation that all of its events make. Throws `Internal` if the stream is incomplete. */
export function completionOf(events: readonly Event[], numChoices: number, resumes: number): Completion {
  const accepted = events.find((event) => event.type === "accepted");
  const finished = events.findLast((event) => event.type === "finished");
  if (accepted === undefined || finished === undefined) {
    throw new Internal("the stream ended without being accepted or finished");
  }
  const choices = Array.from({ length: numChoices }, (_, index) => choiceOf(events, index));
  const pieces = events.filter((event) => event.type === "promptLogprobs");
  return {
    requestId: accepted.requestId,
    seed: accepted.seed,
    text: choices[0]?.text ?? "",
    choices,
    finished,
    resumes,
    promptLogprobs: pieces.flatMap(({ logprobs }) => logprobs),
    toolFormat: accepted.toolFormat,
    reasoningFormat: accepted.reasoningFormat,
    reasoningOpen: accepted.reasoningOpen,
    hasDeltas: accepted.hasDeltas,
  };
}

function choiceOf(events: readonly Event[], index: number): Choice {
  const pieces = events.filter((event) => event.type === "tokens").filter(({ choice }) => choice === index);
  const ends = events.filter((event) => event.type === "choiceFinished");
  const end = ends.find(({ choice }) => choice === index);
  return {
    index,
    text: pieces.map(({ text }) => text).join(""),
    tokenIds: pieces.flatMap(({ tokenIds }) => tokenIds),
    finishReason: end?.reason ?? "failed",
    logprobs: pieces.flatMap(({ logprobs }) => logprobs),
    stopString: end?.stopString,
    stopTokenId: end?.stopTokenId,
    deltas: [...pieces, ...(end === undefined ? [] : [end])].flatMap(({ deltas }) => deltas),
  };
}
