// What became of a request: the promise, what was delivered, where the time went, or why it was refused.

import { bar, duration, element, rows, whole } from "./parts.js";

const PHASES = [
  ["queue", "queue", "queue_ms"],
  ["prefill", "prefill", "prefill_ms"],
  ["handoff", "handoff", "handoff_ms"],
  ["decode", "decode", "decode_ms"],
  ["relay", "relay", "relay_ms"],
];

function limits(promise) {
  const stated = [["first token", promise.ttft_ms], ["further tokens", promise.tpot_ms], ["longest gap", promise.itl_ms]]
    .filter(([, ms]) => ms !== null && ms !== undefined)
    .map(([name, ms]) => `${name} ≤ ${duration(ms)}`);
  return stated.length ? stated.join(", ") : "no limit was asked for";
}

function kept(isPromised, isKept) {
  if (!isPromised) return null;
  return element("span", { className: isKept ? "right" : "wrong" }, isKept ? " ✓ kept" : " ✗ late");
}

/** Return the report of a stream's last chunk: `outcome` is its field `baton`, `usage` that of the stream. */
export function report(outcome, usage, firstMs) {
  const { promise, delivery, time_split: split } = outcome;
  const rate = delivery.tpot_ms ? 1000 / delivery.tpot_ms : null;
  const tokens = usage ? `${whole(usage.prompt_tokens)} read, ${whole(usage.completion_tokens)} written` : "–";
  const list = rows(
    ["Promised", limits(promise), promise.at_risk ? " (at risk: it could be late)" : ""],
    ["Predicted", `first token ${duration(promise.predicted_ttft_ms)}, further ${duration(promise.predicted_tpot_ms)}`],
    ["First token", duration(delivery.ttft_ms), kept(promise.ttft_ms !== null, delivery.ttft_kept),
      firstMs === null ? "" : ` (${duration(firstMs)} here)`],
    ["Further tokens", duration(delivery.tpot_ms), kept(promise.tpot_ms !== null, delivery.tpot_kept),
      rate ? ` = ${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s, longest gap ${duration(delivery.max_gap_ms)}` : ""],
    ["Tokens", tokens],
    ["Way", [outcome.path ?? "nothing was dispatched",
      outcome.attempts > 1 ? `${outcome.attempts} attempts` : "", outcome.resumes ? `resumed ${outcome.resumes} times` : ""]
      .filter(Boolean).join(", ")],
  );
  const parts = PHASES.filter(([, , field]) => split[field] > 0);
  const said = parts.map(([, name, field]) => `${name} ${duration(split[field])}`).join(", ");
  const legend = element("ul", { className: "legend" },
    ...parts.map(([kind, name, field]) =>
      element("li", {}, element("i", { className: `swatch ${kind}` }), ` ${name} ${duration(split[field])}`)));
  return element("div", { className: "outcome" }, list,
    bar(`Where ${duration(delivery.e2e_ms)} went: ${said}`, parts.map(([kind, , field]) => [kind, split[field]])), legend);
}

function sloInWords(slo) {
  const parts = [["first token within", slo.ttft_ms], ["further tokens within", slo.tpot_ms], ["gaps within", slo.itl_ms]]
    .filter(([, ms]) => ms)
    .map(([name, ms]) => `${name} ${duration(ms)}`);
  return parts.join(", ");
}

/**
 * Return what a refusal says, with a countdown to the time to come back.
 *
 * `onUse(slo)` takes the SLO that could be promised; `onAgain()` sends the request again.
 */
export function refusalReport(refusal, onUse, onAgain) {
  const report = element("div", {}, element("p", { className: "text" }, refusal.message));
  const buttons = element("div", { className: "row" });
  const words = refusal.attainable ? sloInWords(refusal.attainable) : "";
  if (words) {
    report.append(element("p", { className: "attainable" }, element("strong", {}, "Could be promised now: "), words));
    const use = element("button", { type: "button" }, "Ask for that");
    use.addEventListener("click", () => onUse(refusal.attainable));
    buttons.append(use);
  }
  if (refusal.retryAfterMs !== null) {
    const again = element("button", { type: "button", disabled: true }, "Try again");
    const countdown = element("span", { className: "countdown quiet" });
    again.addEventListener("click", onAgain);
    buttons.append(again, countdown);
    countDown(refusal.retryAfterMs, again, countdown);
  }
  report.append(buttons);
  return report;
}

function countDown(afterMs, button, text) {
  const due = performance.now() + afterMs;
  const show = () => {
    const leftMs = due - performance.now();
    if (leftMs > 0 && text.isConnected) {
      text.textContent = `in ${(leftMs / 1000).toFixed(1)} s`;
    } else {
      clearInterval(timer);
      button.disabled = false;
      text.textContent = "now";
    }
  };
  const timer = setInterval(show, 100);
  text.textContent = `in ${(afterMs / 1000).toFixed(1)} s`;
}
