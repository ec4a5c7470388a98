// Tables that sort: the head of a column is a button, its order is said to screen readers.

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = element("button", { type: "button" }, ...head.childNodes);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const upwards = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", upwards ? "ascending" : "descending");
      sortRows(table.tBodies[0], column, upwards ? 1 : -1);
    });
  });
}

// Numbers by size, other cells after them by their letters, empty ones last.
function sortRows(body, column, sign) {
  const text = (row) => row.cells[column].textContent.trim();
  const value = (row) => row.cells[column].dataset.value;
  const rank = (row) => (value(row) !== "" ? 0 : text(row) && text(row) !== "–" ? 1 : 2);
  const rows = [...body.rows].sort((a, b) => {
    if (rank(a) !== rank(b)) return rank(a) - rank(b);
    const order = rank(a) ? text(a).localeCompare(text(b)) : Number(value(a)) - Number(value(b));
    return sign * order;
  });
  body.append(...rows);
}
