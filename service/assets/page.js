// Paste a picture anywhere on the page; announce results, and bring them into view on a phone.
document.addEventListener("paste", (event) => {
  const files = event.clipboardData ? event.clipboardData.files : [];
  const input = document.querySelector("#oa-upload input[type=file]");
  if (!files.length || !input) return;
  const transfer = new DataTransfer();
  transfer.items.add(files[0]);
  input.files = transfer.files;
  input.dispatchEvent(new Event("change", { bubbles: true }));
  event.preventDefault();
});

new MutationObserver((_, waiting) => {
  const result = document.querySelector("#oa-result");
  if (!result) return;
  waiting.disconnect();
  result.setAttribute("role", "status");
  result.setAttribute("aria-live", "polite");
  new MutationObserver(() => {
    if (!result.querySelector("[data-verdict]")) return;
    const top = result.getBoundingClientRect().top;
    if (top < 0 || top > window.innerHeight * 0.6) result.scrollIntoView({ block: "start" });
  }).observe(result, { childList: true, subtree: true });
}).observe(document.documentElement, { childList: true, subtree: true });
