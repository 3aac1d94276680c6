// The playground: a conversation, streamed.

import { call, Refusal } from "./api.js";
import { events } from "./events.js";
import { refusalReport, report } from "./outcome.js";
import { element } from "./parts.js";
import { bodyFor, useSlo, watchSettings } from "./request.js";

const MOST_SHOWN = 200; // messages; the oldest are dropped from the page, and from what is sent

const byId = (id) => document.getElementById(id);

class Playground {
  constructor() {
    this.messages = [];
    this.abort = null;
    watchSettings();
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.ask();
      }
    });
    byId("playground").addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.stop();
    });
    byId("stop").addEventListener("click", () => this.stop());
    byId("clear").addEventListener("click", () => this.clear());
  }

  stop() {
    this.abort?.abort();
  }

  clear() {
    this.stop();
    this.messages = [];
    for (const shown of byId("log").querySelectorAll(".message")) shown.remove();
    byId("empty").hidden = false;
    byId("prompt").focus();
  }

  ask() {
    const text = byId("prompt").value.trim();
    if (!text || this.abort) return;
    const asked = { role: "user", content: text };
    const body = bodyFor([...this.messages, asked]);
    if (body === null) return;
    byId("prompt").value = "";
    byId("empty").hidden = true;
    this.show("user", "You", element("div", { className: "text" }, text));
    this.answer(body);
  }

  show(kind, who, ...parts) {
    const message = element("article", { className: `message ${kind}` },
      element("p", { className: "who" }, who), ...parts);
    byId("log").append(message);
    const all = byId("log").querySelectorAll(".message");
    if (all.length > MOST_SHOWN) all[0].remove();
    if (this.messages.length > MOST_SHOWN) this.messages.splice(0, 2);
    toEnd(message);
    return message;
  }

  /** Send a request, and show its answer, what became of it, or why it was refused. */
  async answer(body) {
    const conversation = this.messages;
    const abort = (this.abort = new AbortController());
    byId("send").disabled = true;
    byId("stop").disabled = false;
    byId("doing").textContent = "Sent";
    const answer = new Answer();
    const message = this.show("assistant", "Answer", answer.node);
    const sentAt = performance.now();
    let ended = "Stopped";
    try {
      const response = await call("v1/chat/completions", { body, signal: abort.signal });
      byId("doing").textContent = "The answer comes";
      await answer.read(response, message, sentAt);
      ended = answer.ending;
    } catch (error) {
      if (!abort.signal.aborted) {
        ended = error instanceof Refusal ? "Refused" : "Failed";
        this.refuse(message, error, body);
      }
    }
    if (abort.signal.aborted) answer.node.append(element("p", { className: "quiet" }, "Stopped."));
    const said = answer.message();
    // A question without an answer is left out: templates want both in turn.
    if (said && conversation === this.messages) this.messages.push(body.messages.at(-1), said);
    this.abort = null;
    byId("send").disabled = false;
    byId("stop").disabled = true;
    byId("doing").textContent = ended;
  }

  refuse(message, error, body) {
    if (!(error instanceof Refusal)) {
      const why = error instanceof TypeError ? "The gateway cannot be reached." : error.message;
      message.append(element("p", { className: "wrong" }, why));
      return;
    }
    message.className = "message refused";
    message.querySelector(".who").textContent = error.status ? `Refused (${error.status} ${error.code})` : "Ended by an error";
    const again = () => {
      if (this.abort) return;
      message.remove();
      this.answer(body);
    };
    const use = (slo) => {
      useSlo(slo);
      if (slo.ttft_ms) body.slo.ttft_ms = slo.ttft_ms;
      if (slo.tpot_ms) body.slo.tpot_ms = slo.tpot_ms;
      again();
    };
    message.append(refusalReport(error, use, again));
    toEnd(message);
  }
}

/** One answer, as its stream comes. */
class Answer {
  constructor() {
    this.text = document.createTextNode("");
    this.reasoning = null;
    this.calls = [];
    this.ending = "Complete";
    this.finish = null;
    this.node = element("div", {}, element("div", { className: "text" }, this.text));
  }

  async read(response, message, sentAt) {
    let firstMs = null;
    let usage = null;
    let outcome = null;
    for await (const { data } of events(response)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Refusal(0, chunk.error, null);
      if (chunk.usage) usage = chunk.usage;
      if (chunk.baton) outcome = chunk.baton;
      const [choice] = chunk.choices;
      if (!choice) continue;
      if (firstMs === null && hasContent(choice.delta)) firstMs = performance.now() - sentAt;
      if (choice.delta) {
        const follows = isInSight(message);
        this.add(choice.delta);
        if (follows) toEnd(message);
      }
      if (choice.finish_reason) this.finish = choice.finish_reason;
    }
    if (outcome === null) throw new Error("The stream ended before the answer did. Send it again.");
    if (this.finish === "length") this.ending = "Ended by the limit of tokens";
    const follows = isInSight(message);
    message.append(report(outcome, usage, firstMs));
    if (follows) toEnd(message);
  }

  add(delta) {
    if (delta.reasoning_content) {
      if (this.reasoning === null) {
        this.reasoning = document.createTextNode("");
        this.node.prepend(element("details", { open: true }, element("summary", {}, "Reasoning"),
          element("div", { className: "reasoning text" }, this.reasoning)));
      }
      this.reasoning.appendData(delta.reasoning_content);
    }
    if (delta.content) this.text.appendData(delta.content);
    for (const part of delta.tool_calls ?? []) {
      let called = this.calls[part.index];
      if (!called) {
        called = this.calls[part.index] = { id: part.id, name: "", text: document.createTextNode("") };
        this.node.append(element("div", { className: "call" }, called.text));
      }
      if (part.function?.name) {
        called.name = part.function.name;
        called.text.appendData(`→ ${called.name} `);
        called.begin = called.text.length;
      }
      if (part.function?.arguments) called.text.appendData(part.function.arguments);
    }
  }

  /** Return the message for the conversation; null if nothing was said. */
  message() {
    const calls = this.calls.filter(Boolean).map((called) => ({
      id: called.id,
      type: "function",
      function: { name: called.name, arguments: called.text.data.slice(called.begin ?? 0) },
    }));
    if (!this.text.data && !calls.length) return null;
    const message = { role: "assistant", content: this.text.data };
    if (calls.length) message.tool_calls = calls;
    return message;
  }
}

/** Return whether the end of a message is in sight, or nearly, so that it is to stay there. */
function isInSight(message) {
  return message.getBoundingClientRect().bottom < window.innerHeight + 40;
}

function toEnd(message) {
  message.scrollIntoView({ block: "end" });
}

function hasContent(delta) {
  return Boolean(delta?.content || delta?.reasoning_content || delta?.tool_calls);
}

export function startPlayground() {
  return new Playground();
}
