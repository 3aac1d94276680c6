// The settings of a request: what the page checks itself, and the body that it sends.

import { model } from "./api.js";

const byId = (id) => document.getElementById(id);

const LEAST_MS = { ttft: 20, tpot: 2 };
const MOST_MS = { ttft: 20_000, tpot: 1000 };

/** Return the limit that a slider stands for, in milliseconds; null at its left end. The scale is logarithmic. */
function limitMs(name) {
  const place = Number(byId(name).value);
  if (place === 0) return null;
  const ms = LEAST_MS[name] * (MOST_MS[name] / LEAST_MS[name]) ** ((place - 1) / 99);
  const step = 10 ** Math.max(0, Math.floor(Math.log10(ms)) - 1);
  return Math.round(ms / step) * step;
}

/** Move a slider to the least limit that is not below `ms`. */
function setLimit(name, ms) {
  const slider = byId(name);
  slider.value = 1;
  while (Number(slider.value) < 100 && limitMs(name) < ms) slider.value = Number(slider.value) + 1;
  slider.dispatchEvent(new Event("input"));
}

/** Take over an SLO that could be promised. */
export function useSlo(slo) {
  if (slo.ttft_ms) setLimit("ttft", slo.ttft_ms);
  if (slo.tpot_ms) setLimit("tpot", slo.tpot_ms);
}

function inWords(ms) {
  if (ms === null) return "no limit";
  return ms >= 1000 ? `within ${ms / 1000} s` : `within ${ms} ms`;
}

function toolsIn(text) {
  const tools = JSON.parse(text);
  if (!Array.isArray(tools) || tools.length === 0) throw new Error("tools are a list, such as [{…}]");
  tools.forEach((tool, place) => {
    const name = tool?.function?.name;
    if (tool?.type !== "function" || typeof name !== "string" || !name) {
      throw new Error(`tool ${place + 1} lacks "type": "function", or a function with a name`);
    }
  });
  return tools;
}

function schemaIn(text) {
  const schema = JSON.parse(text);
  if (schema === null || typeof schema !== "object" || Array.isArray(schema)) {
    throw new Error('a schema is an object, such as {"type": "object"}');
  }
  return schema;
}

/** Return what a box of JSON contains, null if it is empty or wrong, and say beside it what is wrong. */
function checked(id, read) {
  const box = byId(id);
  let value = null;
  let problem = "";
  if (box.value.trim()) {
    try {
      value = read(box.value);
    } catch (error) {
      problem = error.message;
    }
  }
  box.setAttribute("aria-invalid", String(Boolean(problem)));
  byId(`${id}-problem`).textContent = problem;
  return { value, problem };
}

function numberIn(id) {
  const box = byId(id);
  return box.value === "" ? undefined : box.valueAsNumber;
}

/** Show what sliders stand for, and what is wrong in boxes, as they change. */
export function watchSettings() {
  for (const name of ["ttft", "tpot"]) {
    const show = () => {
      const words = inWords(limitMs(name));
      byId(`${name}-shown`).textContent = words;
      byId(name).setAttribute("aria-valuetext", words);
    };
    byId(name).addEventListener("input", show);
    show();
  }
  byId("tools").addEventListener("input", () => checked("tools", toolsIn));
  byId("schema").addEventListener("input", () => checked("schema", schemaIn));
  byId("settings").addEventListener("submit", (event) => event.preventDefault());
}

/** Return the body for these messages; null if a setting is wrong, which is shown beside it. */
export function bodyFor(messages) {
  const tools = checked("tools", toolsIn);
  const schema = checked("schema", schemaIn);
  const wrong = [["tools", tools], ["schema", schema]].find(([, box]) => box.problem);
  if (wrong) {
    byId(wrong[0]).closest("details").open = true;
    byId(wrong[0]).focus();
    return null;
  }
  if (!byId("settings").reportValidity()) return null;
  const system = byId("system").value.trim();
  const slo = { slo_class: byId("class").value, allow_at_risk: byId("at-risk").checked };
  if (limitMs("ttft") !== null) slo.ttft_ms = limitMs("ttft");
  if (limitMs("tpot") !== null) slo.tpot_ms = limitMs("tpot");
  const body = {
    model,
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    stream: true,
    stream_options: { include_usage: true },
    temperature: numberIn("temperature"),
    top_p: numberIn("top-p"),
    max_tokens: numberIn("max-tokens"),
    slo,
  };
  if (tools.value) body.tools = tools.value;
  if (schema.value) {
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: schema.value } };
  }
  return body;
}
