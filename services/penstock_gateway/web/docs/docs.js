/** The API page: Swagger UI over this server's own document, with the key that the chat has too. */

import { apiKey, headers } from "../chat/api.js";
import { at } from "../chat/dom.js";
import { keepTidy } from "./tidy.js";

/** Reads the document again, with the key that is there now, and shows it. */
async function load() {
  const state = at("state");
  state.textContent = "";
  try {
    const reply = await fetch("openapi.json", { headers: headers(), cache: "no-store" });
    if (reply.status === 401) {
      state.textContent = apiKey.get() ? "This server does not know that API key." : "This server requires an API key.";
      at("key").focus();
      return;
    }
    if (!reply.ok) throw new Error(`the server answered ${reply.status} ${reply.statusText}`);
    show(await reply.json());
  } catch (error) {
    state.textContent = `The API's description can't be had: ${error.message}`;
  }
}

function show(spec) {
  at("swagger").replaceChildren();
  globalThis.SwaggerUIBundle({
    spec,
    domNode: at("swagger"),
    presets: [globalThis.SwaggerUIBundle.presets.apis],
    deepLinking: false,
    displayRequestDuration: true,
    defaultModelsExpandDepth: 0,
    docExpansion: "list",
    tryItOutEnabled: true,
    validatorUrl: null,
    // Where nothing else was given under Authorize.
    requestInterceptor: (request) => {
      const given = Object.keys(request.headers ?? {}).some((name) => name.toLowerCase() === "authorization");
      if (!given && new URL(request.url, location.href).origin === location.origin) Object.assign(request.headers, headers());
      return request;
    },
  });
}

at("key").value = apiKey.get();
at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  apiKey.set(at("key").value.trim(), apiKey.remembered);
  load();
});
keepTidy(at("swagger"));
load();
