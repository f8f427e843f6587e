"use strict";
// One tooltip for all elements with `data-tip`: it follows the pointer's target and the focus, and Escape hides it.

const TIP = document.createElement("div");
TIP.className = "tip";
TIP.hidden = true;
TIP.setAttribute("aria-hidden", "true"); // screen readers have the text beside the element
document.body.append(TIP);

function showTip(target) {
  const owner = target?.closest?.("[data-tip]");
  TIP.hidden = !owner;
  if (!owner) return;
  TIP.textContent = owner.dataset.tip;
  const box = owner.getBoundingClientRect();
  TIP.style.left = `${Math.max(8, Math.min(box.left, innerWidth - TIP.offsetWidth - 8))}px`;
  const below = box.bottom + 6;
  TIP.style.top = `${below + TIP.offsetHeight > innerHeight ? Math.max(4, box.top - TIP.offsetHeight - 6) : below}px`;
}

for (const name of ["mouseover", "focusin"]) document.addEventListener(name, (event) => showTip(event.target));
for (const name of ["focusout", "scroll"]) document.addEventListener(name, () => showTip(null), true);
document.addEventListener("keydown", (event) => event.key === "Escape" && showTip(null));
