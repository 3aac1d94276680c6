/** Convert a failed call, with its google.rpc details, to an error of the SDK. */

import { fromBinary } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { SloRefusalSchema } from "../../gen/baton/v1/errors_pb.js";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "../../gen/google/rpc/error_details_pb.js";
import { StatusSchema } from "../../gen/google/rpc/status_pb.js";
import {
  BatonError,
  Conflict,
  DeadlineExceeded,
  Internal,
  InvalidRequest,
  NotAllowed,
  NotFound,
  QueueFull,
  Refused,
  Superseded,
  TooLarge,
  Unavailable,
  Unsupported,
} from "../errors.ts";
import { attainableOf } from "./events.ts";

const DOMAIN = "baton.v1";
/** The stream ends but the generation does not: it is resumed like after a break. */
const TOO_SLOW = "READER_TOO_SLOW";
/** Calls that wrap a request in their own message, which the caller of the SDK never sees. */
const WITHIN = /^request\./;

const PLAIN = new Map<Code, new (message: string) => BatonError>([
  [Code.Unauthenticated, NotAllowed],
  [Code.PermissionDenied, NotAllowed],
  [Code.NotFound, NotFound],
  [Code.AlreadyExists, Conflict],
  [Code.Aborted, Superseded],
  [Code.DeadlineExceeded, DeadlineExceeded],
  [Code.Unimplemented, Unsupported],
]);
const CALLERS_FAULT = [Code.InvalidArgument, Code.OutOfRange, Code.FailedPrecondition];
/** A router that stops ends its calls as cancelled, although nobody here cancelled them. */
const OUT_OF_REACH = [Code.Unavailable, Code.Canceled];
/** The call crashed in the router or in its gRPC library, for example for lack of memory. */
const CRASHED = [Code.Internal, Code.Unknown];

/** The router failed unexpectedly. A repeated call, at this router or another one, may succeed. */
export class CallCrashed extends Internal {}

/** Return the error to throw for a failed call to the router at `address`. */
export function errorOf(thrown: unknown, address: string): unknown {
  if (thrown instanceof BatonError) return thrown;
  if (!(thrown instanceof ConnectError)) return thrown;
  // What has no status was not said by a router: the connection broke, or something else is at the other end.
  const isFromRouter = thrown.metadata.has("grpc-status") || thrown.metadata.has("grpc-status-details-bin");
  if (!isFromRouter && thrown.code !== Code.DeadlineExceeded) {
    return new Unavailable(`no router could be reached: ${thrown.rawMessage}`, address, { cause: thrown });
  }
  return saidBy(thrown, address);
}

/** Return the error to throw where the router at `address` sent a serialised google.rpc.Status inside a message. */
export function errorOfStatus(status: Uint8Array, address: string): BatonError {
  const { code, message, details } = fromBinary(StatusSchema, status);
  const error = new ConnectError(message, code in Code ? code : Code.Unknown);
  error.details = details.map(({ typeUrl, value }) => ({
    type: typeUrl.slice(typeUrl.lastIndexOf("/") + 1),
    value,
  }));
  return saidBy(error, address);
}

function saidBy(status: ConnectError, address: string): BatonError {
  const [info] = status.findDetails(ErrorInfoSchema);
  const reason = info?.domain === DOMAIN ? info.reason : "";
  const found = statusOf(status, reason, address);
  found.reason = reason;
  if (found instanceof Superseded) found.session = Number(info?.metadata.session ?? 0);
  return found;
}

function statusOf(status: ConnectError, reason: string, address: string): BatonError {
  const message = status.rawMessage || Code[status.code];
  if (reason === TOO_SLOW || OUT_OF_REACH.includes(status.code)) return new Unavailable(message, address);
  if (CALLERS_FAULT.includes(status.code)) return invalid(status, message);
  if (status.code === Code.ResourceExhausted) return exhausted(status, message);
  const Plain = PLAIN.get(status.code);
  if (Plain !== undefined) return new Plain(message);
  return new (CRASHED.includes(status.code) ? CallCrashed : Internal)(`${Code[status.code]}: ${message}`);
}

function invalid(status: ConnectError, message: string): InvalidRequest {
  const violations = status.findDetails(BadRequestSchema).flatMap((bad) => bad.fieldViolations);
  return new InvalidRequest(
    message.replace(WITHIN, ""),
    violations.map(({ field, description }) => ({
      field: field.replace(WITHIN, ""),
      description: description.replace(WITHIN, ""),
    })),
  );
}

function exhausted(status: ConnectError, message: string): BatonError {
  const [retry] = status.findDetails(RetryInfoSchema);
  const [refusal] = status.findDetails(SloRefusalSchema);
  if (retry === undefined && refusal === undefined) {
    return new TooLarge(message); // the gRPC library itself refuses a message over its limit, without details
  }
  const { seconds = 0n, nanos = 0 } = retry?.retryDelay ?? {};
  const retryAfterS = Number(seconds) + nanos / 1e9;
  if (refusal === undefined) return new QueueFull(message, retryAfterS);
  return new Refused(message, retryAfterS, attainableOf(refusal));
}
