// What lies under the reading line: a small box next to it, and the same words for screen readers.

const MOST_READ = 10;

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// Name, place and value of each line at the cursor, the nearest to the pointer first.
function readings(u, columns, figure) {
  const { left, top, idxs } = u.cursor;
  if (left < 0 || !idxs) return null;
  const found = [];
  columns.forEach(({ series, role }, place) => {
    const row = idxs[place + 1];
    if (role !== "main" || row === null || row === undefined) return;
    const y = u.data[place + 1][row];
    if (y === null || y === undefined) return;
    found.push({ series, x: u.data[0][row], y, far: Math.abs(u.valToPos(y, "y") - top) });
  });
  const kept = found.sort((a, b) => a.far - b.far).slice(0, MOST_READ);
  kept.sort((a, b) => b.y - a.y);
  if (!kept.length) return null;
  const centre = u.posToVal(left, "x");
  const near = kept.reduce((a, b) => (Math.abs(b.x - centre) < Math.abs(a.x - centre) ? b : a));
  return { x: near.x, rows: kept, left: u.valToPos(near.x, "x"), more: found.length - kept.length };
}

function placeName(figure, axis, x) {
  const word = figure.ticks.find(([place]) => place === x);
  if (word) return word[1];
  return `${short(x)} ${axisOf(figure, axis).label}`;
}

function showReadings(box, u, found, figure, axis) {
  box.hidden = !found;
  if (!found) return;
  const rows = found.rows.map(({ series, y }) => element(
    "div", {},
    element("i", { class: `swatch s${series.colour % 6}` }),
    element("span", {}, series.name),
    element("b", {}, short(y)),
  ));
  if (found.more) rows.push(element("small", {}, `and ${found.more} more`));
  box.replaceChildren(element("strong", {}, placeName(figure, axis, found.x)), ...rows);
  const right = found.left > u.over.clientWidth / 2;
  box.style.left = right ? "" : `${found.left + 14}px`;
  box.style.right = right ? `${u.over.clientWidth - found.left + 14}px` : "";
}

function spoken(found, figure, axis) {
  const values = found.rows.map(({ series, y }) => `${series.name} ${short(y)}`);
  return `${placeName(figure, axis, found.x)}: ${values.join(", ")}`;
}
