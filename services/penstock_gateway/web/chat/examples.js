/** What an empty conversation offers. */

import { at, make } from "./dom.js";

const EXAMPLES = [
  ["Explain", "Explain in three sentences how rain forms."],
  ["Write", "Write a short note that thanks a neighbour for watering the plants."],
  ["List", "Give me three tips for sleeping better."],
  ["Code", "Write a Python function that adds two numbers."],
];

/** take: called with the text of the example that was pressed. */
export function showExamples(take) {
  at("examples").append(...EXAMPLES.map(([name, text]) => make("li", {}, make("button", {
    type: "button", on: { click: () => take(text) },
  }, make("strong", { text: name }), make("span", { text })))));
}

/** The model that is served where nobody has chosen one: its name on the hub, whatever it is called here. */
export const DEMONSTRATION = "HuggingFaceTB/SmolLM2-135M-Instruct";

/** What the model that is served is for. */
export function showPurpose({ name, hubId, chats, transcribes }) {
  const writes = transcribes ? "What was said?" : "This model makes vectors, not text";
  at("empty-title").textContent = chats ? "What shall we look into?" : writes;
  at("examples").hidden = !chats;
  at("to-hear").hidden = !transcribes;
  at("empty-note").hidden = !chats && !transcribes;
  at("demonstration").hidden = hubId !== DEMONSTRATION;
  at("no-chat").hidden = chats || transcribes;
  at("no-chat-name").textContent = name;
}
