// The list of checkpoints, newest first, with downloads and external publications. Above the list, the
// best checkpoint (or else the newest) is offered for download, with the code to load it.

import { address, archived, get } from "./api.js";
import { best, snippet } from "./checkpoint_choice.js";
import { byId, element, setText } from "./dom.js";
import * as format from "./format.js";
import { t } from "./i18n.js";

function facts(checkpoint, loss) {
  const pairs = [
    ["model.written", format.moment(checkpoint.created_at)],
    ["model.size", format.size(checkpoint.size_bytes)],
    ["model.held_out_loss", format.loss(loss)],
  ];
  const items = pairs.flatMap(([key, value]) => [element("dt", {}, t(key)), element("dd", {}, value)]);
  return element("dl", { className: "facts" }, ...items);
}

// Lists the files in a checkpoint's manifest as links, each with its size and digest.
function fileItems(step, manifest) {
  return Object.entries(manifest.files).map(([name, file]) =>
    element(
      "li",
      {},
      element("a", { href: address(`checkpoints/${step}/${name}`), download: name, title: `SHA-256 ${file.sha256}` }, name),
      element("span", { className: "muted" }, format.size(file.size_bytes)),
    ),
  );
}

function files(step) {
  const list = element("ul", { className: "files" });
  const summary = element("summary", { "aria-label": t("model.load_files", { step: format.count(step) }) }, t("model.files"));
  const details = element("details", {}, summary, list);
  details.addEventListener("toggle", async () => {
    if (!details.open || list.childElementCount) return;
    try {
      list.replaceChildren(...fileItems(step, await get(`checkpoints/${step}/manifest.json`)));
    } catch (error) {
      list.replaceChildren(element("li", { className: "muted" }, error.message));
    }
  });
  return details;
}

const whole = (step) => address(`checkpoints/${step}.tar`);

function digest(checkpoint) {
  return element("details", { className: "digest" }, element("summary", {}, t("model.digest")), element("code", {}, checkpoint.manifest_sha256));
}

function heading(step, isBest) {
  const mark = isBest ? element("span", { className: "best", title: t("model.best_why") }, t("model.best")) : null;
  return element("h3", {}, t("model.at_step", { step: format.count(step) }), mark && " ", mark);
}

// Only web URLs become links.
function elsewhere({ location, place }) {
  const name = /^https?:\/\//.test(location) ? element("a", { href: location, rel: "noopener" }, location) : place;
  const [before, after = ""] = t("model.published_at", { place: "\u0000" }).split("\u0000");
  return element("p", { className: "muted" }, before, name, after);
}

export class CheckpointList {
  #element;
  #autoClass;
  #items = new Map(); // items by digest; a reused item keeps its list of files open

  // `autoClass`: the transformers class that loads the checkpoints.
  constructor(element, autoClass) {
    this.#element = element;
    this.#autoClass = autoClass;
  }

  show(checkpoints, validations, publications, run) {
    const items = new Map();
    const lowest = best(checkpoints, validations);
    if (!archived) this.#offer(lowest ?? checkpoints.findLast((each) => !each.withheld), lowest !== null, run);
    for (const checkpoint of [...checkpoints].reverse()) {
      const { manifest_sha256: digest } = checkpoint;
      const loss = validations.find((row) => row.manifest_sha256 === digest)?.loss ?? null;
      const places = publications.filter((row) => row.manifest_sha256 === digest);
      const isBest = checkpoint === lowest;
      const key = JSON.stringify([checkpoint, loss, places, isBest]);
      items.set(key, this.#items.get(key) ?? this.#item(checkpoint, loss, places, isBest));
    }
    if ([...items.keys()].join() !== [...this.#items.keys()].join() || !this.#items.size) {
      this.#element.replaceChildren(...items.values());
    }
    this.#items = items;
    document.getElementById("no-checkpoints").hidden = checkpoints.length > 0;
  }

  #offer(checkpoint, isBest, run) {
    byId("take").hidden = !checkpoint;
    if (!checkpoint) return;
    const values = { step: format.count(checkpoint.step), size: format.size(checkpoint.size_bytes) };
    setText("take-all", t(isBest ? "model.take_best" : "model.take_newest", values));
    byId("take-all").href = whole(checkpoint.step);
    setText("snippet", snippet(whole(checkpoint.step), `${run}-step-${checkpoint.step}`, this.#autoClass));
  }

  #item(checkpoint, loss, places, isBest) {
    const { step, withheld } = checkpoint;
    const children = [heading(step, isBest), facts(checkpoint, loss), ...places.map(elsewhere)];
    if (withheld) children.push(element("p", { className: "problem" }, t("model.withheld", { reason: withheld })));
    else if (!archived) {
      const name = t("model.whole_of", { step: format.count(step) });
      children.push(element("p", {}, element("a", { href: whole(step), download: "", "aria-label": name }, t("model.whole"))), files(step));
    }
    children.push(digest(checkpoint));
    return element("li", {}, ...children);
  }
}
