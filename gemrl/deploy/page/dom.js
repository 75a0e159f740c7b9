// Elements out of plain values. Text goes in as text, never as markup: episode ids come from clients.

export const byId = (id) => document.getElementById(id);

/** An element with properties, attributes (those with a dash, and role) and children. */
export function make(tag, given = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name.includes("-") || name === "role" || name === "for") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** An SVG element with attributes and children. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Write text only where it changed, so that a screen reader is not told the same again. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** The options of a select, each [value, text]. */
export function setOptions(select, options, chosen) {
  select.replaceChildren(...options.map(([value, text]) => make("option", { value, textContent: text })));
  select.value = chosen;
}

/**
 * Copy the text of a read-only text area. It stays selected, so that where neither way of copying
 * is allowed a key press copies it. Answers whether it was copied.
 */
export async function copyFrom(area) {
  area.focus();
  area.select();
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(area.value);
      return true;
    } catch {
      // No permission: the older way may still be open.
    }
  }
  return document.execCommand("copy");
}

/** Make a button copy an area's text, and say on the button what came of it. */
export function copiesFrom(button, area) {
  const name = button.textContent;
  button.addEventListener("click", async () => {
    button.textContent = name;
    const copied = await copyFrom(area);
    if (copied) button.focus();
    button.textContent = copied ? "Copied" : "Selected: press Ctrl+C";
    setTimeout(() => { button.textContent = name; }, 2500);
  });
}

/** Call `action` at most once a frame, however often it is asked for. */
export function oncePerFrame(action) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      action();
    });
  };
}
