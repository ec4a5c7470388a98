// The panel in which a reader writes with a model, and sees what the model does at each token.

const SLICE = 60; // milliseconds of writing before the page is drawn: more where drawing takes long
const TOP = 6; // tokens in the table of attention
const LENS = 4e6; // products for which it is shown, while the model writes, how each state reads
const SVG = "http://www.w3.org/2000/svg";

function labelled(text, control) {
  return element("label", {}, `${text} `, control);
}

function options(names) {
  return names.map((name, value) => element("option", { value }, name));
}

function shape(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

// A table's body: each row starts with its head.
function fill(table, rows) {
  table.tBodies[0].replaceChildren(...rows.map(([head, ...cells]) => element(
    "tr", {}, element("th", { scope: "row" }, head), ...cells.map((cell) => element("td", {}, cell)),
  )));
}

function table(caption, columns) {
  return element(
    "table", {}, element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}),
  );
}

// A token as a reader can see it, in quotes.
function quoted(text) {
  return `“${text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣")}”`;
}

const degrees = (x, y) => Math.acos(Math.min(1, Math.max(-1, dot(unit(x), unit(y))))) * 180 / Math.PI;

class Panel {
  constructor(root, documents) {
    this.root = root;
    this.documents = documents;
    this.ids = [];
    this.spans = [];
    this.build();
    this.open(0);
  }

  build() {
    this.choice = element("select", {}, ...options(this.documents.map(({ name }) => name)));
    this.prompt = element("textarea", { rows: 3, placeholder: "Empty: a document from its start", spellcheck: "false" });
    this.count = element("input", { type: "number", min: 1, max: 1000, value: 120, required: true });
    this.temperature = element("input", { type: "range", min: 0, max: 1.5, step: 0.1, value: 0.8 });
    this.heat = element("output", {});
    this.start = element("button", { type: "submit", class: "write" }, "Write");
    this.end = element("button", { type: "button", class: "stop", disabled: true }, "Stop");
    this.status = element("p", { role: "status", class: "status" });
    this.text = element("div", { class: "written", role: "region", "aria-label": "The text", tabindex: 0 });
    const form = element(
      "form", {}, ...(this.documents.length > 1 ? [labelled("Model", this.choice)] : []),
      labelled("Beginning of the text", this.prompt),
      element(
        "div", { class: "tools" }, labelled("Tokens", this.count),
        labelled("Temperature", element("span", {}, this.temperature, " ", this.heat)),
        element("span", { class: "joined" }, this.start, this.end),
      ),
    );
    this.root.append(form, this.status, this.text, this.buildInside());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.write();
    });
    this.end.addEventListener("click", () => { this.stopped = true; });
    this.choice.addEventListener("change", () => this.open(+this.choice.value));
    this.temperature.addEventListener("input", () => this.warm());
    this.text.addEventListener("click", ({ target }) => {
      const place = this.spans.indexOf(target);
      if (place >= 0) this.look(place);
    });
    this.warm();
  }

  // What is shown of one token: attention as shades of the text and as a table, the state's path.
  buildInside() {
    this.place = element("input", { type: "range", min: 0, max: 0, value: 0, class: "place" });
    this.layer = element("select", {});
    this.head = element("select", {});
    this.seen = table("Tokens that it looks at most", ["token", "place", "weight"]);
    this.plane = shape("svg", { viewBox: "-1.2 -1.2 2.4 2.4", class: "path", "aria-hidden": "true" });
    this.path = table("Its state after each sublayer", ["after", "moved", "to the end", "reads as"]);
    this.inside = element(
      "div", { class: "inside", hidden: true },
      element(
        "div", { class: "tools" }, labelled("Token", this.place),
        labelled("Layer", this.layer), labelled("Head", this.head),
      ),
      element("p", { class: "note" }, "The text is shaded by how much the token looks at each token before it. "
        + "Choose a token with the slider, or click on it."),
      element(
        "div", { class: "looks" }, element("figure", {}, this.scroll(this.seen)),
        element(
          "figure", {}, this.plane,
          element("figcaption", {}, element("p", {}, "Direction of the state, from the embedding to the last layer, in "
            + "the plane of these two; inside the circle it points out of the plane.")),
        ),
        element("figure", {}, this.scroll(this.path)),
      ),
    );
    this.place.addEventListener("input", () => this.look(+this.place.value));
    for (const select of [this.layer, this.head]) select.addEventListener("change", () => this.draw());
    return this.inside;
  }

  scroll(inner) {
    const name = inner.caption.textContent;
    return element("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": name }, inner);
  }

  open(number) {
    const { tokenizer, ...model } = this.documents[number];
    this.tokenizer = new Tokenizer(tokenizer);
    this.model = new Model(model);
    const { num_hidden_layers: layers, num_attention_heads: heads } = this.model.config;
    const numbers = (count) => Array.from({ length: count }, (_, i) => String(i + 1));
    this.layer.replaceChildren(...options(numbers(layers)));
    this.layer.value = String(layers - 1);
    this.head.replaceChildren(...options([...numbers(heads), "mean of all"]));
    this.head.value = String(heads);
    this.clear();
    this.status.textContent = "";
  }

  clear() {
    this.model.reset();
    this.decoder = new TextDecoder();
    this.ids = [];
    this.spans = [];
    this.text.replaceChildren();
    this.inside.hidden = true;
    this.follows = true;
  }

  warm() {
    const value = +this.temperature.value;
    this.heat.textContent = value === 0 ? "0 (greedy)" : value.toFixed(1);
  }

  // While it writes, the reader can only stop it; the keyboard's focus goes to the button that works.
  busy(on) {
    const focused = [this.start, this.end].includes(document.activeElement);
    this.start.disabled = this.choice.disabled = on;
    this.end.disabled = !on;
    if (focused) (on ? this.end : this.start).focus();
  }

  async write() {
    const { size, separator } = this.tokenizer;
    const count = +this.count.value, temperature = +this.temperature.value;
    this.clear();
    this.busy(true);
    this.status.textContent = "writing";
    this.stopped = false;
    this.turn = 0;
    let logits, made = 0, ended = false;
    for (const id of [separator, ...this.tokenizer.encode(this.prompt.value)]) {
      logits = this.put(id, "given");
      await this.pause();
      if (this.stopped) break;
    }
    const began = performance.now();
    while (made < count && !this.stopped) {
      const id = choose(logits, size, temperature);
      ended = id === separator;
      if (ended) break;
      logits = this.put(id, "new");
      made += 1;
      await this.pause();
    }
    const rate = made / (performance.now() - began) * 1000;
    const why = this.stopped ? "stopped" : ended ? "the model ended the text" : "done";
    this.status.textContent = `${why}: ${made} tokens${made ? `, ${rate.toFixed(0)} per second` : ""}`;
    this.busy(false);
    this.look(this.follows ? this.ids.length - 1 : +this.place.value);
  }

  // One token onto the page and into the model; returns the logits of the next. A character whose
  // bytes are several tokens appears with the last of them.
  put(id, kind) {
    const start = id === this.tokenizer.separator;
    const bytes = new Uint8Array(this.tokenizer.bytesOf(id));
    const text = start ? "start" : this.decoder.decode(bytes, { stream: true });
    this.ids.push(id);
    this.spans.push(element("span", { class: start ? "separator" : kind, "data-id": id }, text));
    this.text.append(this.spans.at(-1));
    return this.model.next(id);
  }

  // Let the browser draw and listen, if it has waited for long enough.
  async pause() {
    const began = performance.now();
    if (began < this.turn) return;
    if (this.follows) this.look(this.ids.length - 1, true);
    await new Promise((done) => { setTimeout(done); });
    const now = performance.now();
    this.turn = now + Math.max(SLICE, 3 * (now - began));
  }

  // Show the token at a place.
  look(place, writing = false) {
    this.inside.hidden = false;
    this.place.max = this.ids.length - 1;
    this.place.value = place;
    this.place.setAttribute("aria-valuetext", `${place}: ${this.name(place)}`);
    this.draw(writing);
  }

  name(place) {
    return quoted(this.tokenizer.show(this.ids[place]));
  }

  draw(writing = false) {
    const place = +this.place.value;
    this.drawAttention(place);
    this.drawPath(place, writing);
  }

  drawAttention(place) {
    const { num_attention_heads: heads } = this.model.config, head = +this.head.value;
    const asked = head < heads ? [head] : Array.from({ length: heads }, (_, i) => i);
    const each = asked.map((one) => this.model.attention(+this.layer.value, one, place));
    const weights = Array.from(each[0], (_, token) => each.reduce((sum, of) => sum + of[token], 0) / each.length);
    const most = Math.max(...weights);
    this.spans.forEach((span, token) => {
      span.style.setProperty("--weight", token <= place ? Math.sqrt(weights[token] / most).toFixed(3) : 0);
      span.classList.toggle("chosen", token === place);
    });
    const order = weights.map((weight, token) => [weight, token]).sort((a, b) => b[0] - a[0]).slice(0, TOP);
    fill(this.seen, order.map(([weight, token]) => [this.name(token), String(token), weight.toFixed(3)]));
  }

  drawPath(place, writing) {
    const path = this.model.paths[place], last = path.at(-1);
    const reads = !writing || path.length * this.model.head.rows * last.length < LENS;
    fill(this.path, path.map((h, i) => [
      i === 0 ? "embedding" : `layer ${Math.ceil(i / 2)} ${i % 2 ? "attention" : "MLP"}`,
      i === 0 ? "" : `${degrees(path[i - 1], h).toFixed(0)}°`, `${degrees(h, last).toFixed(0)}°`,
      reads ? quoted(this.tokenizer.show(choose(this.model.logits(h), this.tokenizer.size, 0))) : "",
    ]));
    const across = unit(path[0]), span = dot(across, unit(last));
    const up = unit(unit(last).map((value, i) => value - span * across[i]));
    const points = path.map((h) => [dot(unit(h), across), -dot(unit(h), up)]);
    this.plane.replaceChildren(
      shape("circle", { r: 1, class: "sphere" }),
      shape("polyline", { points: points.map((point) => point.join()).join(" ") }),
      ...points.map(([cx, cy], i) => shape("circle", { cx, cy, r: i % 2 ? 0.02 : 0.035, class: "state" })),
      shape("text", { x: points[0][0] - 0.06, y: points[0][1] + 0.14, "text-anchor": "end" }, "embedding"),
      shape("text", { x: points.at(-1)[0] * 0.85, y: points.at(-1)[1] * 0.85 + 0.04, "text-anchor": "middle" }, "last"),
    );
  }
}

document.querySelectorAll(".playground").forEach((root) => {
  new Panel(root, JSON.parse(root.parentNode.querySelector(".models").textContent));
});
