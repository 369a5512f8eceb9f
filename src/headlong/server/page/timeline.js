/**
 * Passes over time, drawn on a canvas: one column per pass of the model, one cell per token, coloured
 * by source. Both runs share the time scale, so the end of a row is its finishing time.
 */

import { duration } from "./format.js";
import { colourOf } from "./sources.js";

const CELL = 8;
const GAP = 1;
const ROW_GAP = 30;
const LABEL = 18;
const AXIS = 22;

/** Draws the columns of several runs up to a moment. */
export class Timeline {
  constructor(canvas, rows) {
    this.canvas = canvas;
    this.rows = rows.map(({ name, run }) => makeRow(name, run));
    this.end = Math.max(1, ...rows.map(({ run }) => run.decodeMs));
    this.moment = 0;
    this.sizes = new ResizeObserver(() => this.drawAt(this.moment));
    this.sizes.observe(canvas.parentElement);
    this.onTheme = () => this.drawAt(this.moment);
    document.addEventListener("themechange", this.onTheme);
  }

  /** Forget the canvas. */
  close() {
    this.sizes.disconnect();
    document.removeEventListener("themechange", this.onTheme);
  }

  /** Draw what had happened `moment` ms after the first token. */
  drawAt(moment) {
    this.moment = moment;
    const width = this.canvas.parentElement.clientWidth;
    const height = this.rows.reduce((sum, row) => sum + LABEL + row.height + ROW_GAP, AXIS - ROW_GAP + 8);
    const pen = this.prepare(width, height);
    const styles = getComputedStyle(this.canvas);
    const colours = new Map();
    let top = 0;
    for (const row of this.rows) {
      this.drawRow(pen, row, { top, width, moment, colours, ink: styles.getPropertyValue("--ink-2") });
      top += LABEL + row.height + ROW_GAP;
    }
    this.drawAxis(pen, height - AXIS + 6, width, styles);
  }

  prepare(width, height) {
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    return pen;
  }

  drawRow(pen, row, { top, width, moment, colours, ink }) {
    pen.font = "600 12px system-ui, sans-serif";
    pen.fillStyle = ink;
    pen.fillText(row.name, 0, top + 11);
    if (moment >= row.end) this.drawEnd(pen, row, top, width);
    const bottom = top + LABEL + row.height;
    const step = width / (this.end * 1.004);
    const column = Math.max(1, Math.min(CELL, row.spacing * step - GAP));
    for (const pass of row.passes) {
      if (pass.at > moment) break;
      pass.tokens.forEach((token, level) => {
        const key = `${token.source}${token.depth}`;
        if (!colours.has(key)) colours.set(key, colourOf(token));
        pen.fillStyle = colours.get(key);
        pen.fillRect(Math.max(0, pass.at * step - column), bottom - (level + 1) * (CELL + GAP), column, CELL);
      });
    }
  }

  /** Write the finishing time at the place where the row ends. */
  drawEnd(pen, row, top, width) {
    const text = duration(row.end / 1000);
    const left = Math.min((row.end * width) / (this.end * 1.004) - 2, width - pen.measureText(text).width);
    pen.fillText(text, left, top + 11);
  }

  drawAxis(pen, top, width, styles) {
    const step = width / (this.end * 1.004);
    const tick = niceStep(this.end / Math.max(2, width / 130));
    pen.strokeStyle = styles.getPropertyValue("--line");
    pen.fillStyle = styles.getPropertyValue("--ink-3");
    pen.font = "11px system-ui, sans-serif";
    pen.beginPath();
    pen.moveTo(0, top - 4.5);
    pen.lineTo(width, top - 4.5);
    for (let at = 0; at <= this.end; at += tick) {
      pen.moveTo(at * step + 0.5, top - 4.5);
      pen.lineTo(at * step + 0.5, top);
      const text = this.end >= 2000 ? `${(at / 1000).toFixed(tick < 1000 ? 1 : 0)} s` : `${Math.round(at)} ms`;
      pen.textAlign = at === 0 ? "left" : at * step > width - 24 ? "right" : "center";
      pen.fillText(text, at * step, top + 11);
    }
    pen.stroke();
    pen.textAlign = "left";
  }
}

function passesOf(run) {
  const passes = [];
  for (const token of run.tokens) {
    const last = passes.at(-1);
    if (last?.round === token.round) last.tokens.push(token);
    else passes.push({ round: token.round, at: token.at, tokens: [token] });
  }
  return passes;
}

function makeRow(name, run) {
  const passes = passesOf(run);
  const tallest = Math.max(1, ...passes.map((pass) => pass.tokens.length));
  const spacing = run.decodeMs / Math.max(1, passes.length - 1);
  return { name, passes, spacing, end: run.decodeMs, height: tallest * (CELL + GAP) };
}

/** Round a step up to 1, 2 or 5 times a power of ten. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= least);
}
