// Buttons that copy the text of the element named by `data-copies`.

import { byId } from "./dom.js";
import { t } from "./i18n.js";

const SAID_MS = 2000;

async function copy(event) {
  const button = event.currentTarget;
  const said = button.textContent;
  try {
    await navigator.clipboard.writeText(byId(button.dataset.copies).textContent);
    button.textContent = t("join.copied");
  } catch {
    window.getSelection().selectAllChildren(byId(button.dataset.copies)); // the clipboard requires HTTPS
    button.textContent = t("join.selected");
  }
  setTimeout(() => {
    button.textContent = said;
  }, SAID_MS);
}

// Adds click handlers to all copy buttons of the page.
export function makeCopyButtons() {
  for (const button of document.querySelectorAll("[data-copies]")) button.addEventListener("click", copy);
}
