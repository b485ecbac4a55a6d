// A small curve of the whole run, with a line at the selected step and a line per milestone.

import { get } from "./api.js";
import { drawing } from "./dom.js";
import { t } from "./i18n.js";

const WIDTH = 1000;
const HEIGHT = 144;
const POINTS = 600;

export class Course {
  #element;
  #svg = null;
  #here = null;
  #last = 1;

  constructor(element) {
    this.#element = element;
  }

  // Draws the curve up to the last step, and replaces the server's drawing.
  async draw(last, milestones) {
    const curve = await get("curve", { points: POINTS });
    if (!curve.step.length) return;
    this.#last = last;
    const [low, high] = [Math.min(...curve.loss), Math.max(...curve.loss)];
    const y = (loss) => 6 + ((high - loss) / (high - low || 1)) * (HEIGHT - 12);
    const points = curve.step.map((step, index) => `${this.#x(step).toFixed(1)},${y(curve.loss[index]).toFixed(1)}`);
    this.#here = this.#line("here", 1);
    const names = { class: "course", role: "img", "aria-label": t("history.curve_description") };
    this.#svg = drawing(
      "svg",
      { ...names, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none" },
      drawing("line", { class: "frame", x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT }),
      ...milestones.map(({ step }) => this.#line("milestone", step)),
      drawing("polyline", { points: points.join(" ") }),
      this.#here,
    );
    this.#element.replaceChildren(this.#svg);
  }

  // Moves the line to a step.
  show(step) {
    const x = this.#x(step);
    this.#here?.setAttribute("x1", x);
    this.#here?.setAttribute("x2", x);
  }

  #x(step) {
    return ((step - 1) / Math.max(1, this.#last - 1)) * WIDTH;
  }

  #line(name, step) {
    const x = this.#x(step);
    return drawing("line", { class: name, x1: x, x2: x, y1: 0, y2: HEIGHT });
  }
}
