"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const search = document.getElementById("search");
  const chips = [...document.querySelectorAll(".chip input")];
  // What a key holds before its text to search in.
  const places = (document.body.dataset.filters || "strategy loader workers").split(" ");

  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  const shows = (key) => {
    const hidden = (group) => chips.some(
      (chip) => chip.name === group && !chip.checked && chip.value === String(key[places.indexOf(group)]));
    if (places.some(hidden)) return false;
    const words = search ? search.value.toLowerCase().split(/\s+/).filter(Boolean) : [];
    return words.every((word) => key[places.length].toLowerCase().includes(word));
  };

  const pick = (list, keep) => (Array.isArray(list) ? list.filter((_, index) => keep[index]) : list);

  // A trace without keys, such as an ideal line, always shows; one with points shows some of them.
  const filtered = (given) => {
    const trace = {...given};
    for (const bar of ["error_x", "error_y"]) {
      if (trace[bar]) trace[bar] = {...trace[bar], color: given.type === "bar" ? color("--ink") : undefined};
    }
    if (!trace.meta || !trace.meta.keys) return trace;
    const keep = trace.meta.keys.map(shows);
    if (!trace.meta.points) return keep.some(Boolean) ? trace : null;
    if (keep.every(Boolean)) return trace;
    if (!keep.some(Boolean)) return null;
    const part = {...trace, x: pick(trace.x, keep), y: pick(trace.y, keep),
      customdata: pick(trace.customdata, keep), text: pick(trace.text, keep)};
    if (trace.marker) part.marker = {...trace.marker, color: pick(trace.marker.color, keep)};
    for (const bar of ["error_x", "error_y"]) {
      if (trace[bar]) part[bar] = {...trace[bar], array: pick(trace[bar].array, keep),
        arrayminus: pick(trace[bar].arrayminus, keep)};
    }
    return part;
  };

  const barHeight = (traces) => {
    const bars = traces.reduce((sum, trace) => sum + trace.y.length, 0);
    const groups = new Set(traces.flatMap((trace) => trace.y)).size;
    return 130 + Math.max((bars > 60 ? 9 : 16) * bars + 8 * groups, 90);
  };

  const axis = (given, small) => ({gridcolor: color("--grid"), zerolinecolor: color("--line"),
    linecolor: color("--line"), automargin: true,
    ticklabelstandoff: 4, separatethousands: true, exponentformat: "none", ...given,
    title: {...(given || {}).title, standoff: 10, font: {size: small ? 11 : 13}}});

  // Panels that still show something, numbered anew, as many beside each other as there is room for.
  const arranged = (figure, traces, width) => {
    const {panels, panel_height: height} = figure.layout.meta;
    const shown = panels.map((_, place) => place).filter(
      (place) => traces.some((trace) => trace.meta.panel === place && trace.meta.keys));
    const number = (index) => (index ? index + 1 : "");
    const columns = Math.max(1, Math.min(figure.layout.grid.columns, shown.length, Math.floor(width / 270)));
    const rows = Math.max(1, Math.ceil(shown.length / columns));
    const named = new Set();
    const moved = traces.filter((trace) => shown.includes(trace.meta.panel)).map((trace) => {
      const index = shown.indexOf(trace.meta.panel);
      const first = !named.has(trace.name);
      named.add(trace.name);
      return {...trace, xaxis: `x${number(index)}`, yaxis: `y${number(index)}`, showlegend: first};
    });
    const axes = {};
    shown.forEach((place, index) => {
      axes[`xaxis${number(index)}`] = figure.layout[`xaxis${number(place)}`];
      const matches = index && figure.layout[`yaxis${number(1)}`].matches ? {matches: "y"} : {matches: undefined};
      const title = index % columns ? {text: ""} : figure.layout.yaxis.title;
      const named = !(index % columns) || figure.layout.yaxis.type !== "category";
      axes[`yaxis${number(index)}`] = {...figure.layout.yaxis, ...matches, title, showticklabels: named};
    });
    const annotations = shown.map((place, index) => ({...figure.layout.annotations[place],
      xref: `x${number(index)} domain`, yref: `y${number(index)} domain`, font: {size: 12}}));
    return {traces: moved, layout: {...axes, annotations, height: rows * height + 60,
      grid: {...figure.layout.grid, rows, columns, ygap: Math.min(0.5, 75 / height)}}};
  };

  const layoutOf = (figure, traces, width) => {
    const small = width < 520;
    // bars that lie list variants; those that stand are panels like any other
    const isBars = traces.some((trace) => trace.orientation === "h") && !figure.layout.meta;
    const entries = traces.filter((trace) => trace.showlegend !== false);
    const many = entries.length > (small ? 8 : 14);
    const longest = Math.max(0, ...entries.map((trace) => trace.name.length));
    const entry = 55 + (small ? 5.8 : 6.4) * longest;
    const rows = Math.ceil(entries.length / Math.max(1, Math.floor((width - 72) / entry)));
    const base = isBars ? barHeight(traces) : figure.layout.height;
    const present = new Set(traces.flatMap((trace) => (isBars ? trace.y : [])));
    const order = isBars
      ? {categoryarray: figure.layout.yaxis.categoryarray.filter((name) => present.has(name))} : {};
    const below = isBars || many ? 0 : 20 * rows;
    return {
      ...figure.layout,
      width,
      height: base + below,
      margin: {l: 56, r: 16, t: figure.layout.meta || !small ? 28 : 12, b: 50 + below},
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: {family: getComputedStyle(document.body).fontFamily, color: color("--ink"),
        size: small ? 11 : 12.5},
      hoverlabel: {align: "left", namelength: -1},
      hovermode: "closest",
      showlegend: figure.layout.showlegend !== false && entries.length > 1 && !(many && small),
      legend: isBars ? {orientation: "h", y: 1, yanchor: "bottom", x: 0, traceorder: "normal"}
        : many ? {orientation: "v", font: {size: 10.5}, traceorder: "normal"}
        : {orientation: "h", yref: "container", yanchor: "bottom", y: 0, x: 0,
          font: {size: small ? 10.5 : 11.5}, traceorder: "normal"},
      ...Object.fromEntries(Object.keys(figure.layout).filter((name) => /^[xy]axis/.test(name)).map(
        (name) => [name, {...axis(figure.layout[name], small), ...(name === "yaxis" ? order : {}),
          tickfont: {size: small ? 9.5 : isBars || figure.layout.meta ? 11.5 : undefined}}])),
    };
  };

  // On a phone the buttons would lie over the first bars, and fingers zoom without them.
  const config = (width) => ({displaylogo: false, responsive: false,
    displayModeBar: width < 520 ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"]});

  // Texts beside upright axes end before the next axis.
  const fitted = (traces, width) => {
    const texts = traces.filter((trace) => trace.mode === "text");
    const letters = Math.max(4, Math.floor((width - 72) / (texts.length + 1) / 5.5));
    const cut = (said) => (said.length > letters ? `${said.slice(0, letters - 1)}…` : said);
    return traces.map((trace) => (texts.includes(trace) ? {...trace, text: trace.text.map(cut)} : trace));
  };

  const draw = (name) => {
    const div = document.getElementById(`plot-${name}`);
    const width = div.clientWidth;
    let figure = figures[name];
    let traces = fitted(figure.data.map(filtered).filter(Boolean), width);
    if (figure.layout.meta) {
      const {grid, meta, ...others} = figure.layout;
      const bare = Object.fromEntries(Object.entries(others).filter(([key]) => !/^[xy]axis/.test(key)));
      const made = arranged(figure, traces, width);
      traces = made.traces;
      figure = {...figure, layout: {...bare, meta, ...made.layout}};
    }
    return Plotly.react(div, traces, layoutOf(figure, traces, width), config(width));
  };

  // One at a time, with room between, so that a page with many runs answers while it draws.
  let turn = 0;
  const drawAll = async () => {
    const mine = ++turn;
    delete root.dataset.drawn;
    for (const name of Object.keys(figures)) {
      await draw(name);
      await new Promise((resume) => setTimeout(resume));
      if (mine !== turn) return;
    }
    root.dataset.drawn = "true";
  };

  const filterRows = () => {
    for (const row of document.querySelectorAll("tr[data-key]")) {
      row.hidden = !shows(JSON.parse(row.dataset.key));
    }
  };

  let waiting = 0;
  const soon = (action, delay) => () => {
    clearTimeout(waiting);
    waiting = setTimeout(action, delay);
  };
  const refilter = soon(() => { filterRows(); drawAll(); }, 120);
  chips.forEach((chip) => chip.addEventListener("change", refilter));
  if (search) search.addEventListener("input", refilter);

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

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let width = innerWidth;
  addEventListener("resize", soon(() => {
    if (innerWidth !== width) { width = innerWidth; drawAll(); }  // a phone's bars change the height
  }, 200));
  // Paper is light and narrow, whatever the screen: plots are drawn for it while it is printed.
  const drawFor = (paper) => () => {
    root.classList.toggle("printing", paper);
    Object.keys(figures).forEach(draw);
  };
  addEventListener("beforeprint", drawFor(true));
  addEventListener("afterprint", drawFor(false));
  drawAll();
})();
