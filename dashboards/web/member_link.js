// Returns the link to a member's page; its name (in archives, one per language) is in the template.

import { byId } from "./dom.js";

export const memberLink = (number) => `${byId("bubbles").dataset.memberPage}?number=${number}`;
