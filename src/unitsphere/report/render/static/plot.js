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
  if (series.style === "dotted") return [2, 4];
  return [[], [8, 4], [2, 3]][Math.floor(series.colour / 6) % 3];
}

// The size of the markers of a cloud; hollow ones have no fill.
const CLOUDS = { points: 8, dots: 4, hollow: 13, star: 12, cross: 9 };

function seriesOptions({ series, x, role }) {
  if (role === "behind") {
    return { label: series.name, stroke: colour("--pale"), width: 1, points: { show: false }, spanGaps: true };
  }
  const stroke = seriesColour(series);
  const band = role === "high" || role === "low";
  const cloud = CLOUDS[series.style];
  const dots = role === "main" && series.style !== "dashed" && (cloud || x.length <= 40);
  const empty = series.style === "hollow";
  return {
    label: series.name,
    stroke: band ? "transparent" : stroke,
    width: role === "raw" ? 1 : cloud ? 0 : 2,
    alpha: role === "raw" ? 0.35 : 1,
    dash: dashOf(series),
    paths: cloud ? () => null : undefined,
    points: { show: dots && !band, size: cloud || 6, fill: empty ? "transparent" : stroke, stroke, width: empty ? 2 : 1, ...pointPaths(series.style) },
    spanGaps: true,
  };
}

// A star or a cross in the place of each point; nothing for uPlot's own circles.
function pointPaths(style) {
  if (style !== "star" && style !== "cross") return {};
  const paths = (u, place, from, to) => {
    const path = new Path2D(), size = (CLOUDS[style] / 2) * devicePixelRatio;
    for (let row = from; row <= to; row++) {
      const value = u.data[place][row];
      if (value === null || value === undefined) continue;
      const x = u.valToPos(u.data[0][row], "x", true), y = u.valToPos(value, "y", true);
      if (style === "cross") {
        for (const turn of [-1, 1]) {
          path.moveTo(x - size, y - turn * size);
          path.lineTo(x + size, y + turn * size);
        }
        continue;
      }
      for (let corner = 0; corner <= 10; corner++) {
        const angle = (corner * Math.PI) / 5, reach = corner % 2 ? size * 0.45 : size;
        path[corner ? "lineTo" : "moveTo"](x + reach * Math.sin(angle), y - reach * Math.cos(angle));
      }
    }
    return { stroke: path, fill: style === "star" ? path : null };
  };
  return { paths };
}

// Dotted vertical lines at given places, and a dashed horizontal one.
function drawGuides(u, figure) {
  const { ctx } = u, { left, top, width, height } = u.bbox;
  ctx.save();
  ctx.strokeStyle = colour("--soft");
  ctx.lineWidth = devicePixelRatio;
  const line = (from, to, dash) => {
    ctx.setLineDash(dash.map((each) => each * devicePixelRatio));
    ctx.beginPath();
    ctx.moveTo(...from);
    ctx.lineTo(...to);
    ctx.stroke();
  };
  for (const place of figure.guides) {
    const x = u.valToPos(place, "x", true);
    if (x >= left && x <= left + width) line([x, top], [x, top + height], [2, 3]);
  }
  if (figure.level !== null) {
    const y = u.valToPos(figure.level, "y", true);
    if (y >= top && y <= top + height) line([left, y], [left + width, y], [6, 4]);
  }
  ctx.restore();
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

// Arrows between two curves, each with its text above; a text moves up where another stands.
function drawMarks(u, figure, state) {
  const { ctx } = u, scale = devicePixelRatio, taken = [];
  ctx.save();
  ctx.font = `600 ${12 * scale}px system-ui, sans-serif`;
  ctx.textAlign = "left";
  ctx.textBaseline = "bottom";
  ctx.lineJoin = "round";
  for (const mark of figure.marks) {
    const ends = mark.x[state.axis];
    if (!ends || state.hidden.includes(mark.group)) continue;
    const [from, to] = ends.map((x) => u.valToPos(x, "x", true));
    const y = u.valToPos(mark.y, "y", true), head = (to < from ? 7 : -7) * scale;
    ctx.strokeStyle = ctx.fillStyle = seriesColour(mark);
    ctx.lineWidth = 1.6 * scale;
    ctx.beginPath();
    ctx.moveTo(from, y);
    ctx.lineTo(to, y);
    ctx.moveTo(to + head, y - 4 * scale);
    ctx.lineTo(to, y);
    ctx.lineTo(to + head, y + 4 * scale);
    ctx.stroke();
    const width = ctx.measureText(mark.text).width, { left, width: wide } = u.bbox;
    const x = Math.min(Math.max((from + to - width) / 2, left), left + wide - width);
    let bottom = y - 4 * scale;
    while (taken.some((box) => x < box.right && box.left < x + width && Math.abs(box.bottom - bottom) < 15 * scale)) bottom -= 15 * scale;
    taken.push({ left: x - 6 * scale, right: x + width + 6 * scale, bottom });
    ctx.strokeStyle = colour("--panel");
    ctx.lineWidth = 4 * scale;
    ctx.strokeText(mark.text, x, bottom);
    ctx.fillText(mark.text, x, bottom);
  }
  ctx.restore();
}

const FONT = "12px system-ui, sans-serif";

function textWidth(text) {
  const context = textWidth.context || (textWidth.context = document.createElement("canvas").getContext("2d"));
  context.font = FONT;
  return context.measureText(text).width;
}

function axisOptions(extra) {
  return {
    stroke: colour("--soft"),
    font: FONT,
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

// Of ticks in the order of their places those whose names do not run into the one before.
function apart(u, key, places, names) {
  let end = -Infinity;
  return places.map((place, i) => {
    const middle = u.valToPos(place, key);
    const [low, high] = key === "x" ? [middle - textWidth(names[i]) / 2, middle + textWidth(names[i]) / 2] : [-middle - 7, -middle + 7];
    if (low < end + (key === "x" ? 8 : 2)) return "";
    end = high;
    return names[i];
  });
}

// Ticks at given places, at those of a logarithm, or at uPlot's own: plain numbers, none on another.
function numberTicks(key, log, places) {
  const digits = places ? 3 : 6;
  const made = { values: (u, splits) => apart(u, key, splits, splits.map((value) => short(value, digits))) };
  if (places) made.splits = (u, axis, low, high) => places.filter((place) => place >= low && place <= high);
  else if (log) made.splits = (u, axis, low, high) => logTicks(low, high);
  if (made.splits) made.filter = (u, splits) => splits;
  return made;
}

const TURNED = 40;

// Words under an axis in full: side by side while they fit, else turned, with room for the longest
// and at the ends for half of the last.
function wordTicks(figure, width) {
  const names = new Map(figure.ticks);
  const all = () => [...names.keys()];
  if ([...names.values()].every((name) => /^\d+$/.test(name))) {
    const values = (u, splits) => apart(u, "x", splits, splits.map((place) => names.get(place) || ""));
    return { left: 0, right: 0, axis: { splits: all, values, size: 28 } };
  }
  const widths = [...names.values()].map(textWidth);
  const turned = Math.max(...widths) + 10 > width / names.size;
  const angle = (TURNED * Math.PI) / 180;
  const size = turned ? Math.max(...widths) * Math.sin(angle) + 24 : 28;
  const reach = widths.map((w, i) => w * Math.cos(angle) - (i / names.size) * width);
  return {
    left: turned ? Math.max(0, ...reach) : 0,
    right: turned ? 0 : widths[widths.length - 1] / 2 - 0.05 * width,
    axis: {
      splits: all,
      values: (u, splits) => splits.map((place) => names.get(place) || ""),
      rotate: turned ? TURNED : 0,
      size: Math.ceil(size),
    },
  };
}

// Lines fill the width; points, words and a single place have room at the sides.
function rangeOf(figure, state) {
  const dotted = figure.series.every(({ style }) => style !== "line");
  const roomy = state.logX ? widenLog : widen;
  return (u, low, high) => (dotted || low === null || low === high ? roomy(u, low, high) : [low, high]);
}

// The vertical range: the figure's own, or of what is seen, or of all panels that are alike.
function heightOf(state, whole, limits) {
  const roomy = state.logY ? widenLog : widen;
  if (limits && !state.logY) return () => limits;
  return (u, low, high) => (whole && whole.y[0] <= whole.y[1] ? roomy(u, ...whole.y) : roomy(u, low, high));
}

function plotOptions(figure, columns, state, width, hooks, whole) {
  const height = Math.max(hooks.small ? 150 : 220, Math.min(380, Math.round(width * (hooks.small ? 0.6 : 0.5))));
  const log = (on) => (on ? { distr: 3, log: 10 } : {});
  const words = figure.ticks.length ? wordTicks(figure, width - 74) : null;
  const under = words ? words.axis : { size: 28, space: hooks.small ? 36 : 50, ...numberTicks("x", state.logX, figure.places[state.axis]) };
  return {
    width,
    height: height + (words ? words.axis.size - 28 : 0),
    padding: [10, words ? Math.max(18, words.right) : 18, 0, words ? Math.max(4, words.left - 44) : 4],
    legend: { show: false },
    series: [{}, ...columns.map(seriesOptions)],
    bands: bandsOf(columns),
    scales: {
      x: { time: false, ...log(state.logX), range: rangeOf(figure, state) },
      y: { ...log(state.logY), range: heightOf(state, whole, figure.limits) },
    },
    axes: [axisOptions(under), axisOptions({ size: 56, ...numberTicks("y", state.logY) })],
    cursor: {
      y: false,
      drag: { x: true, y: false, setScale: false },
      ...(hooks.apart ? {} : { sync: { key: hooks.key, scales: ["x", null] } }),
      hover: { skip: [null, undefined] },
      points: { size: 8 },
      bind: { dblclick: () => () => (hooks.reset(), null) },
    },
    hooks: {
      draw: [(u) => drawGuides(u, figure), (u) => drawBars(u, columns), (u) => drawMarks(u, figure, state)],
      setSelect: [(u) => hooks.select(u)],
      setCursor: [(u) => hooks.read(u)],
    },
  };
}
