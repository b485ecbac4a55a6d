// Questions to the model: a sentence is queued at the coordinator, and its answer is polled.

import { get, post } from "./api.js";
import { element } from "./dom.js";
import * as format from "./format.js";
import { t } from "./i18n.js";

const POLL_MS = 400;
const PATIENCE_MS = 55_000; // the coordinator forgets a question after a minute
const BLANK = "[MASK]";
const UNLIKELY = 0.05; // a best guess below this is called unlikely

const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// Asks the checkpoint of a step; `onWait` gets the number ahead. An error says what failed.
export async function ask(text, step, onWait) {
  const until = performance.now() + PATIENCE_MS;
  let asked = await post("trials", { text, step });
  while (asked.state === "waiting") {
    if (performance.now() > until) throw new Error(t("model.nobody_answers"));
    onWait(asked.ahead);
    await sleep(POLL_MS);
    asked = await get(`trials/${asked.id}`);
  }
  if (asked.state === "failed") throw new Error(asked.reason);
  return asked;
}

// Returns the sentence with the likeliest token at each blank, or after its end.
function filled({ text, blanks }) {
  const parts = text.includes(BLANK) ? text.split(BLANK) : [`${text} `, ""];
  const children = parts.flatMap((part, index) => {
    const best = index < blanks.length ? element("mark", {}, blanks[index][0].token) : null;
    return best ? [part, best] : [part];
  });
  return element("p", { className: "filled", dir: "auto" }, ...children);
}

function guess({ token, probability }) {
  const bar = element("div");
  bar.style.width = `${100 * probability}%`;
  return element(
    "li",
    {},
    element("span", { className: "token", dir: "auto" }, token),
    element("div", { className: "likely", "aria-hidden": "true" }, bar),
    element("span", { className: "number" }, format.share(probability)),
  );
}

// Returns the elements that show an answer.
export function answerContent(asked) {
  const unlikely = asked.blanks.every((blank) => blank[0].probability < UNLIKELY);
  const lists = asked.blanks.map((blank) => element("ol", {}, ...blank.map(guess)));
  return [
    filled(asked),
    element("div", { className: "guesses" }, ...lists),
    unlikely ? element("p", { className: "muted" }, t("model.unlikely")) : null,
  ].filter((each) => each !== null);
}
