// Calls of the gateway, with the key that the page was given. The key stays in this tab.

/** The model that the page is about, as its address says; empty where there is one. */
export const model = new URLSearchParams(location.search).get("model") ?? "";

const KEY = "baton.key";
let askForKey = () => {};

export function key() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function setKey(text) {
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
}

/** Have `ask` called, with the reason, when a call lacks a key that the fleet accepts. */
export function whenKeyIsNeeded(ask) {
  askForKey = ask;
}

/** An error that the gateway responded with. `retryAfterMs` is null if coming back does not help. */
export class Refusal extends Error {
  constructor(status, error, headers) {
    super(error.message ?? `the gateway responded with status ${status}`);
    this.status = status;
    this.code = error.code ?? "";
    this.attainable = error.attainable ?? null;
    const after = headers?.get("retry-after-ms") ?? error.retry_after_ms ?? null;
    this.retryAfterMs = after === null ? null : Number(after);
  }
}

/** Return the response of a call. Throws `Refusal`, and `TypeError` if the gateway cannot be reached. */
export async function call(path, { body, signal } = {}) {
  const headers = {};
  if (key()) headers.authorization = `Bearer ${key()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const response = await fetch(path, {
    method: body === undefined ? "GET" : "POST",
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
    cache: "no-store",
    credentials: "omit",
  });
  if (response.ok) return response;
  const content = await response.json().catch(() => ({}));
  const refusal = new Refusal(response.status, content.error ?? {}, response.headers);
  if (refusal.status === 401) askForKey(key() ? refusal.message : "");
  throw refusal;
}
