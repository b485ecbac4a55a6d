// Making and changing elements. What people could have written reaches a page as text only: nothing here takes markup.

export const byId = (id) => document.getElementById(id);

// Changes an element's text, if it is another.
export function setText(id, value) {
  const node = byId(id);
  if (node && node.textContent !== value) node.textContent = value;
}

// Shows a figure by `format`, or in words why there is none.
export function setFigure(id, value, format, reason) {
  setText(id, value === null ? reason : format(value));
  byId(id).classList.toggle("reason", value === null);
}

// A new element; `properties` are its DOM properties, `data-...` and `aria-...` its attributes; strings become text.
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

// The same for a drawing: all of `attributes` are attributes.
export function drawing(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
