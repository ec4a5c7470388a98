// A trained model in the browser: its tokenizer, and the folded model one token at a time.
//
// A row of a matrix is int8 times a scale. Everything is computed in double precision, so the logits
// are exact to about 1e-13, and differ from torch's by torch's own rounding in fp32. Only the angles of
// RoPE are rounded as torch rounds them: at position 1,000 that is worth 3e-5 of a turn.

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

// The character of each byte in a byte-level BPE (GPT-2's): printable ones are themselves.
function byteCharacters() {
  const printable = (b) => (b > 0x20 && b < 0x7f) || (b > 0xa0 && b < 0xad) || b > 0xad;
  let other = 0x100;
  return Array.from({ length: 256 }, (_, b) => String.fromCharCode(printable(b) ? b : other++));
}

// GPT-2's words: contractions, letters, numbers, other signs, white space.
const WORDS = new RegExp(
  "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\p{White_Space}\\p{L}\\p{N}]+"
    + "|\\p{White_Space}+(?!\\P{White_Space})|\\p{White_Space}+", "gu",
);

class Tokenizer {
  constructor({ kind, size, separator, vocab, merges }) {
    Object.assign(this, { size, separator });
    this.characters = byteCharacters();
    if (kind === "bytes") {
      this.ids = null;
      return;
    }
    this.ids = new Map(Object.entries(vocab));
    this.tokens = new Map([...this.ids].map(([token, id]) => [id, token]));
    this.ranks = new Map(merges.map(([left, right], rank) => [`${left} ${right}`, rank]));
    this.bytes = new Map(this.characters.map((character, byte) => [character, byte]));
  }

  encode(text) {
    const utf8 = new TextEncoder();
    if (!this.ids) return [...utf8.encode(text)];
    return (text.match(WORDS) || []).flatMap((word) => {
      const characters = [...utf8.encode(word)].map((byte) => this.characters[byte]);
      return this.merge(characters).map((token) => this.ids.get(token));
    });
  }

  // The first of the pairs with the lowest rank becomes one, until no pair has a rank.
  merge(parts) {
    for (;;) {
      let best = Infinity, at = -1;
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = this.ranks.get(`${parts[i]} ${parts[i + 1]}`);
        if (rank < best) [best, at] = [rank, i];
      }
      if (at < 0) return parts;
      parts.splice(at, 2, parts[at] + parts[at + 1]);
    }
  }

  bytesOf(id) {
    if (id === this.separator) return [];
    return this.ids ? [...(this.tokens.get(id) || "")].map((c) => this.bytes.get(c)) : [id];
  }

  // A token by itself, for a reader: a part of a character becomes U+FFFD.
  show(id) {
    return id === this.separator ? "start" : new TextDecoder().decode(new Uint8Array(this.bytesOf(id)));
  }
}

// W x. Four sums at once, because each has to wait for its last addition.
function product({ rows, columns, codes, scales }, x) {
  const y = new Float64Array(rows);
  let at = 0;
  for (let row = 0; row < rows; row++) {
    let a = 0, b = 0, c = 0, d = 0, i = 0;
    for (; i + 3 < columns; i += 4, at += 4) {
      a += codes[at] * x[i];
      b += codes[at + 1] * x[i + 1];
      c += codes[at + 2] * x[i + 2];
      d += codes[at + 3] * x[i + 3];
    }
    for (; i < columns; i++, at++) a += codes[at] * x[i];
    y[row] = scales[row] * (a + b + c + d);
  }
  return y;
}

function dot(x, y) {
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += x[i] * y[i];
  return sum;
}

function unit(x) {
  const length = Math.max(Math.sqrt(dot(x, x)), Number.MIN_VALUE);
  return x.map((value) => value / length);
}

const ACTIVATIONS = { silu: (x) => x / (1 + Math.exp(-x)), relu2: (x) => Math.max(x, 0) ** 2 };
const lerp = (h, x, alpha) => h.map((value, i) => value + alpha[i] * (x[i] - value));
// How h moves by a sublayer's output x: nGPT's and anGPT's steps.
const STEPS = {
  lerp_norm: (h, x, alpha) => unit(lerp(h, unit(x), alpha)),
  lerp_nu: (h, x, alpha) => lerp(h, unit(x), alpha).map((s, i) => s / Math.hypot(1 - alpha[i], alpha[i])),
  lerp: (h, x, alpha) => lerp(h, unit(x), alpha),
  add_norm: (h, x, alpha) => unit(h.map((value, i) => value + alpha[i] * x[i])),
};

// Attention's weights, softmax of q·k over some keys.
function softmax(scores) {
  const largest = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  const powers = scores.map((score) => Math.exp(score - largest));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}

class Model {
  constructor({ config, tensors, frequencies, codes, floats }) {
    this.config = config;
    this.frequencies = frequencies;
    this.tensors = this.read(tensors, new Int8Array(bytesOf(codes).buffer), new Float32Array(bytesOf(floats).buffer));
    this.layers = Array.from({ length: config.num_hidden_layers }, (_, i) => `model.layers.${i}.`);
    this.embedding = this.tensors["model.embed_tokens.weight"];
    this.head = this.tensors["lm_head.weight"] || this.embedding;
    this.reset();
  }

  read(shapes, codes, floats) {
    const found = {};
    let code = 0, float = 0;
    for (const [name, shape] of shapes) {
      const size = shape.reduce((a, b) => a * b, 1);
      if (shape.length === 2) {
        const [rows, columns] = shape;
        const scales = floats.subarray(float, float += rows);
        found[name] = { rows, columns, scales, codes: codes.subarray(code, code += size) };
      } else {
        found[name] = floats.subarray(float, float += size);
      }
    }
    return found;
  }

  // Forget the text: its keys and values, and what the page shows of each token.
  reset() {
    this.length = 0;
    this.keys = this.layers.map(() => []);
    this.values = this.layers.map(() => []);
    this.queries = this.layers.map(() => []);
    this.paths = [];
  }

  // The logits after one more token.
  next(token) {
    const { columns, codes, scales } = this.embedding;
    let h = Float64Array.from(codes.subarray(token * columns, (token + 1) * columns), (code) => scales[token] * code);
    const path = [h];
    this.layers.forEach((at, layer) => {
      h = this.sublayer(h, at, "attention", (x) => this.attend(x, layer));
      path.push(h);
      h = this.sublayer(h, at, "mlp", (x) => this.mlp(x, at));
      path.push(h);
    });
    this.paths.push(path);
    this.length += 1;
    return this.logits(h);
  }

  logits(h) {
    return product(this.head, this.norm(h, "model.norm."));
  }

  sublayer(h, at, name, function_) {
    const { block, step } = this.config;
    if (block === "pre_norm") {
      const x = function_(this.norm(h, `${at}${name}_norm.`));
      return h.map((value, i) => value + x[i]);
    }
    let x = function_(h);
    const gate = this.tensors[`${at}gate_${name}`];
    if (gate) {
      const open = 2 / (1 + Math.exp(-dot(gate, h)));
      x = x.map((value) => open * value);
    }
    return STEPS[step](h, x, this.tensors[`${at}alpha_${name}`]);
  }

  // RMSNorm or DyT of the tensors there; x itself where there are none.
  norm(x, at) {
    const gain = this.tensors[`${at}weight`];
    if (!gain) return x;
    if (this.config.norm === "dyt") {
      const [alpha] = this.tensors[`${at}alpha`], bias = this.tensors[`${at}bias`];
      return x.map((value, i) => gain[i] * Math.tanh(alpha * value) + (bias ? bias[i] : 0));
    }
    const root = Math.sqrt(dot(x, x) / x.length + this.config.norm_eps);
    return x.map((value, i) => gain[i] * value / root);
  }

  mlp(x, at) {
    const activation = ACTIVATIONS[this.config.hidden_act || "silu"];
    const u = product(this.tensors[`${at}mlp.up_proj.weight`], x);
    const nu = product(this.tensors[`${at}mlp.gate_proj.weight`], x);
    return product(this.tensors[`${at}mlp.down_proj.weight`], u.map((value, i) => value * activation(nu[i])));
  }

  attend(x, layer) {
    const { num_attention_heads: heads, num_key_value_heads: groups, head_dim: size } = this.config;
    const at = `${this.layers[layer]}self_attn.`;
    const project = (name, count) => {
      const y = product(this.tensors[`${at}${name}_proj.weight`], x);
      return Array.from({ length: count }, (_, i) => y.subarray(i * size, (i + 1) * size));
    };
    const gain = this.tensors[`${at}logit_gain`], scale = this.tensors[`${at}qk_scale`];
    const scaled = (head, group) => {
      const y = this.rotate(head);
      return scale ? y.map((value, i) => value * scale[group * size + i]) : y;
    };
    const q = project("q", heads).map((head, i) => scaled(head, Math.floor(i * groups / heads)));
    this.queries[layer].push(gain ? q.map((head, i) => head.map((value) => value * gain[i])) : q);
    this.keys[layer].push(project("k", groups).map(scaled));
    this.values[layer].push(project("v", groups));
    const found = new Float64Array(heads * size);
    for (let head = 0; head < heads; head++) {
      const group = Math.floor(head * groups / heads);
      this.attention(layer, head, this.length).forEach((weight, token) => {
        if (weight === 0) return;
        const value = this.values[layer][token][group];
        for (let i = 0; i < size; i++) found[head * size + i] += weight * value[i];
      });
    }
    return product(this.tensors[`${at}o_proj.weight`], found);
  }

  // RoPE at the position of the token that is read, then Norm if the model has QK norm.
  rotate(head) {
    const y = Float64Array.from(head), half = this.frequencies.length;
    for (let i = 0; i < half; i++) {
      const angle = Math.fround(this.length * this.frequencies[i]);
      const cos = Math.cos(angle), sin = Math.sin(angle);
      y[i] = head[i] * cos - head[i + half] * sin;
      y[i + half] = head[i + half] * cos + head[i] * sin;
    }
    return this.config.qk_norm ? unit(y) : y;
  }

  // How much the token at a place looks at each token up to itself.
  attention(layer, head, place) {
    const { num_attention_heads: heads, num_key_value_heads: groups, attention_scale: scale = 1, sliding_window: window } = this.config;
    const q = this.queries[layer][place][head], group = Math.floor(head * groups / heads);
    const first = window ? Math.max(0, place - window + 1) : 0;
    const scores = new Float64Array(place + 1 - first);
    for (let key = first; key <= place; key++) scores[key - first] = scale * dot(q, this.keys[layer][key][group]);
    const weights = new Float64Array(place + 1);
    weights.set(softmax(scores), first);
    return weights;
  }
}

// The token of the largest logit, or drawn at a temperature; `size` leaves out ids without a token.
function choose(logits, size, temperature) {
  const kept = logits.subarray(0, size);
  if (temperature === 0) return kept.reduce((best, logit, id) => (logit > kept[best] ? id : best), 0);
  const weights = softmax(kept.map((logit) => logit / temperature));
  let left = Math.random();
  const id = weights.findIndex((weight) => (left -= weight) < 0);
  return id < 0 ? choose(logits, size, 0) : id;
}
