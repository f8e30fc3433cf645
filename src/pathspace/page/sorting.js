"use strict";
// Tables: a click or a key on a heading sorts the rows below it, each group of rows in itself;
// up, down, and back to the order of the page.
(() => {
  const NEXT = { none: "ascending", ascending: "descending", descending: "none" };
  // Numbers as they are printed: 1,234  0.5 ± 0.1  1e-07  10^345.12  inf  97%
  const POWER = /^10\^(-?[\d.]+)/;
  const PLAIN = /^[-+−]?(\d[\d,]*\.?\d*|\.\d+)(e[-+]?\d+)?/i;

  function parse(text) {
    const power = POWER.exec(text);
    if (power) return { sign: 1, log: Number(power[1]), value: 10 ** Number(power[1]) };
    const plain = PLAIN.exec(text);
    let value = plain ? Number(plain[0].replaceAll(",", "").replace("−", "-")) : NaN;
    if (/^[-−]?inf/.test(text)) value = /^[-−]/.test(text) ? -Infinity : Infinity;
    if (Number.isNaN(value)) return null;
    return { sign: Math.sign(value), log: Math.log10(Math.abs(value)), value };
  }

  function compareNumbers(a, b) {
    if (Number.isFinite(a.value) && Number.isFinite(b.value) && a.value && b.value) {
      return a.value - b.value;
    }
    // Beyond the range of floats only the logarithms differ.
    return a.sign - b.sign || (a.sign ? a.sign * (a.log - b.log || 0) : 0) || 0;
  }

  const WORDS = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

  function sort(table, column, number, order) {
    for (const body of table.tBodies) {
      const rows = [...body.rows].filter((row) => !row.classList.contains("group"));
      const keyed = rows.map((row) => {
        const text = row.cells[column].textContent.trim();
        return { row, text, key: number ? parse(text) : text && text !== "–" ? text : null };
      });
      keyed.sort((a, b) => {
        if (order === "none") return a.row.dataset.place - b.row.dataset.place;
        if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
        const found = number ? compareNumbers(a.key, b.key) : WORDS.compare(a.key, b.key);
        return order === "ascending" ? found : -found;
      });
      body.append(...keyed.map(({ row }) => row));
    }
  }

  for (const table of document.querySelectorAll("figure.table table")) {
    const status = document.createElement("p");
    status.className = "hidden";
    status.setAttribute("role", "status");
    table.parentElement.after(status);
    for (const body of table.tBodies) {
      [...body.rows].forEach((row, place) => { row.dataset.place = place; });
    }
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const order = NEXT[head.getAttribute("aria-sort")];
        for (const other of heads) other.setAttribute("aria-sort", other === head ? order : "none");
        sort(table, column, head.classList.contains("number"), order);
        status.textContent =
          order === "none" ? "rows in their first order" : `sorted by ${button.textContent}, ${order}`;
      });
    });
  }
})();
