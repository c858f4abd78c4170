/** A worker: {number, language, text} -> {number, pieces: [[scope, text]]}, empty where it doesn't know the language. */

import hljs from "../vendor/highlight/highlight.min.js";

/** Takes what highlight.js finds as pieces instead of markup: the innermost scope counts. */
class Pieces {
  pieces = [];
  #scopes = [];

  addText(text) {
    if (text) this.pieces.push([this.#scopes.at(-1) ?? null, text]);
  }

  startScope(scope) {
    this.#scopes.push(scope);
  }

  endScope() {
    this.#scopes.pop();
  }

  openNode(scope) {
    this.startScope(scope);
  }

  closeNode() {
    this.endScope();
  }

  closeAllNodes() {
    this.#scopes = [];
  }

  finalize() {
    this.closeAllNodes();
  }

  __addSublanguage(other) {
    this.pieces.push(...other.pieces);
  }

  toHTML() {
    return "";
  }
}

hljs.configure({ __emitter: Pieces });

addEventListener("message", ({ data: { number, language, text } }) => {
  const known = hljs.getLanguage(language);
  const pieces = known ? hljs.highlight(text, { language, ignoreIllegals: true })._emitter.pieces : [];
  postMessage({ number, pieces });
});
