// Nodes of the page. Text is always set as text: nothing that the daemon says becomes markup.

export const at = (id) => document.getElementById(id);

export function node(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== undefined && child !== ""));
  return made;
}

/** Sets a text only where it changed, so that selections and screen readers are left alone. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A table whose rows stay the same nodes, so that the keyboard's focus stays where it is. */
export class Table {
  /** A column: `head`, `show` (a row's text, or a list of a text and a smaller one below), `kind` (a class), or `make`
   *  (the cell's nodes, made once for each row; its function `of` gives what the row says now, and a node that has a
   *  function `renew` is told when that changed). */
  constructor(place, columns, empty) {
    this.columns = columns;
    this.rows = new Map();
    this.body = node("tbody");
    const heads = columns.map(({ head, kind = "" }) => node("th", { scope: "col", class: kind }, head || node("span", { class: "unseen" }, "What can be done")));
    this.table = node("table", { class: "rows" }, node("thead", {}, node("tr", {}, ...heads)), this.body);
    this.empty = node("p", { class: "empty" }, empty);
    place.replaceChildren(this.table, this.empty);
  }

  /** Shows these rows; each has a `key`. */
  show(rows) {
    this.table.hidden = rows.length === 0;
    this.empty.hidden = rows.length > 0;
    const keys = new Set(rows.map((row) => row.key));
    for (const [key, line] of this.rows) {
      if (!keys.has(key)) { line.remove(); this.rows.delete(key); }
    }
    rows.forEach((row, place) => {
      let line = this.rows.get(row.key);
      if (!line) {
        line = node("tr");
        line.row = row;
        line.append(...this.columns.map((column) => this.cell(column, line)));
        this.rows.set(row.key, line);
      }
      line.row = row;
      line.dataset.phase = row.phase ?? "";
      if (this.body.children[place] !== line) this.body.insertBefore(line, this.body.children[place] ?? null);
      this.columns.forEach((column, index) => {
        const cell = line.children[index];
        if (column.show) this.fill(cell, column.show(row));
        else for (const made of cell.children) made.renew?.();
      });
    });
  }

  cell(column, line) {
    const cell = node("td", { class: column.kind ?? "", "data-head": column.head });
    if (column.make) cell.append(...column.make(() => line.row));
    return cell;
  }

  fill(cell, shown) {
    const [text, small] = Array.isArray(shown) ? shown : [shown];
    if (cell.shown === `${text}\n${small}`) return;
    cell.shown = `${text}\n${small}`;
    const whole = node("span", {}, text);
    if (small) whole.append(node("small", {}, small));
    cell.replaceChildren(whole);
  }
}
