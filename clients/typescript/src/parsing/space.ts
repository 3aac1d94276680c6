/** Character classes as Python has them. JavaScript's `\s`, `\w` and `trim` take other characters. */

/** White space, for a character class. */
export const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
/** Letters, digits and the underscore of any script, for a character class of an expression with the flag u. */
export const WORD = "\\p{L}\\p{N}_";

const IS_SPACE = new RegExp(`[${SPACE}]`);

/** Return the text without the white space at its beginning. */
export function trimStart(text: string): string {
  let start = 0;
  while (start < text.length && IS_SPACE.test(text.charAt(start))) start += 1;
  return text.slice(start);
}

/** Return the text without the white space at its end. */
export function trimEnd(text: string): string {
  let end = text.length;
  while (end > 0 && IS_SPACE.test(text.charAt(end - 1))) end -= 1;
  return text.slice(0, end);
}
