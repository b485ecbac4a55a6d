// The page's texts in its language. Importing this module waits until they are loaded.

const root = document.documentElement;
export const language = root.lang || "en";
const plurals = new Intl.PluralRules(language);

async function load(name) {
  const answer = await fetch(new URL(`i18n/${name}.json`, import.meta.url));
  if (!answer.ok) throw new Error(`the texts in ${name} did not load`);
  return answer.json();
}

const texts = await load(language).catch((error) => {
  console.warn(error.message);
  return {};
});

function find(key) {
  return key.split(".").reduce((section, name) => section?.[name], texts);
}

// Returns a text by its key, such as "overview.loss"; `values` fill its {name}s. `count`, if given,
// chooses the plural form; `values.n` is its formatted value.
export function t(key, values = {}, count = undefined) {
  const found = find(key);
  const text = typeof found === "object" ? (found[plurals.select(count)] ?? found.other) : found;
  if (text === undefined) return key;
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? values[name] : whole));
}
