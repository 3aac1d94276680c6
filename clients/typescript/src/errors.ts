/**
 * The errors of the SDK.
 *
 *     BatonError
 *     ├── InvalidRequest(field, description, violations)   something in the request is wrong
 *     │   └── TooLarge                                     the message exceeds the router's limit
 *     ├── NotFound                                         no such model
 *     ├── Conflict                                         the requestId is in use with other content
 *     │   └── Superseded                                   a later call has taken over the request
 *     ├── Overloaded(retryAfterS)                          not now; nothing was done
 *     │   ├── Refused(attainable)                          the SLO cannot be met
 *     │   └── QueueFull                                    too many requests wait
 *     ├── NotAllowed                                       the credential is missing, invalid or not sufficient
 *     ├── DeadlineExceeded                                 the fleet was too late
 *     │   └── TimedOut(phase, waitedS)                     this client's own `Timeout` ran out
 *     ├── Unavailable(address)                             no router is reachable, or none serves
 *     ├── Unsupported                                      the router does not know this call
 *     ├── GenerationFailed(completion)                     it ended early; what arrived is in `completion`
 *     ├── StreamCorrupt(choice, expectedIndex, index)      a token was lost or repeated: a bug of the fleet
 *     └── Internal                                         a bug of the fleet
 *
 * A stream that breaks throws nothing, but is resumed. `Unavailable` is thrown if that was impossible for
 * `Timeout.connectS`. An aborted `AbortSignal` throws its own reason.
 */

import type { Attainable, Completion, Timeout } from "./types.ts";

/** Base of the SDK's errors. */
export class BatonError extends Error {
  /** The name of a value of `ErrorReason` in the contract; empty for errors that come from no router. */
  reason = "";

  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** One wrong field by its path in the contract (`sampling.top_p`), and what would be accepted. */
export interface FieldViolation {
  field: string;
  description: string;
}

/** The request is wrong. `violations` lists all wrong fields; `field` and `description` are the first. */
export class InvalidRequest extends BatonError {
  readonly field: string;
  readonly description: string;
  readonly violations: readonly FieldViolation[];

  constructor(message: string, violations: readonly FieldViolation[] = []) {
    super(message);
    this.violations = violations;
    this.field = violations[0]?.field ?? "";
    this.description = violations[0]?.description ?? message;
  }
}

/** The message exceeds the router's limit. */
export class TooLarge extends InvalidRequest {}

/** There is no such model. */
export class NotFound extends BatonError {}

/** The requestId is in use for a request with other content. */
export class Conflict extends BatonError {}

/** A later call has taken over this request and receives its events. A new call would take it back. */
export class Superseded extends Conflict {
  /** The number of the later call's session; 0 if it is not known. */
  session = 0;
}

/** The fleet requires a credential, another one, or one that allows more. */
export class NotAllowed extends BatonError {}

/** Nothing was done; come back in `retryAfterS` seconds. */
export class Overloaded extends BatonError {
  readonly retryAfterS: number;

  constructor(message: string, retryAfterS: number) {
    super(message);
    this.retryAfterS = retryAfterS;
  }
}

/** The SLO cannot be met now; the attainable one could have been. */
export class Refused extends Overloaded {
  readonly attainable: Attainable;

  constructor(message: string, retryAfterS: number, attainable: Attainable) {
    super(message, retryAfterS);
    this.attainable = attainable;
  }
}

/** Too many requests wait, the router is overloaded, or the tenant is over its budget: see `reason`. */
export class QueueFull extends Overloaded {}

/** The fleet was too late. */
export class DeadlineExceeded extends BatonError {}

/** `phase` is the field of `Timeout` that ran out. */
export class TimedOut extends DeadlineExceeded {
  readonly phase: keyof Timeout;
  readonly waitedS: number;

  constructor(phase: keyof Timeout, waitedS: number) {
    super(`${phase}: nothing arrived within ${waitedS} s`);
    this.phase = phase;
    this.waitedS = waitedS;
  }
}

/** No router is reachable, or none serves. */
export class Unavailable extends BatonError {
  readonly address: string;

  constructor(message: string, address: string, options?: ErrorOptions) {
    super(`${address}: ${message}`, options);
    this.address = address;
  }
}

/** The router does not know this call. */
export class Unsupported extends BatonError {}

/** The generation ended early; `completion` has what had arrived by then. */
export class GenerationFailed extends BatonError {
  readonly completion: Completion;

  constructor(completion: Completion) {
    super(completion.finished.error || "a choice ended early");
    this.completion = completion;
  }
}

/** A token was lost or repeated. */
export class StreamCorrupt extends BatonError {
  readonly choice: number;
  readonly expectedIndex: number;
  readonly index: number;

  constructor(choice: number, expectedIndex: number, index: number) {
    const fault = index > expectedIndex ? "was lost" : "came twice";
    super(`choice ${choice}: a token ${fault}: expected index ${expectedIndex}, got ${index}`);
    this.choice = choice;
    this.expectedIndex = expectedIndex;
    this.index = index;
  }
}

/** A bug of the fleet. */
export class Internal extends BatonError {}
