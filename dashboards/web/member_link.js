// Where a member's page is: in an archive it is a file in the reader's language, so the template says its name.

import { byId } from "./dom.js";

export const memberLink = (number) => `${byId("bubbles").dataset.memberPage}?number=${number}`;
