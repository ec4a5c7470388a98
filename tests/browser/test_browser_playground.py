"""The playground in headless Chromium: it writes what torch writes, with mouse and keyboard."""

import json

import pytest
import torch
from browser.chromium import Chromium, wait
from report.made_up import NASTY, make_run
from report.test_playground import ARMS, OTHERS, made, tensors_of

from unitsphere.data.tokenizer import ByteTokenizer, Tokenizer, train_bpe
from unitsphere.inference.decode import eager
from unitsphere.models.exported import load_exported, twin_config
from unitsphere.report.document import Playground, Section
from unitsphere.report.registry import page_of
from unitsphere.report.sections.texts import INTRO, model_document
from unitsphere.report.write import document

pytestmark = pytest.mark.browser
TOKENS = dict.fromkeys(OTHERS, 200) | dict.fromkeys(ARMS, 1000)
PROMPT = "It's 1920–1944:\n\n  the  Pärnu’s 東京 🙂 we'll\tgo <|endoftext|> "


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_bpe([f"{PROMPT} and the theme of that, {i} times" for i in range(40)], 320)


@pytest.fixture(scope="module")
def models(bpe) -> dict[str, dict]:
    """A model for each arm and architecture, as the page has it."""
    found = {}
    for name, (architecture, more) in (ARMS | OTHERS).items():
        tokenizer = bpe if name in ARMS else ByteTokenizer()
        found[name] = model_document(name, architecture, made(architecture, more), tokenizer)
    found["best"]["name"] = NASTY
    return found


@pytest.fixture(scope="module")
def address(tmp_path_factory, models) -> str:
    folder = make_run(tmp_path_factory.mktemp("playground") / "run", "quickstart/ngpt")
    section = Section("playground", "Write", [Playground(list(models.values()))], INTRO)
    path = folder / "report.html"
    path.write_text(document(page_of(folder).with_section(section), folder), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def page(chromium, address):
    """The page, fresh; afterwards nothing has been complained of or asked for."""
    chromium.open(address)
    yield chromium
    assert chromium.errors() == []
    assert chromium.requests() == [address]


def give(page: Chromium, selector: str, value: object) -> None:
    where = f"document.querySelector('.playground {selector}')"
    page.run(
        f"(e => {{ e.value = {json.dumps(value)}; e.dispatchEvent(new Event('input')); "
        f"e.dispatchEvent(new Event('change')) }})({where})"
    )


def write(
    page: Chromium, model: int, prompt: str, tokens: int, temperature: float = 0
) -> list[int]:
    """Let a model write; the ids on the page, with the separator and the prompt."""
    give(page, "form select", model)
    give(page, "textarea", prompt)
    give(page, "input[type=number]", tokens)
    give(page, "form input[type=range]", temperature)
    page.run("document.querySelector('.write').click()")
    wait(lambda: not page.run("document.querySelector('.write').disabled"), 200)
    return page.run("[...document.querySelectorAll('.written span')].map(s => +s.dataset.id)")


@torch.inference_mode()
def greedy(models, name: str, given: list[int], tokenizer: Tokenizer) -> tuple[list[int], float]:
    """What torch writes in fp32 with the page's weights, and the smallest margin of a choice."""
    architecture, more = (ARMS | OTHERS)[name]
    config = twin_config(made(architecture, more).config, more.get("tied", False))
    model = load_exported(architecture, config, "clm", tensors_of(models[name]))
    following = eager(model, 1, len(given) + TOKENS[name], None)
    tokens, found, margin = torch.tensor([given]), [], float("inf")
    while len(found) < TOKENS[name]:
        best = following(tokens)[0, : tokenizer.vocab_size].topk(2)
        if int(best.indices[0]) == tokenizer.separator:
            break
        found.append(int(best.indices[0]))
        margin = min(margin, float(best.values[0] - best.values[1]))
        tokens = best.indices[None, :1]
    return found, margin


@pytest.mark.parametrize("name", [*ARMS, *OTHERS])
def test_it_writes_what_torch_writes(page, models, bpe, name):
    tokenizer = bpe if name in ARMS else ByteTokenizer()
    given = [tokenizer.separator, *tokenizer.encode(PROMPT)]
    expected, margin = greedy(models, name, given, tokenizer)
    assert margin > 1e-5, "too near for fp32: another seed"
    found = write(page, [*models].index(name), PROMPT, TOKENS[name])
    assert found[: len(given)] == given
    assert found[len(given) :] == expected
    assert page.run("document.querySelector('.written').textContent").startswith("start" + PROMPT)


def test_every_character_is_encoded_as_the_tokenizer_does(page, bpe):
    spaces, accents = "a  b\u00a0\u0085c\ufeffd\u2028\n \n", "e\u0301 ñ\U0001f468\u200d"
    for prompt in ("", " ", spaces, accents, "x²Ⅷ٣_-'S 'll'"):
        found = write(page, 0, prompt, 1)
        assert found[: 1 + len(bpe.encode(prompt))] == [bpe.separator, *bpe.encode(prompt)]


STOP = """new Promise((done) => {
  const text = document.querySelector(".written");
  new MutationObserver((_, observer) => {
    if (text.childElementCount < 3) return;
    observer.disconnect();
    document.querySelector(".stop").click();
    done();
  }).observe(text, { childList: true });
  document.querySelector(".write").click();
})"""


def test_it_can_be_stopped_and_a_keyboard_is_enough(page):
    write(page, 0, "the theme of that", 1)
    page.run(STOP)
    wait(lambda: not page.run("document.querySelector('.write').disabled"))
    assert page.run("document.querySelector('.status').textContent").startswith("stopped: ")
    page.run("window.focused = []; document.querySelector('.write').focus()")
    page.run("document.addEventListener('focusin', (e) => focused.push(e.target.className))")
    page.press("Enter", "\r")
    wait(lambda: page.run("focused.slice(-2)") == ["stop", "write"])
    page.run("document.querySelector('.place').focus()")
    before = page.run("document.querySelector('.place').getAttribute('aria-valuetext')")
    page.press("ArrowLeft")
    assert page.run("document.querySelector('.place').getAttribute('aria-valuetext')") != before


def test_attention_adds_up_and_the_path_ends_at_the_last_state(page):
    write(page, 1, "the theme", 12, 0.7)
    rows = "[...document.querySelectorAll('.looks figure:nth-child({}) tbody tr')]"
    weights = page.run(rows.format(1) + ".map(r => +r.cells[2].textContent)")
    assert weights == sorted(weights, reverse=True)
    assert 0 < sum(weights) <= 1.01
    path = page.run(rows.format(3) + ".map(r => [...r.cells].map(c => c.textContent))")
    assert [row[0] for row in path][:3] == ["embedding", "layer 1 attention", "layer 1 MLP"]
    assert path[-1][2] == "0°"
    give(page, ".place", 2)
    assert page.run("document.querySelectorAll('.written .chosen').length") == 1
    seen = page.run(rows.format(1) + ".map(r => +r.cells[1].textContent)")
    assert sorted(seen) == [0, 1, 2]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1440])
def test_it_fits_every_width(chromium, address, width, dark):
    chromium.open(address, width, dark=dark)
    write(chromium, 1, "the theme of that", 40, 0.8)
    assert chromium.run("document.documentElement.scrollWidth") <= width


def test_everything_has_a_name(page):
    write(page, 0, "the", 3)
    page.call("Accessibility.enable")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "slider", "combobox", "spinbutton", "textbox", "region", "table"}
    seen = set()
    for node in nodes:
        role = node.get("role", {}).get("value")
        if role in roles and not node["ignored"]:
            seen.add(role)
            assert node.get("name", {}).get("value"), node
    assert seen == roles
    page.call("Accessibility.disable")
