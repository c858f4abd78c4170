/** The library of prompts: texts with names, kept in this browser beside the conversations. */

const KEY = "penstock.prompts";
export const MOST_PROMPTS = 100;
export const MOST_NAME = 80;
export const MOST_TEXT = 8000;

/** [{name, text}] in the order of their names; [] where there are none, or no storage. */
export function prompts() {
  try {
    return checked(JSON.parse(localStorage.getItem(KEY) ?? "[]"), "prompts");
  } catch {
    return [];
  }
}

/** Keeps these. Throws an Error that says what is wrong: one of them, their number, the storage. */
export function keepPrompts(all) {
  const list = checked(all, "prompts").sort((a, b) => a.name.localeCompare(b.name));
  try {
    localStorage.setItem(KEY, JSON.stringify(list));
  } catch {
    throw new Error("the browser's storage for this page is full");
  }
}

/** Adds prompts, but for those that are there already; returns how many were new. Throws as above. */
export function addPrompts(more) {
  const all = prompts();
  const fresh = more.filter(({ name, text }) => !all.some((each) => each.name === name && each.text === text));
  if (fresh.length) keepPrompts([...all, ...fresh]);
  return fresh.length;
}

/** The prompts in a value of unknown origin. where: what it is called in the Error for a wrong one. */
export function checked(value, where) {
  if (!Array.isArray(value)) throw new Error(`${where} must be a list`);
  if (value.length > MOST_PROMPTS) throw new Error(`${value.length} prompts are too many: at most ${MOST_PROMPTS} are kept`);
  return value.map((each, index) => ({
    name: words(each?.name, MOST_NAME, `${where}[${index}].name`).replace(/\s+/g, " "),
    text: words(each?.text, MOST_TEXT, `${where}[${index}].text`),
  }));
}

function words(value, most, where) {
  if (typeof value !== "string" || !value.trim()) throw new Error(`${where} must be a text that isn't empty`);
  if (value.length > most) throw new Error(`${where} has ${value.length} characters; at most ${most} are allowed`);
  return value.trim();
}
