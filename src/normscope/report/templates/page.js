"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];

  // The theme: what the system prefers until the reader chooses.
  const theme = document.querySelector("button.theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const tell = () => (theme.textContent = isDark() ? "Light mode" : "Dark mode");
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    tell();
  });
  system.addEventListener("change", tell);
  theme.hidden = false;
  tell();

  // One tooltip for the page. Texts are set as text, never as markup.
  const tip = Object.assign(document.createElement("div"), { className: "tip", id: "tip", hidden: true });
  tip.setAttribute("role", "tooltip");
  const aloud = Object.assign(document.createElement("div"), { className: "aloud" });
  aloud.setAttribute("aria-live", "polite");
  document.body.append(tip, aloud);

  let held = null; // what the tooltip belongs to while the keyboard keeps it open
  const place = (anchor) => {
    const box = anchor.getBoundingClientRect();
    const size = tip.getBoundingClientRect();
    const gap = 8;
    const below = box.bottom + gap;
    const beside = anchor.matches(".place") && size.width + gap < innerWidth - box.right;
    const left = beside ? box.right + gap : box.left + box.width / 2 - size.width / 2;
    const top = beside ? box.top + gap : below + size.height > innerHeight ? box.top - size.height - gap : below;
    tip.style.left = `${Math.max(gap, Math.min(left, innerWidth - size.width - gap))}px`;
    tip.style.top = `${Math.max(gap, Math.min(top, innerHeight - size.height - gap))}px`;
  };
  const showTip = (anchor, text, keyboard) => {
    const [first, ...rest] = text.split("\n");
    const bold = document.createElement(rest.length ? "b" : "span");
    bold.textContent = first;
    tip.replaceChildren(bold, rest.length ? "\n" + rest.join("\n") : "");
    tip.hidden = false;
    held = keyboard ? anchor : null;
    place(anchor);
  };
  const hideTip = () => {
    tip.hidden = true;
    held = null;
  };
  addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
  // The keyboard scrolls to what it reaches: its tooltip goes along, that of a pointer has lost its place.
  addEventListener("scroll", () => (held ? place(held) : hideTip()), { capture: true, passive: true });

  // A page that scrolls under a resting pointer enters and leaves things, too: only a pointer that moves takes over.
  addEventListener("pointermove", (event) => held && (event.movementX || event.movementY) && hideTip(), { capture: true });

  // Column help: the title becomes a tooltip that the keyboard reaches too.
  for (const button of all("th button[title]")) {
    button.dataset.tip = button.title;
    button.removeAttribute("title");
    button.setAttribute("aria-describedby", "tip");
    button.addEventListener("pointerenter", () => held || showTip(button, button.dataset.tip, false));
    button.addEventListener("pointerleave", () => held || hideTip());
    button.addEventListener("focus", () => button.matches(":focus-visible") && showTip(button, button.dataset.tip, true));
    button.addEventListener("blur", hideTip);
  }

  // Charts: hover, or focus the chart and walk with the arrow keys.
  for (const svg of all(".wide svg.chart")) {
    const places = all(".place", svg);
    const texts = places.map((place) => {
      const title = place.querySelector("title");
      title.remove();
      return title.textContent;
    });
    let here = 0;
    const leave = () => {
      places[here].classList.remove("here");
      hideTip();
    };
    const visit = (index, spoken) => {
      places[here].classList.remove("here");
      here = Math.max(0, Math.min(index, places.length - 1));
      if (spoken) {
        places[here].querySelector(".band").scrollIntoView({ block: "nearest", inline: "nearest" });
        places[here].classList.add("here");
        aloud.textContent = texts[here];
      }
      showTip(places[here], texts[here], spoken);
    };
    places.forEach((place, index) => {
      place.addEventListener("pointerenter", () => held || visit(index, false));
      place.addEventListener("pointerleave", () => held || leave());
    });
    svg.setAttribute("tabindex", "0");
    svg.setAttribute("role", "group");
    svg.setAttribute("aria-label", `${svg.getAttribute("aria-label")}: chart of ${places.length} places, arrow keys move along it`);
    svg.addEventListener("focus", () => svg.matches(":focus-visible") && visit(here, true));
    svg.addEventListener("blur", leave);
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 };
    svg.addEventListener("keydown", (event) => {
      if (!(event.key in steps) || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      visit(here + steps[event.key], true);
    });
  }

  // Curves: a name of the legend brings its curve out, while the pointer is there or until the next click.
  for (const figure of all("figure.curves")) {
    const lists = [".wide .curve", ".narrow .curve", ".names"].map((kind) => all(kind, figure));
    const names = lists[2];
    let kept = -1;
    const choose = (index) => {
      figure.classList.toggle("one", index >= 0);
      lists.forEach((list) => list.forEach((item, place) => item.classList.toggle("chosen", place === index)));
    };
    names.forEach((name, index) => {
      name.addEventListener("pointerenter", () => choose(index));
      name.addEventListener("pointerleave", () => choose(kept));
      name.addEventListener("click", () => choose((kept = kept === index ? -1 : index)));
    });
  }

  // Tables: sort by a header, filter by words.
  const compareText = new Intl.Collator("en", { numeric: true }).compare;
  const key = (cell) => {
    if (!cell) return null;
    if (!("value" in cell.dataset)) return cell.querySelector(".none") ? null : cell.textContent;
    return cell.dataset.value === "" ? null : Number(cell.dataset.value);
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? (a > b) - (a < b) : compareText(a, b));

  for (const table of all("div.table")) {
    const body = table.querySelector("tbody");
    const rows = [...body.rows];
    const heads = all("th", table);
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const order = { none: "ascending", ascending: "descending", descending: "none" }[head.getAttribute("aria-sort")];
        heads.forEach((other) => other.setAttribute("aria-sort", other === head ? order : "none"));
        const keyed = rows.map((row) => [key(row.cells[column]), row]);
        const sign = order === "descending" ? -1 : 1;
        // What was not measured comes last in either direction; equal rows stay in the order they were in.
        if (order !== "none") {
          keyed.sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : sign * compare(a, b)));
        }
        body.append(...keyed.map(([, row]) => row));
      });
    });

    const filter = table.querySelector(".filter");
    if (!filter) continue;
    const input = filter.querySelector("input");
    const count = filter.querySelector("output");
    const texts = new Map(rows.map((row) => [row, [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase()]));
    const narrow = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        row.hidden = !words.every((word) => texts.get(row).includes(word));
        shown += !row.hidden;
      }
      count.textContent = words.length ? `${shown} of ${rows.length} rows` : `${rows.length} rows`;
    };
    input.addEventListener("input", narrow);
    filter.hidden = false;
    narrow();
  }

  // What is folded opens for whoever follows a link into it, and for printing.
  const unfold = (hash) => {
    const target = document.getElementById(decodeURIComponent(hash.slice(1)));
    let fold = target && (target.closest("details") ?? target.querySelector(":scope > details"));
    for (; fold; fold = fold.parentElement.closest("details")) fold.open = true;
  };
  for (const link of all('a[href^="#"]')) link.addEventListener("click", () => unfold(link.hash));
  if (location.hash) {
    unfold(location.hash);
    document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
  }
  let closed = [];
  addEventListener("beforeprint", () => (closed = all("details:not([open])")).forEach((fold) => (fold.open = true)));
  addEventListener("afterprint", () => closed.forEach((fold) => (fold.open = false)));

  // The contents follow the reader.
  const links = new Map(all("nav a").map((link) => [link.getAttribute("href").slice(1), link]));
  const watcher = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting || !links.has(entry.target.id)) continue;
        links.forEach((link) => link.removeAttribute("aria-current"));
        links.get(entry.target.id).setAttribute("aria-current", "true");
      }
    },
    { rootMargin: "-10% 0px -75% 0px" },
  );
  all("main > section").forEach((section) => watcher.observe(section));
})();
