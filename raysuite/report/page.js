"use strict";
(() => {
  const {config, plots} = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const search = document.getElementById("search");

  const shows = (key) => {
    const words = search ? search.value.toLowerCase().split(/\s+/).filter(Boolean) : [];
    return words.every((word) => key.toLowerCase().includes(word));
  };

  // A trace without a key, such as an ideal line, is always shown.
  const anyShows = (keys) => !keys || keys.split("\n").some(shows);

  // The points that match the search. In a trace, lists are columns; other values hold for all points.
  const pointsOf = (traces, keep) => traces.flatMap((trace) => {
    const columns = Object.keys(trace).filter((name) => Array.isArray(trace[name]));
    const points = trace[columns[0]].map((_, place) => Object.assign(
      {...trace}, Object.fromEntries(columns.map((name) => [name, trace[name][place]]))));
    return points.filter((point) => anyShows(point.key) && keep(point));
  });

  const views = {};
  const draw = async (name) => {
    const div = document.getElementById(`plot-${name}`);
    const plot = plots[name];
    const width = root.classList.contains("printing") ? 660 : div.clientWidth;
    const log = document.querySelector(`[data-log="${name}"]`);
    const spec = structuredClone(plot.spec);
    const unit = spec.spec || spec;
    if (log && log.checked) unit.encoding.y.scale = {type: "log", nice: true};
    const points = pointsOf(plot.traces, (point) => !(log && log.checked) || point.y > 0);
    const panels = new Set(points.filter((point) => point.kind !== "level").map((point) => point.panel));
    const values = points.filter((point) => panels.has(point.panel));
    if (views[name]) views[name].finalize();
    if (!values.length) {
      div.replaceChildren("Nothing is left of it by the search.");
      return;
    }
    const series = new Set(values.map((point) => point.series));
    for (const layer of unit.layer) {
      for (const {field, scale} of Object.values(layer.encoding)) {
        if (field !== "series" || !scale) continue;
        const keep = scale.domain.map((entry) => series.has(entry));
        scale.range = scale.range.filter((_, place) => keep[place]);
        scale.domain = scale.domain.filter((_, place) => keep[place]);
      }
    }
    const labelWidth = Math.min(280, Math.max(0.4 * width, width - 320));
    const legendWidth = width - (plot.label_px ? labelWidth : 60);  // it begins at the y axis
    const entryWidth = 6.6 * plot.longest + 44;
    if (spec.spec) {
      spec.columns = Math.max(1, Math.min(plot.columns, panels.size, Math.floor(width / 240)));
      unit.width = width / spec.columns - 74;
      spec.facet.header.labelLimit = width / spec.columns - 30;
    } else {
      const fits = entryWidth <= legendWidth;  // if not, a wider plot is shown smaller, not cut
      spec.width = fits ? width : legendWidth;
      if (plot.label_px) spec.height = plot.label_px * new Set(values.map((point) => point.y)).size;
      if (fits) spec.autosize = {type: "fit-x", contains: "padding"};
    }
    spec.params = [
      {name: "legendColumns", value: Math.max(1, Math.floor(legendWidth / entryWidth))},
      {name: "labelWidth", value: labelWidth},
    ];
    views[name] = await vegaEmbed(div, {...spec, config, data: {values}},
      {actions: false, renderer: "svg", ast: true, logLevel: 1, tooltip: {theme: "page", offsetX: 12, offsetY: 12}});
    // The figure has one description for screen readers, so the roles of its parts are removed.
    for (const part of div.querySelectorAll("svg [role], svg[role]")) {
      for (const each of ["role", "aria-roledescription", "aria-label"]) part.removeAttribute(each);
    }
  };

  // Draw one plot at a time, with pauses, so that a page with many runs responds to input meanwhile.
  let turn = 0;
  const drawAll = async () => {
    const mine = ++turn;
    delete root.dataset.drawn;
    for (const name of Object.keys(plots)) {
      await draw(name);
      await new Promise((resume) => setTimeout(resume));
      if (mine !== turn) return;
    }
    root.dataset.drawn = "true";
  };

  const filterRows = () => {
    for (const row of document.querySelectorAll("tr[data-key]")) {
      row.hidden = !shows(row.dataset.key);
    }
  };

  let waiting = 0;
  const soon = (action, delay) => () => {
    clearTimeout(waiting);
    waiting = setTimeout(action, delay);
  };
  const refilter = soon(() => { filterRows(); drawAll(); }, 120);
  if (search) search.addEventListener("input", refilter);
  for (const log of document.querySelectorAll("[data-log]")) {
    log.addEventListener("change", () => draw(log.dataset.log));
  }

  const sortBy = (header) => {
    const table = header.closest("table");
    const column = [...header.parentNode.children].indexOf(header);
    const down = header.getAttribute("aria-sort") !== "descending";
    for (const other of header.parentNode.children) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => row.children[column].dataset.value;
    const compare = (left, right) => {
      const [a, b] = [value(left), value(right)];
      if (a === "" || b === "") return (a === "") - (b === "");
      const order = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
      return down ? -order : order;
    };
    const body = table.tBodies[0];
    body.append(...[...body.rows].sort(compare));
  };
  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => sortBy(button.parentNode));
  }

  // A table that can be scrolled fades out at the edges beyond which it continues.
  const fade = (box) => {
    box.classList.toggle("more-right", box.scrollLeft + box.clientWidth < box.scrollWidth - 2);
    box.classList.toggle("more-below", box.scrollTop + box.clientHeight < box.scrollHeight - 2);
  };
  const sizes = new ResizeObserver((entries) => entries.forEach((entry) => fade(entry.target)));
  for (const box of document.querySelectorAll(".scroll")) {
    box.addEventListener("scroll", () => fade(box), {passive: true});
    sizes.observe(box);
  }

  // Plots have the colour of the text, so only a new width, and not dark mode, needs a new drawing.
  let width = innerWidth;
  addEventListener("resize", soon(() => {
    if (innerWidth !== width) { width = innerWidth; drawAll(); }  // a phone's bars change the height
  }, 200));
  const drawFor = (paper) => () => {
    root.classList.toggle("printing", paper);
    Object.keys(plots).forEach(draw);
  };
  addEventListener("beforeprint", drawFor(true));
  addEventListener("afterprint", drawFor(false));
  drawAll();
})();
