// Requests to the public API.

export const archived = "archive" in document.documentElement.dataset; // no coordinator
// The page's current time in Unix seconds; in an archive, the time at which it was made.
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

// Returns the URL of an answer; parameters that are null or undefined are left out.
export function address(path, parameters = {}) {
  if (archived) return new URL(fileName(path, parameters), base);
  const url = new URL(path, base);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined) url.searchParams.set(name, value);
  }
  return url;
}

// Fetches an answer's JSON; a refusal becomes an error with the server's message.
export async function get(path, parameters = {}) {
  return content(await fetch(address(path, parameters)));
}

// The same for a POST request with a JSON body.
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

// Yields all pages of a list: an answer's `next` is the parameter `cursor` of the following page.
export async function* pages(path, parameters = {}, cursor = "cursor") {
  let next = parameters[cursor] ?? null;
  do {
    const page = await get(path, { ...parameters, [cursor]: next });
    yield page;
    next = page.next;
  } while (next !== null && next !== undefined);
}
