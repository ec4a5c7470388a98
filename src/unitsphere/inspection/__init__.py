"""Probes: the measurements behind the papers' figures of a model, and some more.

A probe is a small function of a model (some also of a batch, gradients or an optimizer's moments)
that returns plain values. It has one of two forms, in both a dict of series by name:

    layers         {"labels": ["0", "1", …], "values": [1.0, null, …]}
    distribution   {"labels": [...], "means": [...], "quantiles": [[...], …],
                    "edges": [...], "counts": [...]}

A label is a layer ("0" …, of an encoder "enc 0" …), or "" for the whole model. Quantiles are those
of `values.QUANTILES`, a list for each label; the histogram is over all labels together. null is a
value that is NaN or infinite. `probes.PROBES` lists the probes; `unitsphere inspect
RUN` puts what they find at each checkpoint into one document:

    {"run", "architecture", "checkpoints": [step, …], "batch": {"rows", "tokens"},
     "probes": {name: {"title", "source", "applies": bool, "why": "" or why not,
                       "values": {"form", "axis": "layer" | "step", "unit", "log": bool,
                                  "steps": [step, …], "series": [{name: series}, …],
                                  "live": {"steps": [...], "series": [...]}}}}}

where `series` has an entry for each of `steps`, and `live` what the run itself recorded. In a run's
metrics.jsonl a live record has a number under each key `probe/<probe>/<series>/<label>`.
"""
