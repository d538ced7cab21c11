// The page: the figures and text of each part that has numbers for them, and whether it is light or dark.

function begin(payload) {
  const part = payload.parentElement, given = JSON.parse(payload.textContent);
  drawAll(part, given.buckets ? curvesOf(given) : specsOf(part, given));
}

function curvesOf(given) {  // of many sequences: losses and gains by position
  const {buckets, predictors} = given, words = given.kind === "words";
  const series = (what, chosen, of) => chosen.map(name => {
    const column = end => buckets.map(row => of(row[`${name}.${what}.${end}`]));
    return {name, colour: predictors.indexOf(name), xs: buckets.map(({from, to}) => (from + to) / 2),
      ys: column("mean"), low: column("low"), high: column("high")};
  });
  const common = {axis: "tokens read", banded: true, digits: 3, from: 0, to: buckets[buckets.length - 1].to,
    place: at => `${written(buckets[at].from, 0)} to ${written(buckets[at].to, 0)}`};
  return {
    loss: {...common, label: "Loss by position", unit: given.figure,
      series: series("bits_per_token", predictors, bits => words ? 2 ** bits : bits)},
    gain: {...common, label: "Gain by position", unit: "bits/token", signed: true, zero: true,
      series: series("gain", predictors.slice(1), bits => bits)},
  };
}

function specsOf(part, given) {
  const root = part.querySelector(".reader");
  const reader = root && given.text ? new Reader(root, given) : null;
  const open = reader ? token => reader.open(token) : null;
  const lines = Object.entries(given.cumulative);
  const unit = {words: "token", tokens: "byte"}[given.kind] ?? given.kind.slice(0, -1);
  const common = {open, axis: "tokens read", from: 0, to: given.tokens,
    place: (at, places) => `after ${written(places[at], 0)}`};
  const series = (name, of, skip = 0) => lines.map(([predictor, {tokens, ...columns}], k) =>
    ({name: predictor, colour: k, xs: tokens.slice(skip), ys: of(columns[name].slice(skip))}));
  const first = Math.floor(Math.max(...lines.map(([, {tokens}]) => tokens.length)) / 100);  // says little yet
  const words = given.kind === "words";
  return {
    mean: {...common, label: `${given.figure} so far`, unit: given.figure, digits: given.digits,
      series: series("mean", ys => words ? ys.map(bits => 2 ** bits) : ys, first)},
    bits: {...common, label: "Cumulative bits", unit: "bits", digits: 0, zero: true, series: saving(given, series("bits", ys => ys)),
      more: at => savedAt(given, at)},
    position: {...common, banded: true, label: "Gain by position", unit: "bits/token", digits: 3, signed: true, zero: true,
      place: at => `${written(given.positions[at].from, 0)} to ${written(given.positions[at].to, 0)}`,
      series: given.pair ? [{name: `${given.predictors[given.pair[1]]} over ${given.predictors[given.pair[0]]}`,
        colour: given.pair[1], xs: given.positions.map(({from, to}) => (from + to) / 2),
        ys: given.positions.map(({gain}) => gain),
        low: given.positions.map(({low}) => low), high: given.positions.map(({high}) => high)}] : []},
  };
}

function drawAll(part, specs) {
  for (const figure of part.querySelectorAll("figure[data-chart]")) {
    const spec = specs[figure.dataset.chart];
    if (spec.series.some(({ys}) => ys.length)) chart(figure, spec);
    else figure.remove();
  }
}

function saving({pair}, series) {  // what lies between two of the lines
  if (pair) {
    const [first, second] = pair.map(k => series[k]);
    second.low = second.ys;
    second.high = second.ys.map((bits, at) => second.xs[at] === first.xs[at] ? first.ys[at] : NaN);
  }
  return series;
}

function savedAt({pair, cumulative}, at) {
  if (!pair) return "";
  const [first, second] = pair.map(k => Object.values(cumulative)[k]);
  return at < second.bits.length && first.tokens[at] === second.tokens[at] ?
    `saved ${written(first.bits[at] - second.bits[at], 0)} bits` : "";
}

function chooseTheme() {
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const apply = () => {
    const now = chosen ?? (system.matches ? "dark" : "light");
    document.documentElement.style.colorScheme = now;
    button.textContent = now === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", `Show the page ${now === "dark" ? "light" : "dark"}`);
  };
  button.addEventListener("click", () => {
    chosen = (chosen ?? (system.matches ? "dark" : "light")) === "dark" ? "light" : "dark";
    apply();
  });
  system.addEventListener("change", apply);
  button.hidden = false;
  apply();
}

chooseTheme();
document.querySelectorAll("script.payload").forEach(begin);
document.querySelectorAll("article").forEach(article => article.dataset.ready = "");
