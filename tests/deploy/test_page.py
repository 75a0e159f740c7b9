"""The server's page, used as a person uses it: in a real browser, on a real server and policy."""

import json
import re
import shutil
import subprocess
import urllib.request
from urllib.parse import urlsplit

import numpy as np
import pytest
from asking import patient
from browser import CONTROL, SHIFT, Browser, chromium

import gemrl
from gemrl.deploy.serve import Server

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium is installed")

KNOBS = gemrl.Knobs(n=64, wp=0.4)
# With the default backend a server decides with the shapes of its profiles alone.
PROFILES = {
    "wide": gemrl.Knobs(n=128, wp=0.4),
    "scheduled": gemrl.Knobs(n=64, wp=gemrl.Cosine(end=0.2, horizon=100)),
}
TOKEN = "a-token-for-tests"
SETTLED = (
    "document.querySelector('#result-problem')?.hidden && document.querySelector('#audits td')"
)
FOCUSABLE = "a[href], button, input, select, textarea, summary, [tabindex='0']"


@pytest.fixture(scope="module")
def policy(run_folder):
    """A policy of the backend that compiles a program for each number of candidates."""
    return gemrl.load(run_folder, backend="jax")


@pytest.fixture(scope="module")
def server(policy, maze_data):
    config = patient()
    with Server(policy, config, knobs=KNOBS, profiles=PROFILES, states=maze_data) as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    with Browser() as started:
        started.size(1280, 900)
        yield started


@pytest.fixture
def live(browser, server):
    browser.go("about:blank")
    browser.go(f"{server.url}/#live")
    browser.wait("document.querySelector('#status').textContent === 'ready'")
    return browser


@pytest.fixture
def watched(live, server, observations):
    post(server, observation=observations[0].tolist())
    live.wait("!document.querySelector('#live-data').hidden")
    return live


@pytest.fixture
def explore(browser, server):
    browser.go("about:blank")
    browser.go(f"{server.url}/#explore")
    browser.wait(f"Boolean({SETTLED})")
    return browser


def post(server, **request):
    """Ask for an action, as a robot's program would."""
    sent = urllib.request.Request(
        f"{server.url}/v1/act", json.dumps(request).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(sent) as answer:
        return json.load(answer)


def shown_action(browser):
    """The executed action in the explorer, with all its digits."""
    script = "[...document.querySelectorAll('#actions tbody tr')].map((row) => row.cells[1].title)"
    return np.array([float(text) for text in browser.run(script)], np.float32)


def assert_shows(browser, action):
    """Wait until the explorer shows an action, up to rounding between batch sizes."""
    close = " && ".join(
        f"Math.abs(Number(document.querySelectorAll('#actions tbody tr')[{i}].cells[1].title)"
        f" - ({value})) < 1e-5"
        for i, value in enumerate(np.asarray(action).tolist())
    )
    browser.wait(close)
    np.testing.assert_allclose(shown_action(browser), action, atol=1e-5)


def state_in(browser):
    return [float(browser.value(f"#state-{i}")) for i in range(4)]


def test_with_no_decision_yet_the_page_gives_a_command_that_sends_one(live):
    assert not live.run("document.querySelector('#live-empty').hidden")
    assert live.run("document.querySelector('#live-data').hidden")
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    command = live.value("#empty-curl")
    assert "Authorization" not in command
    answer = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert len(json.loads(answer.stdout)["action"]) == 2
    live.wait("!document.querySelector('#live-data').hidden")
    assert live.run("document.querySelector('#live-empty').hidden")


def test_the_page_loads_without_an_error_and_asks_no_other_host(live, server):
    live.click("#nav-explore")
    live.wait(f"Boolean({SETTLED})")
    live.click("#random")
    live.wait("document.querySelector('#state-about').textContent.startsWith('Row')")
    assert live.trouble == []
    hosts = {urlsplit(address).netloc for address in live.addresses if "://" in address}
    assert hosts == {urlsplit(server.url).netloc}
    assert len(live.addresses) > 10


def test_the_header_says_which_policy_answers(live, policy):
    assert live.text("#policy-name") == "gem on maze2d-umaze-v1"
    assert live.text("#digest") == policy.digest[:12]
    assert live.text("#fact-version") == gemrl.__version__
    assert live.text("#fact-backend") == policy.backend.name


def test_a_decision_sent_by_post_appears_live(live, server, observations):
    answer = post(server, observation=observations[3].tolist(), seed=5, episode="robot-7", t=11)
    live.wait("document.querySelector('#decisions tbody')?.textContent.includes('robot-7')")
    cells = live.run(
        "[...document.querySelector('#decisions tbody tr').cells].map((c) => c.textContent)"
    )
    assert cells[3:5] == ["robot-7", "11"]
    assert cells[5].replace("−", "-") == ", ".join(f"{value:.2f}" for value in answer["action"])
    assert cells[6] == "65"
    label = live.wait("document.querySelector('#live-cloud canvas').getAttribute('aria-label')")
    assert "65 candidates" in label
    # The picture holds more than its background.
    assert live.run(
        """(() => {
          const canvas = document.querySelector('#live-cloud canvas');
          const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
          return new Set(new Uint32Array(data.buffer)).size;
        })()"""
    ) > 20  # fmt: skip


def test_markup_in_an_episode_id_is_shown_as_text(live, server, observations):
    name = "<img src=x onerror=\"document.title='run'\">"
    post(server, observation=observations[0].tolist(), episode=name)
    live.wait("document.querySelector('#decisions tbody')?.textContent.includes('onerror')")
    assert name in live.text("#decisions tbody")
    assert live.run("document.querySelectorAll('#decisions img').length") == 0
    assert live.run("document.title") != "run"


def test_pausing_holds_the_picture_and_says_what_is_missed(live, server, observations):
    post(server, observation=observations[1].tolist(), episode="before")
    live.wait("document.querySelector('#decisions tbody')?.textContent.includes('before')")
    live.click("#pause")
    post(server, observation=observations[2].tolist(), episode="meanwhile")
    live.wait("document.querySelector('#pause').textContent === 'Resume (1 new)'")
    assert "meanwhile" not in live.text("#decisions tbody")
    live.click("#pause")
    live.wait("document.querySelector('#decisions tbody').textContent.includes('meanwhile')")


@pytest.mark.parametrize(
    ("slider", "presses", "changed"),
    [("wp", 12, {"wp": 1.0}), ("n", 1, {"n": 128}), ("lam", 7, {"lam": 1.7})],
)
def test_moving_a_slider_shows_what_the_policy_decides(
    explore, policy, maze_data, slider, presses, changed
):
    knobs = gemrl.Knobs(**{**vars(KNOBS), **changed})

    def decided(row, setting):
        return policy.decide(maze_data.observations[row], setting, seed=0).action

    row = next(r for r in range(0, 20_000, 97) if (decided(r, knobs) != decided(r, KNOBS)).any())
    explore.fill("#row", str(row))
    explore.press("Enter")
    assert_shows(explore, decided(row, KNOBS))
    explore.click(f"label[for={slider}]")
    explore.press("Tab", modifiers=SHIFT)
    explore.press("ArrowRight", presses)
    ((name, value),) = changed.items()
    assert float(explore.value(f"#{name}")) == value
    explore.wait(f"document.querySelector('#changes').textContent.endsWith('⇒ {value:g}.')")
    assert_shows(explore, decided(row, knobs))
    explore.click("#reset")
    explore.wait("document.querySelector('#changes').textContent.includes('default')")
    assert_shows(explore, decided(row, KNOBS))


def test_another_seed_draws_other_candidates(explore, policy):
    state = state_in(explore)
    explore.fill("#seed", "7")
    assert_shows(explore, policy.decide(state, KNOBS, seed=7).action)


def test_a_schedule_asks_for_the_step_of_the_episode(explore, policy):
    assert explore.run("document.querySelector('#t').closest('.control').hidden")
    explore.run("document.querySelector('#profile').focus()")
    explore.press("ArrowDown", 2)
    explore.wait("document.querySelector('#profile').value === 'profile:scheduled'")
    explore.fill("#t", "50")
    explore.wait("document.querySelector('#result .facts').textContent.includes('used0.600')")
    expected = policy.decide(state_in(explore), PROFILES["scheduled"], seed=0, t=50)
    assert_shows(explore, expected.action)


def test_picking_a_state_of_the_dataset_fills_it_in(explore, policy, maze_data):
    starts = maze_data.episode_starts
    episode = int(np.argmax(np.diff(starts)))
    last = int(starts[episode + 1]) - 1
    about = "document.querySelector('#state-about').textContent"
    explore.fill("#row", str(last - 1))
    explore.press("Enter")
    explore.wait(f"{about}.endsWith('episode {episode}, step {last - 1 - starts[episode]}.')")
    explore.click("#next")
    explore.wait(f"{about}.endsWith('episode {episode}, step {last - starts[episode]}.')")
    np.testing.assert_array_equal(np.float32(state_in(explore)), maze_data.observations[last])
    assert_shows(explore, policy.decide(maze_data.observations[last], KNOBS, seed=0).action)
    logged = explore.run("document.querySelector('#actions tbody tr').cells[5].title")
    assert np.float32(logged) == maze_data.actions[last, 0]
    explore.click("#next")
    explore.wait(f"{about} === 'Episode {episode} ends here.'")
    assert explore.value("#row") == str(last)
    explore.fill("#row", "99999999")
    explore.press("Enter")
    explore.wait(f"{about}.startsWith('row = 99999999')")


def test_a_wrong_state_shows_the_servers_message(explore, policy):
    before = shown_action(explore)
    explore.fill("#state-1", "fast")
    explore.wait("!document.querySelector('#state-problem').hidden")
    assert "not a number" in explore.text("#state-problem")
    assert explore.run("document.querySelector('#state-1').getAttribute('aria-invalid')") == "true"
    assert "no answer" in explore.text("#result-problem")
    np.testing.assert_array_equal(shown_action(explore), before)
    explore.fill("#state-1", "0.5")
    explore.wait("document.querySelector('#state-problem').hidden")
    assert_shows(explore, policy.decide(state_in(explore), KNOBS, seed=0).action)


def test_a_pasted_list_is_taken_and_one_of_the_wrong_length_refused(explore, policy):
    explore.click("#state summary")
    explore.fill("#paste", "[1.5, 2, -0.25]")
    explore.click("#use-paste")
    explore.wait("!document.querySelector('#state-problem').hidden")
    assert "shape (3,)" in explore.text("#state-problem")
    explore.fill("#paste", "[1.5, 2, -0.25, 0]")
    explore.click("#use-paste")
    explore.wait("document.querySelector('#state-problem').hidden")
    assert state_in(explore) == [1.5, 2, -0.25, 0]
    assert_shows(explore, policy.decide([1.5, 2, -0.25, 0], KNOBS, seed=0).action)


def test_a_wrong_knob_shows_the_servers_message_beside_it(explore):
    explore.fill("#n", "5000")
    explore.wait("!document.querySelector('#n-problem').hidden")
    assert explore.text("#n-problem") == "n = 5000: this server takes 4096 at most"
    explore.fill("#n", "64")
    explore.wait("document.querySelector('#n-problem').hidden")
    explore.fill("#wp", "much")
    # The page asks while the word is being typed.
    explore.wait("document.querySelector('#wp-problem').textContent.startsWith(\"wp = 'much'\")")
    assert explore.text("#wp-problem").startswith("wp = 'much': must be")
    assert not explore.run("document.querySelector('#wp-problem').hidden")


def test_the_copied_code_gives_the_shown_action(explore, server, run_folder):
    explore.fill("#wp", "0.85")
    explore.fill("#seed", "3")
    explore.wait("document.querySelector('#code-text').value.includes('seed=3')")
    shown = shown_action(explore)
    explore.click("#state summary")
    copied = {}
    for language in ("python", "json", "curl"):
        explore.click(f"#code input[value={language}]")
        explore.click("#code-copy")
        explore.wait("document.querySelector('#code-copy').textContent === 'Copied'")
        explore.fill("#paste", " ")
        explore.press("v", modifiers=CONTROL, command="paste")
        copied[language] = explore.value("#paste")
        assert copied[language].strip() == explore.value("#code-text")
    names = {}
    exec(copied["python"].replace('"RUN"', repr(str(run_folder))).strip(), names)
    assert names["knobs"] == gemrl.Knobs(**{**vars(KNOBS), "wp": 0.85})
    np.testing.assert_allclose(names["decision"].action, shown, atol=1e-5)
    request = json.loads(copied["json"])
    assert request["knobs"]["wp"] == 0.85
    np.testing.assert_allclose(post(server, **request)["action"], shown, atol=1e-5)
    assert json.loads(re.search(r"-d '(.*)'", copied["curl"])[1]) == request


def test_only_what_the_server_has_compiled_can_be_chosen(explore):
    assert explore.run("Number(document.querySelector('#n-slider').max)") == 2  # 0, 64 and 128.
    assert explore.run("document.querySelector('#k_smooth-slider').disabled")
    assert explore.run("document.querySelector('#temperature-slider').disabled")
    words = explore.run("[...document.querySelectorAll('#source option')].map((o) => o.value)")
    assert words == ["actor"]


@pytest.mark.parametrize("view", ["watched", "explore"])
def test_the_keyboard_alone_reaches_every_control(request, view):
    browser = request.getfixturevalue(view)
    names = (
        f'[...document.querySelectorAll("{FOCUSABLE}")]'
        ".filter((e) => e.checkVisibility() && !e.disabled && (e.type !== 'radio' || e.checked))"
    )
    browser.run(f"{names}.forEach((e, i) => {{ e.dataset.stop = i; }})")
    wanted = browser.run(f"{names}.length")
    assert wanted > 8
    browser.run("document.querySelector('.skip').focus()")
    reached = []
    for stop in range(wanted):
        browser.press("Tab", times=min(stop, 1))
        reached.append(
            browser.run(
                "[Number(document.activeElement.dataset.stop),"
                " getComputedStyle(document.activeElement).outlineStyle]"
            )
        )
    # In the order in which they are read, each with a rim to see.
    assert [stop for stop, _ in reached] == list(range(wanted))
    assert {style for _, style in reached} == {"solid"}


@pytest.mark.parametrize("view", ["watched", "explore"])
def test_on_a_phone_nothing_scrolls_sideways_and_targets_fit_a_thumb(request, view):
    browser = request.getfixturevalue(view)
    browser.size(390, 844, phone=True)
    try:
        assert browser.run("document.documentElement.scrollWidth") == 390
        beyond = browser.run(
            "[...document.querySelectorAll('main *')].filter((e) => e.checkVisibility()"
            " && !e.closest('.scroll, textarea, .unseen')"
            " && e.getBoundingClientRect().right > 390.5).map((e) => e.outerHTML.slice(0, 80))"
        )
        assert beyond == []
        small = browser.run(
            "[...document.querySelectorAll('nav a, button, select, input, summary')]"
            ".filter((e) => e.checkVisibility())"
            ".map((e) => ['checkbox', 'radio'].includes(e.type) ? e.closest('label') : e)"
            ".filter((e) => e.getBoundingClientRect().height < 44).map((e) => e.outerHTML)"
        )
        assert small == []
    finally:
        browser.size(1280, 900)


def test_both_colour_schemes_keep_their_contrast(live):
    colours = {}
    try:
        for scheme in ("light", "dark"):
            live.scheme(scheme)
            colours[scheme] = {
                name: live.run(
                    f"getComputedStyle(document.documentElement).getPropertyValue('--{name}')"
                ).strip()
                for name in ("surface", "back", "text", "muted", "accent", "bad", "good", "second",
                             "edge", "on-accent", "bad-tint")
            }  # fmt: skip
            colours[scheme]["page"] = live.run("getComputedStyle(document.body).backgroundColor")
    finally:
        live.scheme("light")
    assert colours["light"]["page"] != colours["dark"]["page"]
    for found in colours.values():
        for name in ("text", "muted", "accent", "bad", "good", "second"):
            assert contrast(found[name], found["surface"]) >= 4.5, name
            assert contrast(found[name], found["back"]) >= 4.5, name
        assert contrast(found["on-accent"], found["accent"]) >= 4.5
        assert contrast(found["bad"], found["bad-tint"]) >= 4.5
        assert contrast(found["edge"], found["surface"]) >= 3


def contrast(one, other):
    """Contrast of two colours as WCAG 2 defines it."""

    def luminance(colour):
        parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_a_person_signs_in_with_the_token_and_not_with_another(browser, policy):
    with Server(policy, patient(token=TOKEN), knobs=KNOBS) as guarded:
        browser.go(guarded.url)
        assert browser.run("document.querySelector('#policy-name')") is None
        browser.fill("#token", "a-wrong-token")
        browser.press("Enter")
        browser.wait("document.querySelector('#message')?.textContent.length > 0")
        browser.fill("#token", TOKEN)
        browser.click("button")
        browser.wait("document.querySelector('#status')?.textContent === 'ready'")
        assert browser.run("document.cookie") == ""
        browser.wait("document.querySelector('#empty-curl').value.includes('Bearer $GEMRL_TOKEN')")


def test_the_page_says_when_the_server_is_gone_and_recovers(browser, policy):
    with Server(policy, patient(), knobs=KNOBS) as first:
        port = first.port
        browser.go(first.url)
        browser.wait("document.querySelector('#status')?.textContent === 'ready'")
        assert browser.run("document.querySelector('#lost').hidden")
    browser.wait("!document.querySelector('#lost').hidden")
    assert "No answer from the server" in browser.text("#lost")
    assert browser.text("#status") == "no connection"
    with Server(policy, patient(port=port), knobs=KNOBS):
        browser.wait("document.querySelector('#lost').hidden")
        browser.wait("document.querySelector('#status').textContent === 'ready'")
