// The page itself: theme, commands to copy, and the latest figures while a run is served.

const THEME = "unitsphere-theme";
const EVERY = 4000;
let groups = [];

function stored(value) {
  try {
    if (value !== undefined) localStorage.setItem(THEME, value);
    return localStorage.getItem(THEME);
  } catch {
    return null; // a browser may forbid it to a page from a file
  }
}

function setTheme(theme) {
  if (theme === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = theme;
  groups.forEach((group) => group.views.forEach((view) => view.draw()));
}

function themeSwitch() {
  const themes = [["auto", "system"], ["light", "Light"], ["dark", "Dark"]];
  const now = stored() || "auto";
  const select = element("select", { id: "theme" }, ...themes.map(
    ([value, text]) => element("option", { value, selected: value === now }, text),
  ));
  select.addEventListener("change", () => {
    stored(select.value);
    setTheme(select.value);
  });
  document.getElementById("switches").append(element("label", { class: "quiet" }, "theme ", select));
  setTheme(now);
}

function copyButton(command) {
  const line = command.querySelector("code");
  const button = element("button", { type: "button", class: "copy" }, "copy");
  button.addEventListener("click", () => {
    getSelection().selectAllChildren(line);
    const done = () => { button.textContent = "copied"; };
    if (navigator.clipboard) navigator.clipboard.writeText(line.textContent).then(done, () => {});
    else button.textContent = "selected";
  });
  command.append(button);
}

function dress(kept = []) {
  const data = JSON.parse(document.getElementById("data").textContent);
  document.querySelectorAll("table[data-sort]").forEach(sortable);
  document.querySelectorAll(".command").forEach(copyButton);
  groups = [...document.querySelectorAll(".figures")].map(
    (root, number) => new Group(root, number, data, kept[number]),
  );
}

// The new figures in the place of the old: open parts, zoom and focus stay as they were.
function replaceMain(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html");
  const main = document.getElementById("main");
  const open = [...main.querySelectorAll("details")].map((part) => part.open);
  const focus = document.activeElement && document.activeElement.id;
  const kept = groups.map(({ state }) => state);
  groups.forEach((group) => group.views.forEach(({ plot }) => plot && plot.destroy()));
  main.replaceChildren(...fresh.getElementById("main").childNodes);
  [...main.querySelectorAll("details")].forEach((part, place) => { part.open = Boolean(open[place]); });
  document.querySelector("footer").replaceWith(fresh.querySelector("footer"));
  document.body.dataset.live = fresh.body.dataset.live;
  const same = kept.length === main.querySelectorAll(".figures").length;
  dress(same ? kept : []);
  if (focus && document.getElementById(focus)) document.getElementById(focus).focus({ preventScroll: true });
}

function follow() {
  const live = document.getElementById("live");
  const pause = element("button", { type: "button", id: "pause", "aria-pressed": "false" }, "pause");
  pause.addEventListener("click", () => {
    const on = pause.getAttribute("aria-pressed") !== "true";
    pause.setAttribute("aria-pressed", String(on));
    live.textContent = on ? "paused" : "live";
  });
  document.getElementById("switches").prepend(pause);
  live.textContent = "live";
  const look = async () => {
    if (document.hidden || pause.getAttribute("aria-pressed") === "true") return;
    try {
      const version = await (await fetch("version", { cache: "no-store" })).text();
      if (version !== document.body.dataset.live) {
        replaceMain(await (await fetch("./", { cache: "no-store" })).text());
      }
      live.textContent = "live";
    } catch {
      live.textContent = "the server has stopped; this is its last page";
    }
  };
  setInterval(look, EVERY);
}

document.documentElement.classList.add("js");
dress();
themeSwitch();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(stored() || "auto"));
if (document.body.dataset.live) follow();
