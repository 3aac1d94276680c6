/** Conversion of numbers as Python writes them to JSON. They stay text: none is rounded to a JavaScript number. */

const JSON_NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?$/;
const PYTHON_INTEGER = /^([-+]?)(\d+(?:_\d+)*)$/;
// Each part begins with a character that ends the part before, so no number is matched in more than one way.
const PYTHON_FLOAT = /^[-+]?(?:\d+(?:_\d+)*(?:\.(?:\d+(?:_\d+)*)?)?|\.\d+(?:_\d+)*)(?:[eE][-+]?\d+)?$/;
/** Python converts no integers with more digits. */
const MAX_DIGITS = 4300;
/** Python writes a float with an exponent from this one on, and below the other one. */
const [EXPONENT_FROM, EXPONENT_BELOW] = [16, -4];

/** Return a number as JSON; nothing if it is not one. */
export function numberAsJson(word: string): string {
  if (JSON_NUMBER.test(word)) return word;
  const [, sign, digits] = PYTHON_INTEGER.exec(word) ?? [];
  if (digits !== undefined) return integerAsJson(sign ?? "", digits.replaceAll("_", ""));
  return PYTHON_FLOAT.test(word) ? floatAsJson(Number(word.replaceAll("_", ""))) : "";
}

function integerAsJson(sign: string, digits: string): string {
  if (digits.length > MAX_DIGITS) return "";
  const significant = digits.replace(/^0+/, "");
  if (significant === "") return "0";
  return sign === "-" ? `-${significant}` : significant;
}

/** Return a float as Python's `repr` writes it; nothing if it is infinite. */
function floatAsJson(value: number): string {
  if (!Number.isFinite(value)) return "";
  const [mantissa = "", power = ""] = Math.abs(value).toExponential().split("e");
  const sign = value < 0 || Object.is(value, -0) ? "-" : "";
  const [digits, exponent] = [mantissa.replace(".", ""), Number(power)];
  if (exponent >= EXPONENT_FROM || exponent < EXPONENT_BELOW) {
    const size = String(Math.abs(exponent)).padStart(2, "0");
    return `${sign}${mantissa}e${exponent < 0 ? "-" : "+"}${size}`;
  }
  if (exponent < 0) return `${sign}0.${"0".repeat(-exponent - 1)}${digits}`;
  const whole = digits.slice(0, exponent + 1).padEnd(exponent + 1, "0");
  return `${sign}${whole}.${digits.slice(exponent + 1) || "0"}`;
}
