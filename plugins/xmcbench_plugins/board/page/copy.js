"use strict";
// Buttons that copy the text of an element: `data-copy` is its selector.

// Copies a text; where the browser forbids that, shows it selected below.
async function copy(text, what) {
  const [done, place] = [document.getElementById("done"), document.getElementById("copied")];
  try {
    await navigator.clipboard.writeText(text);
    done.textContent = `${what} copied`;
  } catch {
    place.value = text;
    place.hidden = false;
    place.select();
    done.textContent = `${what} shown below`;
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (button) copy(document.querySelector(button.dataset.copy).textContent, button.dataset.what ?? "Citation");
});
