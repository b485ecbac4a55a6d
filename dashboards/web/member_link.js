// Returns the link to a member's page; the template has the file name (in archives, per language).

import { byId } from "./dom.js";

export const memberLink = (number) => `${byId("bubbles").dataset.memberPage}?number=${number}`;
