/**
 * What Swagger UI leaves out for who listens to the page or uses a keyboard: names of boxes, a place
 * in the order of the headings, and a way to scroll what is cut off.
 */

// Its dialog goes from h4 to h6.
const LEVELS = { H1: 1, H2: 1, H3: 2, H4: 3, H5: 4, H6: 4 };

/** Mends what is there and what comes. */
export function keepTidy(root) {
  new MutationObserver(() => tidy(root)).observe(root, { childList: true, subtree: true });
  tidy(root);
}

function tidy(root) {
  each(root, "h1, h2, h3, h4, h5, h6", (heading) => {
    set(heading, "role", "heading");
    set(heading, "aria-level", String(LEVELS[heading.tagName]));
  });
  each(root, "select, textarea, input:not([type=checkbox])", (box) => {
    if (!box.labels?.length && !box.hasAttribute("aria-label")) box.setAttribute("aria-label", nameOf(box));
  });
  each(root, "pre, .highlight-code, .curl-command, .table-container, .responses-inner", (block) => set(block, "tabindex", "0"));
  each(root, ".information-container, .scheme-container", (block) => {
    set(block, "role", "region");
    set(block, "aria-label", block.matches(".information-container") ? "About this API" : "Authorization");
  });
  each(root, ".close-modal", (button) => set(button, "aria-label", "Close"));
  each(root, ".modal-ux", (dialog) => {
    set(dialog, "role", "dialog");
    set(dialog, "aria-modal", "true");
    set(dialog, "aria-label", "Available authorizations");
  });
  // Their names are other words than those that are seen, and so can't be said to a computer.
  each(root, ".modal-btn[aria-label]", (button) => button.removeAttribute("aria-label"));
  each(root, "svg:not([aria-hidden])", (picture) => picture.setAttribute("aria-hidden", "true"));
}

function nameOf(box) {
  const row = box.closest("[data-param-name]");
  if (row) return row.dataset.paramName;
  if (box.matches(".body-param__text")) return "Request body";
  return box.getAttribute("placeholder") || "Media type";
}

function each(root, selector, mend) {
  for (const element of root.querySelectorAll(selector)) mend(element);
}

/** Only where it isn't so already: each change would be seen as another one. */
function set(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}
