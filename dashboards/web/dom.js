// Functions to create and change elements. They accept no markup, so users' text remains text.

export const byId = (id) => document.getElementById(id);

// Sets an element's text, if it differs.
export function setText(id, value) {
  const node = byId(id);
  if (node && node.textContent !== value) node.textContent = value;
}

// Shows a formatted figure, or the reason why it is missing.
export function setFigure(id, value, format, reason) {
  setText(id, value === null ? reason : format(value));
  byId(id).classList.toggle("reason", value === null);
}

// Creates an element; `properties` are DOM properties, or attributes `data-...` and `aria-...`.
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name.includes("-") || name === "role") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

// Creates an SVG element with these attributes.
export function drawing(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
