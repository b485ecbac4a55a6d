// Requests to the public API.

export const archived = "archive" in document.documentElement.dataset; // an archive has no coordinator
// The current time in Unix seconds; in an archive, the time of the archive.
export const now = () => (archived ? Number(document.documentElement.dataset.archive) : Date.now() / 1000);
const base = new URL("api/v1/", document.baseURI);

// Escapes a text for a file name, in the same way as coordinator/web/state/frozen.py.
function filePart(text) {
  const escape = (character) => [...new TextEncoder().encode(character)].map((byte) => `~${byte.toString(16).padStart(2, "0")}`).join("");
  return [...String(text)].map((each) => (/[A-Za-z0-9._-]/.test(each) ? each : escape(each))).join("");
}

function fileName(path, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined);
  const parts = given.map(([name, value]) => `${filePart(name)}=${filePart(value)}`).sort();
  return `${[path.split("/").map(filePart).join("/"), ...parts].join(",")}.json`;
}

// Returns the URL of an API response; null and undefined parameters are omitted.
export function address(path, parameters = {}) {
  if (archived) return new URL(fileName(path, parameters), base);
  const url = new URL(path, base);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined) url.searchParams.set(name, value);
  }
  return url;
}

// Fetches a JSON response; throws an error with the server's message if the request is refused.
export async function get(path, parameters = {}) {
  return content(await fetch(address(path, parameters)));
}

// Sends a JSON body by POST; returns or throws like `get`.
export async function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  return content(await fetch(address(path), { method: "POST", headers, body: JSON.stringify(body) }));
}

async function content(answer) {
  if (answer.ok) return answer.json();
  const refusal = await answer.json().catch(() => ({}));
  const reason = typeof refusal.detail === "string" ? refusal.detail : `${answer.status} ${answer.statusText}`;
  throw Object.assign(new Error(reason), { status: answer.status });
}

// Yields all pages of a list; the `next` of a page is the `cursor` of the following page.
export async function* pages(path, parameters = {}, cursor = "cursor") {
  let next = parameters[cursor] ?? null;
  do {
    const page = await get(path, { ...parameters, [cursor]: next });
    yield page;
    next = page.next;
  } while (next !== null && next !== undefined);
}
