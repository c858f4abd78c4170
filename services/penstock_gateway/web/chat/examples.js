/** What an empty conversation offers. */

import { at, make } from "./dom.js";

const EXAMPLES = [
  ["Explain", "Explain in three sentences how a hydroelectric dam makes electricity."],
  ["Write", "Write a short, friendly note that thanks a neighbour for watering the plants."],
  ["Compare", "Compare a stack and a queue in a small table, with one everyday example of each."],
  ["Code", "Write a Python function that returns the nth Fibonacci number, with a docstring."],
];

/** take: called with the text of the example that was pressed. */
export function showExamples(take) {
  at("examples").append(...EXAMPLES.map(([name, text]) => make("li", {}, make("button", {
    type: "button", on: { click: () => take(text) },
  }, make("strong", { text: name }), make("span", { text })))));
}

/** What the model that is served is for. */
export function showPurpose({ name, chats, transcribes }) {
  const writes = transcribes ? "What was said?" : "This model makes vectors, not text";
  at("empty-title").textContent = chats ? "What shall we look into?" : writes;
  at("examples").hidden = !chats;
  at("to-hear").hidden = !transcribes;
  at("empty-note").hidden = !chats && !transcribes;
  at("no-chat").hidden = chats || transcribes;
  at("no-chat-name").textContent = name;
}
