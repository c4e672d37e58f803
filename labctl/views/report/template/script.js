"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("with-js");
  const SVG = "http://www.w3.org/2000/svg";
  const tip = document.getElementById("tip");

  // Names and figures on hover, tap and focus.
  const showTip = (title, rest, x, y) => {
    tip.replaceChildren();
    if (title) {
      const strong = document.createElement("b");
      strong.textContent = title;
      tip.append(strong);
    }
    tip.append(rest);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, x - box.width / 2), root.clientWidth - box.width - 8);
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${y - box.height - 12 > 4 ? y - box.height - 12 : y + 18}px`;
  };
  const hideTip = () => { tip.hidden = true; };
  const tipOf = (target, x, y) => {
    const bar = target.closest(".bar");
    const noted = target.closest("[data-tip]");
    if (bar) {
      const name = bar.dataset.label;
      showTip(name, bar.getAttribute("aria-label").slice(name.length + 2), x, y);
    } else if (noted) {
      showTip("", noted.dataset.tip, x, y);
    }
    return Boolean(bar || noted);
  };
  document.addEventListener("pointermove", (event) => {
    if (event.pointerType === "mouse" && !tipOf(event.target, event.clientX, event.clientY)) hideTip();
  });
  document.addEventListener("pointerup", (event) => {
    if (event.pointerType === "mouse") return;
    const term = event.target.closest("abbr[title]");
    if (term) showTip(term.textContent, term.title, event.clientX, event.clientY);
    else if (!tipOf(event.target, event.clientX, event.clientY)) hideTip();
  });
  document.addEventListener("scroll", hideTip, { passive: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

  // Charts: zoom and steps from bar to bar.
  const ticksOf = (begin, end, most) => {
    const rough = (end - begin) / most;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((k) => k * power).find((each) => each >= rough * (1 - 1e-9));
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const found = [];
    for (let k = Math.ceil(begin / step - 1e-9); k * step <= end + step * 1e-9; k += 1) {
      found.push([k * step, (k * step).toFixed(digits)]);
    }
    return found;
  };
  const element = (name, attributes) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  for (const chart of document.querySelectorAll("figure.chart[data-begin]")) {
    const whole = [Number(chart.dataset.begin), Number(chart.dataset.end)];
    const bars = [...chart.querySelectorAll(".bar")];
    const tracks = [...chart.querySelectorAll(".track")];
    let [begin, end] = whole;
    const wide = () => tracks[0].getBoundingClientRect().width;
    const letter = new Map();

    const draw = () => {
      const span = end - begin;
      const pixels = wide() || 1000;
      const least = (1.5 / pixels) * 100;
      for (const bar of bars) {
        const start = Number(bar.dataset.start);
        const length = Number(bar.dataset.length);
        const share = (length / span) * 100;
        bar.setAttribute("x", `${((start - begin) / span) * 100}%`);
        bar.setAttribute("width", `${Math.max(share, least)}%`);
        const seen = Math.min(start + length, end) - Math.max(start, begin);
        bar.toggleAttribute("data-out", seen < 0);
        const text = bar.querySelector("text");
        const shift = Math.max(0, ((begin - start) / span) * pixels);
        text.setAttribute("x", shift + 5);
        const need = letter.get(bar) ?? bar.dataset.label.length * 6.3;
        text.classList.toggle("off", (seen / span) * pixels < need + 10);
      }
      const marks = ticksOf(begin, end, Math.max(3, Math.min(10, pixels / 75)));
      const place = (value) => `${((value - begin) / span) * 100}%`;
      chart.querySelector(".ticks").replaceChildren(...marks.map(([value, label]) => {
        const text = element("text", { x: place(value), y: 11 });
        if ((value - begin) / span > 0.97) text.setAttribute("class", "last");
        text.textContent = `${label} ${chart.dataset.unit}`;
        return text;
      }));
      for (const track of tracks) {
        track.querySelector(".grid").replaceChildren(...marks.map(([value]) =>
          element("line", { x1: place(value), x2: place(value), y1: 0, y2: "100%" })));
      }
      const all = begin === whole[0] && end === whole[1];
      for (const kind of ["out", "left", "right", "all"]) {
        const button = chart.querySelector(`[data-zoom="${kind}"]`);
        button.disabled = all || (kind === "left" && begin <= whole[0]) || (kind === "right" && end >= whole[1]);
      }
    };
    const view = (from, to) => {
      const span = Math.max(Math.min(to - from, whole[1] - whole[0]), (whole[1] - whole[0]) / 1e5);
      begin = Math.min(Math.max(from, whole[0]), whole[1] - span);
      end = begin + span;
      hideTip();
      draw();
    };
    const scale = (factor, at = 0.5) => {
      const middle = begin + (end - begin) * at;
      view(middle - (middle - begin) * factor, middle + (end - middle) * factor);
    };
    const move = (part) => view(begin + (end - begin) * part, end + (end - begin) * part);
    const acts = {
      in: () => scale(0.5), out: () => scale(2), left: () => move(-0.5), right: () => move(0.5),
      all: () => view(...whole),
    };
    chart.addEventListener("click", (event) => {
      const button = event.target.closest("[data-zoom]");
      if (button) acts[button.dataset.zoom]();
    });
    chart.addEventListener("dblclick", (event) => { if (event.target.closest(".track")) acts.all(); });
    chart.addEventListener("wheel", (event) => {
      const track = event.target.closest(".track");
      if (!track || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      const box = track.getBoundingClientRect();
      scale(event.deltaY > 0 ? 1.25 : 0.8, (event.clientX - box.left) / box.width);
    }, { passive: false });

    // Drag over a lane: zoom to what was dragged over.
    let drag = null;
    for (const track of tracks) {
      track.addEventListener("pointerdown", (event) => {
        if (event.pointerType !== "mouse" || event.button !== 0) return;
        const box = track.getBoundingClientRect();
        drag = { from: event.clientX, box, id: event.pointerId, band: element("rect", { class: "band", y: 0, height: "100%" }) };
      });
      track.addEventListener("pointermove", (event) => {
        if (!drag || drag.id !== event.pointerId || Math.abs(event.clientX - drag.from) < 5) return;
        if (!drag.band.isConnected) {
          track.append(drag.band);
          track.setPointerCapture(event.pointerId);
        }
        const left = Math.max(0, Math.min(event.clientX, drag.from) - drag.box.left);
        drag.band.setAttribute("x", left);
        drag.band.setAttribute("width", Math.abs(event.clientX - drag.from));
      });
      track.addEventListener("pointerup", (event) => {
        if (drag && drag.band.isConnected) {
          const at = (x) => begin + ((x - drag.box.left) / drag.box.width) * (end - begin);
          const [low, high] = [drag.from, event.clientX].sort((a, b) => a - b);
          drag.band.remove();
          view(at(low), at(high));
        }
        drag = null;
      });
      track.addEventListener("pointercancel", () => {
        if (drag) drag.band.remove();
        drag = null;
      });
    }

    // One bar is a tab stop; arrows go on from it.
    let current = 0;
    const focus = (index) => {
      bars[current].setAttribute("tabindex", "-1");
      current = (index + bars.length) % bars.length;
      const bar = bars[current];
      const start = Number(bar.dataset.start);
      const length = Number(bar.dataset.length);
      if (start > end || start + length < begin) move((start + length / 2 - (begin + end) / 2) / (end - begin));
      bar.setAttribute("tabindex", "0");
      bar.focus({ preventScroll: false });
    };
    bars[0].setAttribute("tabindex", "0");
    chart.addEventListener("focusin", (event) => {
      const bar = event.target.closest(".bar");
      if (!bar) return;
      const index = bars.indexOf(bar);
      if (index !== current) {
        bars[current].setAttribute("tabindex", "-1");
        bar.setAttribute("tabindex", "0");
        current = index;
      }
      const box = bar.getBoundingClientRect();
      tipOf(bar, box.left + Math.min(box.width, 200) / 2, box.top);
    });
    chart.addEventListener("focusout", hideTip);
    chart.addEventListener("keydown", (event) => {
      const onBar = event.target.closest(".bar");
      const keys = { "+": acts.in, "=": acts.in, "-": acts.out, 0: acts.all };
      if (onBar) {
        keys.ArrowRight = () => focus(current + 1);
        keys.ArrowLeft = () => focus(current - 1);
        keys.Home = () => focus(0);
        keys.End = () => focus(bars.length - 1);
      }
      if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      keys[event.key]();
    });

    draw();
    // Measure the labels once: a letter's width differs between fonts.
    for (const bar of bars) {
      const text = bar.querySelector("text");
      if (!text.classList.contains("off")) letter.set(bar, text.getComputedTextLength());
    }
    draw();
    let asked = 0;
    new ResizeObserver(() => {
      cancelAnimationFrame(asked);
      asked = requestAnimationFrame(draw);
    }).observe(chart);
  }

  // Tables that sort.
  const sorter = (cell, act) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...cell.childNodes);
    cell.append(button);
    button.addEventListener("click", () => {
      const down = cell.getAttribute("aria-sort") === "ascending"
        || (!cell.hasAttribute("aria-sort") && cell.classList.contains("num"));
      for (const each of cell.parentElement.children) each.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      act(down ? -1 : 1);
    });
  };
  const compare = (a, b, sign) => {
    if (a === b) return 0;
    if (a === "") return 1;
    if (b === "") return -1;
    const [x, y] = [Number(a), Number(b)];
    return sign * (Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y);
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    for (const cell of table.tHead.rows[0].cells) {
      if (!cell.textContent.trim()) continue;
      const column = cell.cellIndex;
      const value = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent.trim();
      sorter(cell, (sign) => {
        body.append(...[...body.rows].sort((a, b) => compare(value(a), value(b), sign)));
      });
    }
  }

  // Every step, a page at a time.
  const stepsTable = document.getElementById("steps-table");
  if (stepsTable) {
    const rows = JSON.parse(document.getElementById("steps-data").textContent);
    const pager = document.querySelector(".pager");
    const size = pager ? Number(pager.dataset.rows) : rows.length;
    const grouped = (value, digits) => {
      const [whole, rest] = value.toFixed(digits).split(".");
      const parted = whole.replace(/\B(?=(\d{3})+$)/g, "\u202f");
      return rest ? `${parted}.${rest}` : parted;
    };
    const written = [String, (kind) => kind.replaceAll("_", " "), (s) => grouped(s, 3), (ms) => grouped(ms, 3)];
    let page = 0;
    const fill = () => {
      stepsTable.tBodies[0].replaceChildren(...rows.slice(page * size, (page + 1) * size).map((row) => {
        const line = document.createElement("tr");
        row.forEach((value, column) => {
          const cell = line.insertCell();
          cell.textContent = written[column](value);
          if (column !== 1) cell.className = "num";
        });
        return line;
      }));
      if (!pager) return;
      const last = Math.ceil(rows.length / size) - 1;
      pager.querySelector("span").textContent =
        `rows ${page * size + 1} to ${Math.min(rows.length, (page + 1) * size)} of ${rows.length}`;
      pager.querySelector('[data-page="-1"]').disabled = page === 0;
      pager.querySelector('[data-page="1"]').disabled = page === last;
    };
    for (const cell of stepsTable.tHead.rows[0].cells) {
      const key = Number(cell.dataset.key);
      sorter(cell, (sign) => {
        rows.sort((a, b) => compare(String(a[key]), String(b[key]), sign));
        page = 0;
        fill();
      });
    }
    if (pager) {
      pager.addEventListener("click", (event) => {
        const button = event.target.closest("[data-page]");
        if (!button) return;
        page += Number(button.dataset.page);
        fill();
      });
    }
    fill();
  }

  // Commands to copy.
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "selected";
      }
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
  }

  // The section in view, marked in the list of sections.
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const mark = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id).setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-15% 0px -80% 0px" });
  for (const section of document.querySelectorAll("main > section")) mark.observe(section);

  // On paper everything is open.
  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details")) each.open = true;
  });
})();
