// Live pages: when the broker sends an event, the page is loaded again, and parts that differ are replaced. Forms with
// data-post go to the API as JSON. Keys: / searches, 1 to 9 open a page, Escape closes a form.

const live = document.querySelector("#live");
const token = document.querySelector('meta[name="token"]')?.content ?? "";
let asking = false;
let again = false;

/** Is the user editing or selecting something that a reload would destroy? */
const isBusy = () => {
  const at = document.activeElement;
  return document.querySelector("details.action[open]") || !getSelection().isCollapsed ||
    (at && at.closest("main") && /^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName));
};

async function refresh() {
  if (asking) { again = true; return; }
  asking = true;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    const found = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!isBusy()) replace(document.querySelector("main"), found.querySelector("main"));
    replace(document.querySelector(".clock"), found.querySelector(".clock"));
  } catch {
    // The event source shows that the broker is away.
  } finally {
    asking = false;
    if (again) { again = false; refresh(); }
  }
}

/** Change HERE to FOUND part by part, so that focus and scrolling stay. */
function replace(here, found) {
  if (!here || !found || here.isEqualNode(found)) return;
  if (here.nodeName === "OUTPUT" && found.nodeName === "OUTPUT" && !here.closest("table")) return;  // Keep the result of an action.
  const old = [...here.childNodes];
  const fresh = [...found.childNodes];
  const alike = here.nodeName === found.nodeName && old.length === fresh.length && old.length > 0 &&
    old.every((node, at) => node.nodeName === fresh[at].nodeName);
  if (!alike) { here.replaceWith(found.cloneNode(true)); return; }
  old.forEach((node, at) => {
    if (node.nodeType === Node.TEXT_NODE) { if (node.data !== fresh[at].data) node.data = fresh[at].data; }
    else replace(node, fresh[at]);
  });
  for (const { name, value } of found.attributes ?? []) if (here.getAttribute(name) !== value) here.setAttribute(name, value);
}

if (live && window.EventSource && !document.querySelector("main p.error:only-child")) {
  const events = new EventSource(new URL("api/events", import.meta.url));
  events.addEventListener("open", () => { live.textContent = "live"; live.className = ""; });
  events.addEventListener("changed", () => { if (!document.hidden) refresh(); });
  events.addEventListener("error", () => { live.textContent = "away"; live.className = "off"; });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  addEventListener("pagehide", () => events.close());
}

/** Return the values of FORM, as the API expects them. */
function valuesOf(form) {
  const body = {};
  for (const input of form.elements) {
    const { name, value } = input;
    const kind = input.dataset?.kind ?? "text";
    if (!name) continue;
    if (kind === "flag") body[name] = input.checked;
    else if (kind === "choice") body[value] = true;
    else if (value === "") continue;
    else if (kind === "number") body[name] = Number(value);
    else if (kind === "lines") body[name] = value.split(",").map((part) => part.trim()).filter(Boolean);
    else if (kind === "numbers") body[name] = value.split(",").map(Number);
    else body[name] = value;
  }
  return body;
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.dataset.post) return;
  event.preventDefault();
  if (form.dataset.confirm && !confirm(form.dataset.confirm)) return;
  const output = form.querySelector("output");
  output.className = "";
  output.textContent = "…";
  const headers = { "content-type": "application/json", "x-pocketmq-token": token };
  try {
    const body = valuesOf(form);
    const parts = [];
    for (;;) {  // Large requests are answered in parts.
      const answer = await fetch(form.dataset.post, { method: "POST", headers, body: JSON.stringify(body) });
      const found = await answer.json();
      if (!answer.ok) throw new Error([...parts.map(counted), found.message].join("\n"));
      parts.push(found);
      if (typeof found.next_from !== "number") break;
      Object.assign(body, { from: found.next_from, below: found.below });
      output.textContent = `${parts.length} parts …`;
    }
    output.textContent = parts.length > 1 ? parts.map(counted).join("\n") : summary(parts[0]);
  } catch (error) {
    output.className = "error";
    output.textContent = error instanceof TypeError ? `the broker did not answer: ${error.message}` : error.message;
  }
});

/** Return the number of rows in FOUND that succeeded, and that failed. */
function counted(found) {
  const rows = Object.values(found).find(Array.isArray) ?? [];
  const failed = rows.filter((one) => one.error).length;
  return `${rows.length - failed} done${failed ? `, ${failed} failed: ${rows.find((one) => one.error).error}` : ""}`;
}

/** Return the result of an action, one line per row. */
function summary(found) {
  const line = (one) => Object.entries(one).filter(([, value]) => value !== null && typeof value !== "object")
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`).join(", ");
  const lists = Object.values(found).filter(Array.isArray).flat().filter((one) => typeof one === "object");
  return [line(found), ...lists.map(line)].filter(Boolean).join("\n") || "done";
}

document.addEventListener("toggle", (event) => {
  if (event.target.open) event.target.querySelector("input, textarea, select")?.focus();
}, true);

document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape") {
    for (const open of document.querySelectorAll("details.action[open]")) {
      open.open = false;
      open.querySelector("summary").focus();
    }
  } else if (!typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const links = document.querySelectorAll("header nav a");
    if (event.key === "/") {
      const box = document.querySelector('[role="search"] input');
      if (box) { event.preventDefault(); box.focus(); }
    } else if (links[Number(event.key) - 1]) links[Number(event.key) - 1].click();
  }
});
