// A group of figures with one toolbar: axis, logarithms, smoothing, zoom, and which lines show.

class Group {
  constructor(root, number, data, kept) {
    this.root = root;
    this.apart = "apart" in root.dataset;
    this.key = `group-${number}`;
    this.views = [...root.querySelectorAll("[data-figure]")].flatMap((node) => {
      const figure = data[node.dataset.figure];
      return [...node.querySelectorAll(".plot")].map((place, panel) => new View(this, node, place, figure, panel));
    });
    const all = this.views.flatMap(({ figure }) => figure.series);
    this.axes = this.views[0].figure.xs;
    this.smooths = all.some((series) => series.smooth);
    const long = Math.max(0, ...all.filter((s) => s.smooth).map((s) => s.y.length));
    this.state = kept || {
      axis: this.axes[0].key,
      logX: this.views.map(({ figure }) => figure.logX),
      logY: this.views.map(({ figure }) => figure.logY),
      smoothing: long > 60 ? 0.9 : 0,
      hidden: [],
      zoom: this.views.map(() => null),
    };
    if (!this.axes.some(({ key }) => key === this.state.axis)) this.state.axis = this.axes[0].key;
    root.prepend(toolbar(this));
    this.views.forEach((view) => view.begin());
  }

  // For one view: the group's state with its own logarithms and zoom.
  stateOf(view) {
    const place = this.views.indexOf(view);
    const { logX, logY, zoom } = this.state;
    return { ...this.state, logX: logX[place], logY: logY[place], zoom: zoom[place] };
  }

  change(values) {
    const axis = this.state.axis;
    Object.assign(this.state, values);
    if (this.state.axis !== axis) this.state.zoom.fill(null);
    this.views.forEach((view) => view.draw());
  }

  // One view's range, or null for all of it; the others follow unless they stand apart.
  zoom(range, view) {
    if (this.apart && view) this.state.zoom[this.views.indexOf(view)] = range;
    else this.state.zoom.fill(range);
    this.views.forEach((each) => each.look());
  }

  zoomBy(factor, shift = 0, view = null) {
    const shown = this.views.filter((each) => each.plot && each.data[0].length);
    const led = view ? [view] : this.apart ? shown : shown.slice(0, 1);
    led.forEach((each) => {
      const range = each.nearer(factor, shift);
      if (range !== undefined) this.zoom(range, each);
    });
  }

  extent(view) {
    const xs = (this.apart ? [view] : this.views).flatMap((each) => (each.data ? each.data[0] : []));
    return [xs.reduce((a, b) => Math.min(a, b), Infinity), xs.reduce((a, b) => Math.max(a, b), -Infinity)];
  }

  toggle(name) {
    const { hidden } = this.state;
    this.change({ hidden: hidden.includes(name) ? hidden.filter((n) => n !== name) : [...hidden, name] });
  }
}

// One plot of a group: a figure, or one of its panels.
class View {
  constructor(group, node, place, figure, number) {
    const { title, series, behind } = figure.panels[number];
    const lone = figure.alike && figure.panels.length > 1; // needs no dashes to tell it apart
    const of = (numbers) => numbers.map((one) => figure.series[one]).map((one) => (lone ? { ...one, colour: one.colour % 6 } : one));
    const shown = of(series).map((one) => one.group);
    this.group = group;
    this.node = node;
    this.place = place;
    this.whole = figure;
    this.small = figure.panels.length > 1;
    this.first = number === 0;
    this.behind = of(behind);
    this.figure = this.small
      ? { ...figure, title: `${figure.title}, ${title}`, series: of(series), marks: figure.marks.filter((mark) => shown.includes(mark.group)) }
      : figure;
    this.box = element("div", { class: "tip", hidden: true });
    this.said = element("p", { class: "unseen", "aria-live": "polite" });
    this.plot = null;
  }

  begin() {
    const help = "Arrow keys read along the lines, plus and minus zoom, 0 shows all.";
    this.place.tabIndex = 0;
    this.place.setAttribute("role", "group");
    this.place.setAttribute("aria-roledescription", "plot");
    this.place.setAttribute("aria-label", `${this.figure.title}, ${this.figure.y}. ${help}`);
    this.place.addEventListener("keydown", (event) => this.onKey(event));
    this.place.addEventListener("blur", () => this.plot && this.plot.setCursor({ left: -10, top: -10 }));
    this.place.after(this.said);
    if (this.first) this.node.querySelector(".axis").after(legend(this));
    new ResizeObserver(() => this.fit()).observe(this.place);
    this.fit();
  }

  fit() {
    const width = Math.floor(this.place.clientWidth);
    if (!width) return;
    if (!this.plot) this.draw();
    else if (this.plot.width !== width) this.draw();
  }

  draw() {
    const width = Math.floor(this.place.clientWidth);
    if (!width) return;
    const state = this.group.stateOf(this);
    const seen = (several) => several.filter(({ group }) => !state.hidden.includes(group));
    this.columns = [
      ...seen(this.behind).flatMap((series) => columnsOf(series, state, true)),
      ...seen(this.figure.series).flatMap((series) => columnsOf(series, state)),
    ];
    this.data = aligned(this.columns, state);
    this.extent = this.small && this.figure.alike ? extents(this.whole.series, state) : null;
    if (this.plot) this.plot.destroy();
    const hooks = {
      key: this.group.key,
      apart: this.group.apart,
      small: this.small,
      reset: () => this.group.zoom(null, this),
      select: (u) => this.select(u),
      read: (u) => this.read(u),
    };
    this.plot = new uPlot(
      plotOptions(this.figure, this.columns, state, width, hooks, this.extent), this.data, this.place,
    );
    this.node.querySelector(".axis").textContent = axisOf(this.figure, state.axis).label;
    this.plot.over.append(this.box);
    this.look();
    this.node.querySelectorAll(".legend button").forEach((button) => {
      button.setAttribute("aria-pressed", String(!state.hidden.includes(button.dataset.name)));
    });
  }

  // The range nearer by a factor, moved by a part of itself; null for all, undefined for none.
  nearer(factor, shift) {
    const { min, max } = this.plot.scales.x;
    if (min === null || min === undefined) return undefined;
    const { logX } = this.group.stateOf(this);
    const into = logX ? Math.log : (v) => v;
    const back = logX ? Math.exp : (v) => v;
    const [low, high] = [into(min), into(max)];
    const middle = (low + high) / 2 + shift * (high - low);
    const half = ((high - low) / 2) * factor;
    const whole = this.group.extent(this);
    const wanted = [Math.max(back(middle - half), whole[0]), Math.min(back(middle + half), whole[1])];
    if (wanted[0] >= wanted[1]) return undefined;
    return wanted[0] === whole[0] && wanted[1] === whole[1] ? null : wanted;
  }

  look() {
    if (!this.plot || !this.data[0].length) return;
    const { zoom } = this.group.stateOf(this);
    const xs = this.data[0];
    const whole = this.extent ? { min: this.extent.x[0], max: this.extent.x[1] } : { min: xs[0], max: xs[xs.length - 1] };
    if (zoom) this.plot.setScale("x", { min: zoom[0], max: zoom[1] });
    else if (whole.min < whole.max) this.plot.setScale("x", whole);
    this.node.dataset.zoom = zoom ? "in" : "all";
  }

  select(u) {
    const { left, width } = u.select;
    if (width > 4) this.group.zoom([u.posToVal(left, "x"), u.posToVal(left + width, "x")], this);
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  read(u) {
    const mine = u.over.matches(":hover") || this.place === document.activeElement;
    const found = mine ? readings(u, this.columns, this.figure) : null;
    showReadings(this.box, u, found, this.figure, this.group.state.axis);
    if (found && this.place === document.activeElement) {
      this.said.textContent = spoken(found, this.figure, this.group.state.axis);
    }
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.plot) return;
    const acts = {
      "+": () => this.group.zoomBy(0.5, 0, this),
      "=": () => this.group.zoomBy(0.5, 0, this),
      "-": () => this.group.zoomBy(2, 0, this),
      0: () => this.group.zoom(null, this),
      Escape: () => this.group.zoom(null, this),
      ArrowLeft: () => (event.shiftKey ? this.group.zoomBy(1, -0.25, this) : this.step(-1)),
      ArrowRight: () => (event.shiftKey ? this.group.zoomBy(1, 0.25, this) : this.step(1)),
      Home: () => this.step(-Infinity),
      End: () => this.step(Infinity),
    };
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  // The reading line goes on by a place of the data, never by less than a few pixels.
  step(by) {
    const u = this.plot, wide = u.over.clientWidth;
    const lefts = [...new Set(u.data[0].map((x) => Math.round(u.valToPos(x, "x"))))]
      .filter((left) => left >= 0 && left <= wide);
    const now = u.cursor.left;
    const ahead = lefts.filter((left) => (by > 0 ? left > now + 3 : left < now - 3));
    let left = by > 0 ? ahead[0] : ahead[ahead.length - 1];
    if (now < 0 || Math.abs(by) === Infinity) left = by > 0 && now >= 0 ? lefts[lefts.length - 1] : lefts[0];
    if (by === Infinity) left = lefts[lefts.length - 1];
    if (left !== undefined) u.setCursor({ left, top: u.over.clientHeight / 2 });
  }
}

function legend(view) {
  const names = view.whole.series.filter(({ group }, i, all) => all.findIndex((one) => one.group === group) === i);
  if (names.length < 2 || (view.small && view.figure.alike)) return element("div", { class: "legend" });
  return element("div", { class: "legend", role: "group", "aria-label": "Lines shown" }, ...names.map((series) => {
    const swatch = element("i", { class: `swatch s${series.colour % 6} ${series.style}` });
    const button = element("button", { type: "button", "aria-pressed": "true", "data-name": series.group }, swatch, series.group);
    button.addEventListener("click", () => view.group.toggle(series.group));
    return button;
  }));
}

function axisOf(figure, axis) {
  return figure.xs.find(({ key }) => key === axis) || figure.xs[0];
}

function toolbar(group) {
  const { state } = group;
  const bar = element("div", { class: "tools", role: "group", "aria-label": "How the plots are drawn" });
  if (group.axes.length > 1) {
    const select = element("select", { id: `${group.key}-axis` }, ...group.axes.map(
      ({ key, label }) => element("option", { value: key, selected: key === state.axis }, label),
    ));
    select.addEventListener("change", () => group.change({ axis: select.value }));
    bar.append(element("label", {}, "by ", select));
  }
  const button = (name, text, label, act) => {
    const made = element("button", { type: "button", id: `${group.key}-${name}`, "aria-label": label }, text);
    made.addEventListener("click", () => act(made));
    return made;
  };
  const press = (name, text, label, read, write) => {
    const made = button(name, text, label, () => {
      write(!read());
      made.setAttribute("aria-pressed", String(read()));
    });
    made.setAttribute("aria-pressed", String(read()));
    return made;
  };
  const logs = element("span", { class: "joined" });
  const words = group.views.every(({ figure }) => figure.ticks.length);
  if (!words) {
    logs.append(press("log-x", "log x", "Logarithmic horizontal axis", () => state.logX.every(Boolean), (on) => group.change({ logX: group.views.map(() => on) })));
  }
  logs.append(press(
    "log-y", "log y", "Logarithmic vertical axis",
    () => state.logY.every(Boolean),
    (on) => group.change({ logY: group.views.map(() => on) }),
  ));
  bar.append(logs);
  if (group.smooths) {
    const range = element("input", {
      type: "range", id: `${group.key}-smoothing`, min: "0", max: "0.99", step: "0.01", value: String(state.smoothing),
    });
    range.addEventListener("input", () => group.change({ smoothing: Number(range.value) }));
    bar.append(element("label", {}, "smooth ", range));
  }
  bar.append(element(
    "span", { class: "joined", role: "group", "aria-label": "Zoom" },
    button("out", "−", "Zoom out", () => group.zoomBy(2)),
    button("in", "+", "Zoom in", () => group.zoomBy(0.5)),
    button("reset", "all", "Show all", () => group.zoom(null)),
  ));
  return bar;
}
