// A list of names with values and bars for shares. Rows are reused, and only changed values are updated.

import { element } from "./dom.js";

function row() {
  const name = element("span", { className: "who" });
  const value = element("span", { className: "muted" });
  const fill = element("div");
  const bar = element("div", { className: "share", "aria-hidden": "true" }, fill);
  return element("li", {}, element("p", { className: "row" }, name, value), bar);
}

function fillRow(node, { name, value, share, isOn = true }) {
  const [who, what] = node.querySelectorAll("span");
  if (who.textContent !== name) who.textContent = name;
  if (what.textContent !== value) what.textContent = value;
  node.dataset.online = String(isOn);
  node.querySelector(".share > div").style.width = `${(100 * share).toFixed(2)}%`;
}

// Shows rows of {name, value, share (0 to 1), isOn} in a list.
export function showShares(list, rows) {
  while (list.children.length > rows.length) list.lastElementChild.remove();
  while (list.children.length < rows.length) list.append(row());
  rows.forEach((each, index) => fillRow(list.children[index], each));
}
