// Small helpers of all views: elements, numbers, and bars of shares.

/** Return an element with properties, and children that are elements or texts. Nothing is parsed as HTML. */
export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Return a time in words; `null` and `undefined` are unknown. */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms >= 10_000) return `${(ms / 1000).toFixed(1)} s`;
  return ms < 10 ? `${ms.toFixed(1)} ms` : `${Math.round(ms)} ms`;
}

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function whole(number) {
  return WHOLE.format(number);
}

/** Return a bar whose parts are `[class, amount]`, described by `label` to those who do not see it. */
export function bar(label, parts) {
  const made = element("div", { className: "bar", role: "img" });
  setBar(made, label, parts);
  return made;
}

/** Change a bar in place. */
export function setBar(made, label, parts) {
  const total = parts.reduce((sum, [, amount]) => sum + amount, 0) || 1;
  made.setAttribute("aria-label", label);
  while (made.children.length < parts.length) made.append(element("i"));
  parts.forEach(([kind, amount], place) => {
    const part = made.children[place];
    part.className = kind;
    part.style.width = `${(100 * amount) / total}%`;
  });
}

/** Set a text, unless it is there already: screen readers hear changes only. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Return rows of a description list. */
export function rows(...pairs) {
  const list = element("dl");
  for (const [name, ...value] of pairs) list.append(element("dt", {}, name), element("dd", {}, ...value));
  return list;
}

export function sleep(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
}
