// Charts: lines with bands, drawn for the width there is. A chart is read like a slider: its
// handle is a place in the text, and the values there are its text.

const SVG = "http://www.w3.org/2000/svg";

function draw(name, attributes, parent, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

function ticks(low, high, most) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(each => each * power >= rough);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return {step, values: found};
}

function decimals(step) {
  return Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
}

function short(value, step) {
  if (Math.abs(value) < step / 1e6) return "0";
  if (step >= 1000) return written(value / 1000, decimals(step / 1000)) + "k";
  return written(value, decimals(step));
}

// spec: {label, unit, digits, signed, series: [{name, colour, xs, ys, low, high, band}], zero, open}
function chart(figure, spec) {
  const plot = figure.querySelector(".plot");
  const legend = make("ul", spec.series.map(({name, colour}) =>
    make("li", [make("i", "", {class: `swatch c${colour}`}), name])), {class: "legend"});
  const slider = make("div", "", {
    role: "slider", tabindex: 0, class: "slider", "aria-label": spec.label,
    "aria-orientation": "horizontal"});
  const output = make("p", "", {class: "readout"});
  plot.replaceChildren(legend, slider, output, numbersOf(spec));
  const places = spec.series.reduce((all, {xs}) => xs.length > all.length ? xs : all, []);
  slider.setAttribute("aria-valuemin", places[0] ?? 0);
  slider.setAttribute("aria-valuemax", places[places.length - 1] ?? 0);
  let at = places.length - 1, width = 0, move = () => {};

  function show(place) {
    at = Math.max(0, Math.min(places.length - 1, place));
    if (at < 0) return;
    const values = spec.series.filter(({ys}) => at < ys.length).map(one => told(one, at, spec));
    if (spec.more?.(at)) values.push(spec.more(at));
    const text = `${spec.place(at, places)}: ${values.join(" · ")}`;
    output.textContent = text;
    slider.setAttribute("aria-valuenow", places[at]);
    slider.setAttribute("aria-valuetext", text);
    move(at);
  }

  slider.addEventListener("keydown", event => {
    const page = Math.max(1, Math.round(places.length / 10));
    const steps = {ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -page,
      PageUp: page, Home: -places.length, End: places.length};
    if (event.key in steps) show(at + steps[event.key]);
    else if (event.key === "Enter" && spec.open) spec.open(places[at]);
    else return;
    event.preventDefault();
  });
  slider.addEventListener("pointermove", event => show(nearest(event)));
  slider.addEventListener("pointerleave", () => show(places.length - 1));
  slider.addEventListener("click", event => spec.open?.(places[nearest(event)]));

  function nearest(event) {
    const x = slider.toValue(event.clientX - slider.getBoundingClientRect().left);
    let low = 0, high = places.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (places[middle] < x) low = middle + 1; else high = middle;
    }
    return low && x - places[low - 1] < places[low] - x ? low - 1 : low;
  }

  new ResizeObserver(() => {
    if (slider.clientWidth === width || !slider.clientWidth) return;
    width = slider.clientWidth;
    move = render(slider, spec, width, places);
    show(at);
  }).observe(slider);
}

function told({name, ys, low, high}, at, spec) {
  const unit = spec.unit ? " " + spec.unit : "";
  const band = low && spec.banded && low[at] !== null ?
    ` [${written(low[at], spec.digits)}, ${written(high[at], spec.digits)}]` : "";
  return `${name} ${written(ys[at], spec.digits, spec.signed)}${band}${unit}`;
}

function numbersOf(spec) {  // for those who would rather read a table
  const details = make("details", make("summary", "As a table"));
  details.addEventListener("toggle", () => {
    if (details.children.length > 1) return;
    const longest = spec.series.reduce((all, {xs}) => xs.length > all.length ? xs : all, []);
    const every = Math.max(1, Math.ceil(longest.length / 40));
    const rows = [];
    for (let k = longest.length - 1; k >= 0; k -= every) {
      rows.unshift(make("tr", [make("th", spec.place(k, longest), {scope: "row"}),
        ...spec.series.map(one => make("td", k < one.ys.length ? told({...one, name: ""}, k, spec).trim() : ""))]));
    }
    const heads = make("tr", ["", ...spec.series.map(({name}) => name)].map(head => make("th", head, {scope: "col"})));
    const table = make("table", [make("thead", heads), make("tbody", rows)]);
    details.append(make("div", table, {class: "wide", tabindex: 0, role: "region", "aria-label": spec.label}));
  });
  return details;
}

function render(slider, spec, width, places) {
  const height = Math.round(Math.max(190, Math.min(280, width * 0.5)));
  const box = {left: 46, right: width - 12, top: 10, bottom: height - 40};
  const all = spec.series.flatMap(({ys, low, high}) => [...ys, ...(low ?? []), ...(high ?? [])])
    .filter(Number.isFinite);
  if (spec.zero) all.push(0);
  let bottom = Math.min(...all), top = Math.max(...all);
  if (!all.length) [bottom, top] = [0, 1];
  const flat = top - bottom <= 1e-9 * Math.max(Math.abs(top), Math.abs(bottom));  // but for rounding
  const air = flat ? Math.abs(top) * 0.05 || 1 : (top - bottom) * 0.05;
  top += air;
  if (!spec.zero || bottom < 0) bottom -= air;
  const left = Math.min(places[0] ?? 0, spec.from ?? Infinity), right = Math.max(spec.to ?? 0, places[places.length - 1] ?? 1);
  const toX = value => right > left ? box.left + (value - left) / (right - left) * (box.right - box.left) : (box.left + box.right) / 2;
  const toY = value => box.bottom - (Math.max(bottom, Math.min(top, value)) - bottom) / (top - bottom) * (box.bottom - box.top);
  slider.toValue = x => left + (x - box.left) / (box.right - box.left) * (right - left);
  slider.replaceChildren();
  const svg = draw("svg", {width, height, "aria-hidden": "true"}, slider);
  const vertical = ticks(bottom, top, 5);
  for (const value of vertical.values) {
    const y = toY(value);
    draw("line", {x1: box.left, x2: box.right, y1: y, y2: y, class: Math.abs(value) < 1e-12 ? "zero" : "grid"}, svg);
    draw("text", {x: box.left - 7, y: y + 4, "text-anchor": "end"}, svg, short(value, vertical.step));
  }
  const horizontal = ticks(left, right, Math.max(2, Math.floor(width / 110)));
  for (const value of horizontal.values) {
    draw("text", {x: toX(value), y: box.bottom + 18, "text-anchor": "middle"}, svg, short(value, horizontal.step));
  }
  draw("text", {x: (box.left + box.right) / 2, y: height - 4, "text-anchor": "middle", class: "axis"}, svg, spec.axis);
  const dots = spec.series.map(one => drawLine(svg, one, toX, toY));
  const rule = draw("line", {y1: box.top, y2: box.bottom, class: "rule"}, svg);
  return at => {
    const x = toX(places[at]);
    rule.setAttribute("x1", x);
    rule.setAttribute("x2", x);
    spec.series.forEach(({ys}, k) => {
      dots[k].setAttribute("visibility", at < ys.length ? "visible" : "hidden");
      if (at < ys.length) {
        dots[k].setAttribute("cx", x);
        dots[k].setAttribute("cy", toY(ys[at]));
      }
    });
  };
}

function drawLine(svg, {colour, xs, ys, low, high}, toX, toY) {
  const path = values => values.map((value, k) => `${toX(xs[k]).toFixed(1)},${toY(value).toFixed(1)}`);
  if (low && [...low, ...high].every(Number.isFinite)) {
    const area = [...path(high), ...path(low).reverse()];
    draw("polygon", {points: area.join(" "), class: `band c${colour}`}, svg);
  }
  draw("polyline", {points: path(ys).join(" "), class: `line c${colour}`}, svg);
  return draw("circle", {r: 4, class: `dot c${colour}`}, svg);
}
