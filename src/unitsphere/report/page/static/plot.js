// One plot: uPlot's options from a figure and the state of its group.

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function seriesColour(series) {
  return colour(`--series-${series.colour % 6}`);
}

// Arms beyond the sixth have the first ones' colours, and dashes.
function dashOf(series) {
  if (series.style === "dashed") return [6, 4];
  return [[], [8, 4], [2, 3]][Math.floor(series.colour / 6) % 3];
}

function seriesOptions({ series, x, role }) {
  const stroke = seriesColour(series);
  const band = role === "high" || role === "low";
  const cloud = series.style === "points";
  const dots = role === "main" && series.style !== "dashed" && (cloud || x.length <= 40);
  return {
    label: series.name,
    stroke: band ? "transparent" : stroke,
    width: role === "raw" ? 1 : cloud ? 0 : 2,
    alpha: role === "raw" ? 0.35 : 1,
    dash: dashOf(series),
    paths: cloud ? () => null : undefined,
    points: { show: dots && !band, size: cloud ? 8 : 6, fill: stroke, stroke, width: 1 },
    spanGaps: true,
  };
}

// Bands lie between two neighbours, high before low.
function bandsOf(columns) {
  const bands = [];
  columns.forEach(({ series, role }, place) => {
    if (role !== "high" || series.style === "points") return;
    bands.push({ series: [place + 1, place + 2], fill: `${seriesColour(series)}28` });
  });
  return bands;
}

// Bars from low to high at each point of a cloud.
function drawBars(u, columns) {
  u.ctx.save();
  columns.forEach(({ series, role }, place) => {
    if (role !== "high" || series.style !== "points") return;
    u.ctx.strokeStyle = seriesColour(series);
    u.ctx.lineWidth = 1.5 * devicePixelRatio;
    u.data[0].forEach((x, row) => {
      const high = u.data[place + 1][row], low = u.data[place + 2][row];
      if (high === null || low === null) return;
      const left = u.valToPos(x, "x", true);
      u.ctx.beginPath();
      u.ctx.moveTo(left, u.valToPos(low, "y", true));
      u.ctx.lineTo(left, u.valToPos(high, "y", true));
      u.ctx.stroke();
    });
  });
  u.ctx.restore();
}

function axisOptions(label, extra) {
  return {
    label,
    stroke: colour("--soft"),
    font: "12px system-ui, sans-serif",
    labelFont: "12px system-ui, sans-serif",
    labelGap: 2,
    labelSize: 22,
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
    border: { show: false },
    ...extra,
  };
}

function widen(u, low, high) {
  if (low === null || high === null) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low - room, high + room];
}

// Room at both ends, in ratios.
function widenLog(u, low, high) {
  if (low === null || high === null || low <= 0) return [1, 10];
  const room = Math.max((high / low) ** 0.05, 1.02);
  return [low / room, high * room];
}

// Powers of ten over many decades, 1, 2 and 5 over few, plain steps within less than one.
function logTicks(low, high) {
  const decades = Math.log10(high / low);
  const every = decades > 4 ? [1] : [1, 2, 5];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    ticks.push(...every.map((by) => +(by * 10 ** power).toPrecision(1)));
  }
  const inside = ticks.filter((tick) => tick >= low && tick <= high);
  if (inside.length > 2) return inside;
  const rough = (high - low) / 5, size = 10 ** Math.floor(Math.log10(rough));
  const step = size * [1, 2, 5, 10].find((by) => by * size >= rough);
  const first = Math.ceil(low / step), count = Math.floor(high / step) - first + 1;
  return Array.from({ length: count }, (_, i) => +((first + i) * step).toPrecision(6));
}

function logAxis(on) {
  if (!on) return {};
  return { splits: (u, axis, low, high) => logTicks(low, high), filter: (u, splits) => splits };
}

function wordTicks(figure) {
  if (!figure.ticks.length) return {};
  const names = new Map(figure.ticks);
  const crowded = [...names.values()].join("").length > 24;
  return {
    splits: () => [...names.keys()],
    values: (u, splits) => splits.map((place) => {
      const name = names.get(place) || "";
      return name.length > 14 ? `${name.slice(0, 13)}…` : name;
    }),
    rotate: crowded ? -40 : 0,
    size: crowded ? 84 : 28,
  };
}

// A label no longer than its axis; the table of the data has the whole.
function clipped(text, pixels) {
  const most = Math.max(8, Math.floor((pixels - 60) / 6.5));
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

// Lines fill the width; points, words and a single place have room at the sides.
function rangeOf(figure, state) {
  const dotted = figure.series.every(({ style }) => style !== "line");
  const roomy = state.logX ? widenLog : widen;
  return (u, low, high) => (dotted || low === null || low === high ? roomy(u, low, high) : [low, high]);
}

function plotOptions(figure, columns, state, width, hooks) {
  const label = (figure.xs.find(({ key }) => key === state.axis) || figure.xs[0]).label;
  const height = Math.max(220, Math.min(380, Math.round(width * 0.5)));
  const numbers = (u, splits) => splits.map(short);
  const log = (on) => (on ? { distr: 3, log: 10 } : {});
  return {
    width,
    height,
    padding: [10, 14, 0, 4],
    legend: { show: false },
    series: [{}, ...columns.map(seriesOptions)],
    bands: bandsOf(columns),
    scales: {
      x: { time: false, ...log(state.logX), range: rangeOf(figure, state) },
      y: { ...log(state.logY), range: state.logY ? widenLog : widen },
    },
    axes: [
      axisOptions(label, { values: numbers, size: 28, ...logAxis(state.logX), ...wordTicks(figure) }),
      axisOptions(clipped(figure.y, height), { values: numbers, size: 56, ...logAxis(state.logY) }),
    ],
    cursor: {
      y: false,
      drag: { x: true, y: false, setScale: false },
      ...(hooks.apart ? {} : { sync: { key: hooks.key, scales: ["x", null] } }),
      hover: { skip: [null, undefined] },
      points: { size: 8 },
      bind: { dblclick: () => () => (hooks.reset(), null) },
    },
    hooks: {
      draw: [(u) => drawBars(u, columns)],
      setSelect: [(u) => hooks.select(u)],
      setCursor: [(u) => hooks.read(u)],
    },
  };
}
