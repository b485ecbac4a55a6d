// The checkpoints that are kept, the newest first: facts, files to download, and where else they can be fetched.

import { address, archived, get } from "./api.js";
import { element } from "./dom.js";
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

// The files that a checkpoint's manifest names, each with its size and digest, as links.
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

// Only what is an address of the web becomes a link.
function elsewhere({ location, place }) {
  const name = /^https?:\/\//.test(location) ? element("a", { href: location, rel: "noopener" }, location) : place;
  const [before, after = ""] = t("model.published_at", { place: "\u0000" }).split("\u0000");
  return element("p", { className: "muted" }, before, name, after);
}

export class CheckpointList {
  #element;
  #items = new Map(); // by digest: an item that stays keeps its open files

  constructor(element) {
    this.#element = element;
  }

  show(checkpoints, validations, publications) {
    const items = new Map();
    for (const checkpoint of [...checkpoints].reverse()) {
      const { manifest_sha256: digest } = checkpoint;
      const loss = validations.find((row) => row.manifest_sha256 === digest)?.loss ?? null;
      const places = publications.filter((row) => row.manifest_sha256 === digest);
      const key = JSON.stringify([checkpoint, loss, places]);
      items.set(key, this.#items.get(key) ?? this.#item(checkpoint, loss, places));
    }
    if ([...items.keys()].join() !== [...this.#items.keys()].join() || !this.#items.size) {
      this.#element.replaceChildren(...items.values());
    }
    this.#items = items;
    document.getElementById("no-checkpoints").hidden = checkpoints.length > 0;
  }

  #item(checkpoint, loss, places) {
    const { step, withheld } = checkpoint;
    const children = [
      element("h3", {}, t("model.at_step", { step: format.count(step) })),
      facts(checkpoint, loss),
      element("p", { className: "digest" }, element("span", { className: "muted" }, `${t("model.digest")} `), element("code", {}, checkpoint.manifest_sha256)),
      ...places.map(elsewhere),
    ];
    if (withheld) children.push(element("p", { className: "problem" }, t("model.withheld", { reason: withheld })));
    else if (!archived) children.push(files(step));
    return element("li", {}, ...children);
  }
}
