/** The page: two views, chosen by what follows the #. */

import { hush } from "./chat/aloud.js";
import { headers } from "./chat/api.js";
import { Chat } from "./chat/chat.js";
import { at, icon, make } from "./chat/dom.js";
import { takeUp } from "./chat/keeping.js";
import { Store } from "./chat/store.js";

const THEME = "penstock.theme";
const THEMES = ["auto", "light", "dark"];

let chat = null;
let unmount = null;
let view = "";

async function route() {
  const [name, id = ""] = location.hash.slice(1).split("/", 2);
  const wanted = name === "live" ? "live" : "chat";
  if (view === "live" && wanted !== "live") leaveLive();
  view = wanted;
  for (const each of ["chat", "live"]) at(each).hidden = each !== wanted;
  for (const tab of document.querySelectorAll("[data-view]")) {
    if (tab.dataset.view === wanted) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  document.body.classList.toggle("on-live", wanted === "live");
  at("skip").hidden = wanted === "live";
  if (wanted === "live") {
    document.querySelector('[data-view="chat"]').href = chat.hash;
    await enterLive();
  } else await chat.show(id);
}

async function enterLive() {
  const place = at("live");
  document.title = "Live · Penstock";
  place.replaceChildren(make("p", { class: "waiting muted", text: "Loading…" }));
  try {
    const [module] = await Promise.all([import("./live/live.js"), style("live/live.css")]);
    if (view !== "live" || unmount) return;
    place.replaceChildren();
    unmount = module.mount(place, { headers }) ?? (() => {});
  } catch (error) {
    if (view !== "live") return;
    place.replaceChildren(make("p", { class: "waiting", text: `The live view can't be shown here: ${error.message}` }));
  }
}

function leaveLive() {
  unmount?.();
  unmount = null;
  at("live").replaceChildren();
}

/** Loads a style sheet once, when it is first wanted. */
function style(address) {
  if (document.querySelector(`link[href="${address}"]`)) return Promise.resolve();
  return new Promise((resolve, reject) => {
    const link = make("link", { rel: "stylesheet", href: address, on: {
      load: resolve, error: () => (link.remove(), reject(new Error(`${address} is missing`))),
    } });
    document.head.append(link);
  });
}

function showTheme() {
  const theme = document.documentElement.dataset.theme ?? "auto";
  const words = { auto: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" }[theme];
  at("theme").replaceChildren(icon(theme));
  at("theme").setAttribute("aria-label", words);
  at("theme").title = words;
}

function turnTheme() {
  const { dataset } = document.documentElement;
  const next = THEMES[(THEMES.indexOf(dataset.theme ?? "auto") + 1) % THEMES.length];
  if (next === "auto") delete dataset.theme;
  else dataset.theme = next;
  try {
    if (next === "auto") localStorage.removeItem(THEME);
    else localStorage.setItem(THEME, next);
  } catch {
    // Without storage it lasts as long as the page.
  }
  showTheme();
}

function keys(event) {
  if ((event.ctrlKey || event.metaKey) && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    chat.fresh();
  } else if (event.key === "Escape" && view === "chat" && !document.querySelector("dialog[open]")) {
    hush();
    chat.stop();
  }
}

/** A file that misses its place: the browser would leave the page, and show it. */
function missed(event) {
  if (event.defaultPrevented || ![...(event.dataTransfer?.types ?? [])].includes("Files")) return;
  event.preventDefault();
  event.dataTransfer.dropEffect = "none";
}

async function start() {
  showTheme();
  at("theme").addEventListener("click", turnTheme);
  at("skip").addEventListener("click", (event) => {
    event.preventDefault(); // What follows the # is the view.
    at("message").focus();
  });
  const store = await Store.open();
  await takeUp(store);
  chat = new Chat(store);
  addEventListener("hashchange", route);
  document.addEventListener("keydown", keys);
  for (const kind of ["dragover", "drop"]) addEventListener(kind, missed);
  await chat.answers.resume();
  await route();
  await chat.model.load();
}

start();
