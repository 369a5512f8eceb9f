/** Two small charts in SVG: lines over the last minutes, and columns by depth. */

import { draw, make } from "./dom.js";
import { MAX_DEPTH } from "./sources.js";

const HEIGHT = 150;
const LEFT = 44;
const BOTTOM = 20;
const TOP = 8;

/**
 * Lines over time. `series` lists `{ key, name, kind }`, `kind` being a class for the colour; the first
 * one is filled. `base` draws a line of reference, such as 1 × for a speed-up.
 */
export class LineChart {
  constructor({ title, note, series, format, base = null, least = 1 }) {
    Object.assign(this, { series, format, base, least, samples: [], at: null });
    this.reading = make("span", { class: "reading" });
    this.box = make("div", { class: "plot" });
    this.element = make("figure", { class: "chart" },
      make("figcaption", {}, make("h3", {}, title), this.reading), this.box, make("p", { class: "note" }, note));
    this.title = title;
    this.box.addEventListener("pointermove", (event) => this.point(event));
    this.box.addEventListener("pointerleave", () => this.point(null));
    new ResizeObserver(() => this.render()).observe(this.box);
  }

  /** Show new samples: `{ age_s, … }`, oldest first. */
  update(samples, windowS) {
    this.samples = samples;
    this.windowS = windowS;
    this.render();
  }

  render() {
    const width = this.box.clientWidth;
    if (!width || !this.windowS) return;
    const values = this.samples.flatMap((one) => this.series.map(({ key }) => one[key] ?? 0));
    const top = niceCeiling(Math.max(this.least, ...values));
    const x = (age) => LEFT + (1 - age / this.windowS) * (width - LEFT - 4);
    const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - BOTTOM - TOP);
    const picture = draw("svg", { width, height: HEIGHT, role: "img", "aria-label": this.describe() });
    picture.append(...grid(width, top, y, this.format), ...timeAxis(x, this.windowS));
    if (this.base !== null && this.base <= top) {
      picture.append(draw("line", { class: "base", x1: LEFT, x2: width, y1: y(this.base), y2: y(this.base) }));
    }
    this.series.forEach((one, i) => picture.append(...this.line(one, i === 0, x, y)));
    const shown = this.samples[this.at ?? this.samples.length - 1];
    if (shown && this.at !== null) {
      picture.append(draw("line", { class: "cursor", x1: x(shown.age_s), x2: x(shown.age_s), y1: TOP, y2: HEIGHT - BOTTOM }));
    }
    this.box.replaceChildren(picture);
    this.read(shown);
  }

  line({ key, kind }, isFilled, x, y) {
    const drawn = [];
    for (const run of runsOf(this.samples, key)) {
      const points = run.map((one) => `${x(one.age_s).toFixed(1)},${y(one[key]).toFixed(1)}`).join(" L");
      if (isFilled && run.length > 1) {
        const [from, to] = [x(run[0].age_s).toFixed(1), x(run.at(-1).age_s).toFixed(1)];
        drawn.push(draw("path", { class: `area ${kind}`, d: `M${from},${y(0)} L${points} L${to},${y(0)} Z` }));
      }
      drawn.push(run.length > 1
        ? draw("path", { class: `stroke ${kind}`, d: `M${points}` })
        : draw("circle", { class: `dot ${kind}`, cx: x(run[0].age_s), cy: y(run[0][key]), r: 2 }));
    }
    return drawn;
  }

  read(sample) {
    const parts = this.series.map(({ key, name, kind }) =>
      make("span", { class: kind }, name ? `${name} ` : "", make("b", {}, this.format(sample?.[key] ?? null))));
    const age = this.at === null || !sample ? "" : `${Math.round(sample.age_s)} s ago`;
    this.reading.replaceChildren(make("small", {}, age), ...parts);
  }

  point(event) {
    if (!event || !this.samples.length) this.at = null;
    else {
      const share = (event.offsetX - LEFT) / (this.box.clientWidth - LEFT - 4);
      const age = (1 - share) * this.windowS;
      const distance = (i) => Math.abs(this.samples[i].age_s - age);
      this.at = this.samples.reduce((best, _, i) => (distance(i) < distance(best) ? i : best), 0);
    }
    this.render();
  }

  describe() {
    const last = this.samples.at(-1);
    return `${this.title}, now ${this.series.map(({ key, name }) => `${name} ${this.format(last?.[key] ?? null)}`).join(", ")}`;
  }
}

/** Columns by draft depth, in the colours of the depths. */
export class DepthChart {
  constructor({ title, note, format }) {
    this.format = format;
    this.title = title;
    this.shares = [];
    this.box = make("div", { class: "plot" });
    this.element = make("figure", { class: "chart" },
      make("figcaption", {}, make("h3", {}, title)), this.box, make("p", { class: "note" }, note));
    new ResizeObserver(() => this.render()).observe(this.box);
  }

  /** Show the share of rounds in which each depth stood. */
  update(shares) {
    this.shares = shares.slice(0, MAX_DEPTH);
    this.render();
  }

  render() {
    const width = this.box.clientWidth;
    if (!width) return;
    const y = (value) => HEIGHT - BOTTOM - value * (HEIGHT - BOTTOM - TOP - 12);
    const words = this.shares.map((share, i) => `depth ${i + 1}: ${this.format(share)}`).join(", ");
    const picture = draw("svg", { width, height: HEIGHT, role: "img", "aria-label": `${this.title}. ${words}` });
    picture.append(...grid(width, 1, y, this.format));
    const step = (width - LEFT) / MAX_DEPTH;
    for (let i = 0; i < MAX_DEPTH; i += 1) {
      const share = this.shares[i] ?? 0;
      const middle = LEFT + (i + 0.5) * step;
      const column = { class: `column s-head-${i + 1}`, x: middle - step * 0.32, width: step * 0.64, rx: 2 };
      picture.append(
        draw("rect", { ...column, y: y(share), height: Math.max(0, y(0) - y(share)) }),
        draw("text", { class: "label", x: middle, y: HEIGHT - 6, "text-anchor": "middle" }, String(i + 1)),
      );
      if (share > 0) {
        picture.append(draw("text", { class: "label strong", x: middle, y: y(share) - 4, "text-anchor": "middle" }, this.format(share)));
      }
    }
    this.box.replaceChildren(picture);
  }
}

function grid(width, top, y, format) {
  return [0, 0.5, 1].flatMap((share) => [
    draw("line", { class: "grid", x1: LEFT, x2: width, y1: y(share * top), y2: y(share * top) }),
    draw("text", { class: "label", x: LEFT - 6, y: y(share * top) + 4, "text-anchor": "end" }, format(share * top, true)),
  ]);
}

function timeAxis(x, windowS) {
  const label = (age, text, anchor) => draw("text", { class: "label", x: x(age), y: HEIGHT - 5, "text-anchor": anchor }, text);
  return [label(windowS, `${windowS} s ago`, "start"), label(windowS / 2, `${windowS / 2} s`, "middle"), label(0, "now", "end")];
}

/** Split samples where a value is unknown, so that no line crosses the gap. */
function runsOf(samples, key) {
  const runs = [];
  let isOpen = false;
  for (const one of samples) {
    const isKnown = typeof one[key] === "number";
    if (isKnown && !isOpen) runs.push([]);
    if (isKnown) runs.at(-1).push(one);
    isOpen = isKnown;
  }
  return runs;
}

/** Round up to a number that reads well on an axis. */
function niceCeiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((n) => n * power).find((top) => top >= value * 0.999);
}
