// Figures' data: smoothing, and series of different places put on one axis, as uPlot takes them.

// An exponential moving average without the bias of its start.
function smooth(values, weight) {
  let mean = 0, total = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = weight * mean + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return mean / total;
  });
}

// The columns that a series is drawn as: a raw line pale behind its smooth one, a band's two ends;
// of another panel's series a pale line.
function columnsOf(series, state, behind = false) {
  const x = series.x[state.axis] || Object.values(series.x)[0];
  const column = (y, role) => ({ series, x, y, role });
  const found = [];
  if (behind) {
    const smoothed = series.smooth && state.smoothing > 0;
    return [column(smoothed ? smooth(series.means || series.y, state.smoothing) : series.y, "behind")];
  }
  if (series.low) found.push(column(series.high, "high"), column(series.low, "low"));
  if (series.smooth && state.smoothing > 0) {
    const means = smooth(series.means || series.y, state.smoothing);
    found.push(column(series.y, "raw"), column(means, "main"));
  } else {
    found.push(column(series.y, "main"));
  }
  return found;
}

// [x, y of each column]: rows in the order of x; two points of one column never share a row.
function aligned(columns, state) {
  const points = [];
  columns.forEach(({ x, y }, place) => {
    for (let i = 0; i < x.length; i++) {
      if (y[i] === null || (state.logX && x[i] <= 0) || (state.logY && y[i] <= 0)) continue;
      points.push([x[i], place, y[i]]);
    }
  });
  points.sort((a, b) => a[0] - b[0]);
  const data = [[], ...columns.map(() => [])];
  let row = -1;
  for (const [x, place, y] of points) {
    if (row < 0 || data[0][row] !== x || data[place + 1][row] !== null) {
      row += 1;
      data[0].push(x);
      for (let c = 1; c < data.length; c++) data[c].push(null);
    }
    data[place + 1][row] = y;
  }
  return data;
}

// Lowest and highest of all places and heights of some series, as far as the axes can show them.
function extents(series, state) {
  const columns = series.flatMap((one) => columnsOf(one, state));
  const ends = (values, log) => {
    const kept = values.filter((v) => v !== null && (!log || v > 0));
    return [kept.reduce((a, b) => Math.min(a, b), Infinity), kept.reduce((a, b) => Math.max(a, b), -Infinity)];
  };
  return { x: ends(columns.flatMap(({ x }) => x), state.logX), y: ends(columns.flatMap(({ y }) => y), state.logY) };
}

// A number in few characters.
function short(value, digits = 4) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size >= 1e15) return value.toExponential(2).replace("e+", "e");
  if (size > 0 && size < 1e-4) return (+value.toPrecision(3)).toExponential();
  for (const [unit, least] of [["T", 1e12], ["B", 1e9], ["M", 1e6], ["k", 1e4]]) {
    if (size >= least) return `${+(value / (least === 1e4 ? 1e3 : least)).toPrecision(digits)}${unit}`;
  }
  return String(+value.toPrecision(Math.max(digits, 5)));
}
