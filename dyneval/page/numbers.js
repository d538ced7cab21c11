// Numbers: what the page was given, and how it is written.

const NUMBERS = {f4: Float32Array, f8: Float64Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array};

function unpacked({type, data}) {
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let k = 0; k < text.length; k++) bytes[k] = text.charCodeAt(k);
  return new NUMBERS[type](bytes.buffer);
}

function written(value, digits, signed = false) {
  const text = Math.abs(value).toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});
  const zero = !/[1-9]/.test(text);
  return (value < 0 && !zero ? "−" : signed && !zero ? "+" : "") + text;
}

function chance(probability) {  // with three digits, whatever its size
  const percent = 100 * probability;
  if (percent >= 99.95 && percent < 100) return written(percent, 4) + "%";
  if (percent >= 0.01) return percent.toPrecision(3).replace(/^(\d{3})\.?$/, "$1") + "%";
  return percent.toExponential(2).replace("e-", " × 10⁻").replace(/⁻(\d+)$/, (_, digits) =>
    "⁻" + [...digits].map(digit => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("")) + "%";
}

function make(name, content = "", attributes = {}) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...[content].flat());
  return element;
}
