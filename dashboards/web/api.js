// The public API, as the page asks it.

export const archived = "archive" in document.documentElement.dataset; // plain files, and no coordinator behind them
// The moment that the page is about, in Unix seconds: an archive's stays as it was.
export const now = () => (archived ? Number(document.documentElement.dataset.archive) : Date.now() / 1000);
const base = new URL("api/v1/", document.baseURI);

// A text as a part of a file's name: coordinator/web/state/frozen.py makes the same.
function filePart(text) {
  const escape = (character) => [...new TextEncoder().encode(character)].map((byte) => `~${byte.toString(16).padStart(2, "0")}`).join("");
  return [...String(text)].map((each) => (/[A-Za-z0-9._-]/.test(each) ? each : escape(each))).join("");
}

function fileName(path, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined);
  const parts = given.map(([name, value]) => `${filePart(name)}=${filePart(value)}`).sort();
  return `${[path.split("/").map(filePart).join("/"), ...parts].join(",")}.json`;
}

// The address of an answer; parameters that are null or undefined are left out.
export function address(path, parameters = {}) {
  if (archived) return new URL(fileName(path, parameters), base);
  const url = new URL(path, base);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined) url.searchParams.set(name, value);
  }
  return url;
}

// An answer as JSON; what is refused becomes an error with the server's own words.
export async function get(path, parameters = {}) {
  return content(await fetch(address(path, parameters)));
}

// The same for what is asked with a body.
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

// All pages of a list: `path` answers with `next`, which becomes the parameter `cursor` of the page after it.
export async function* pages(path, parameters = {}, cursor = "cursor") {
  let next = parameters[cursor] ?? null;
  do {
    const page = await get(path, { ...parameters, [cursor]: next });
    yield page;
    next = page.next;
  } while (next !== null && next !== undefined);
}
