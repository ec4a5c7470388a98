"""The text of a recipe so small that a run of it takes a second, and a text to train it on."""

TEXT = "The cat sat on the mat, and that was that.\n" * 100


def tiny_recipe(
    architecture: str = "ngpt",
    *,
    source: str = "text.txt",
    tokenizer: str = "bytes",
    context: int = 16,
    d_model: int = 16,
    n_layers: int = 1,
    lr: float | None = None,
    data: str = "",
    **train: object,
) -> str:
    """TOML of a run on a CPU: `train` are keys of [train], `data` more lines of [data]."""
    settings = {"steps": 2, "batch_tokens": 32, "device": "cpu", "precision": "fp32"} | train
    lines = "\n".join(f"{key} = {value!r}".replace("'", '"') for key, value in settings.items())
    return f"""
architecture = "{architecture}"
[model]
d_model = {d_model}
n_layers = {n_layers}
n_heads = 2
[data]
source = "{source}"
tokenizer = "{tokenizer}"
context = {context}
cache = "cache"
{data}
{"" if lr is None else f"[optim]{chr(10)}lr = {lr}"}
[train]
{lines}
"""
