"""A real browser plays with a real fleet, as people do: it types, clicks, and looks."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fleet.driving import TRIES
from tests.fleets import DEMO_MODEL, NewFleet, kept
from tests.gateway.page.browser import Page, opened_page
from tests.gateway.page.picture import timeline
from tests.gateway.running import Served, running_gateway, running_timed
from tests.patience import PATIENCE_S
from tests.ports import free_port

pytestmark = [pytest.mark.browser, pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

NARROW, SHORT = 400, 800
LIVE = "document.querySelector('section:not([hidden]) .feed')?.textContent === 'Live'"
NAMED_ROLES = {"textbox", "slider", "button", "tab", "combobox", "checkbox", "spinbutton", "tabpanel", "log"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(new_fleet: NewFleet) -> AsyncIterator[Served]:
    async with running_timed(new_fleet, "--log-level", "warning") as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def page(served: Served) -> AsyncIterator[Page]:
    async with opened_page() as opened:
        await opened.open(f"{served.gateway.url}/")
        await opened.until("document.getElementById('model').textContent === 'demo_model'")
        yield opened
        assert opened.complaints == []


async def ask(page: Page, text: str) -> None:
    await page.click("#prompt")
    await page.type(text)
    await page.press("Enter")


async def set_value(page: Page, selector: str, value: str) -> None:
    """Set a control as a person does who moves it."""
    await page.value(
        f"(() => {{ const node = document.querySelector({selector!r}); node.value = {value!r};"
        " node.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


async def test_an_answer_streams_with_what_was_promised_and_delivered(page: Page) -> None:
    await set_value(page, "#ttft", "100")
    await set_value(page, "#max-tokens", "200")
    assert await page.text("#ttft-shown") == "within 20 s"
    await ask(page, "What is a generator?")
    await page.until("document.querySelector('.message.assistant .text').textContent.length > 10")
    assert not await page.value("!!document.querySelector('.outcome')")  # the text comes before the end
    await page.until("!!document.querySelector('.outcome')")
    said = await page.text(".outcome")
    for part in ("first token ≤ 20.0 s", "✓ kept", "tokens/s", "200 written", "decode", "prefill"):
        assert part in said
    assert await page.text("#doing") == "Ended by the limit of tokens"
    await ask(page, "And a list?")
    await page.until("document.querySelectorAll('.message.user').length === 2")
    await page.press("Escape")
    await page.until("document.querySelector('#doing').textContent === 'Stopped'")


async def test_a_refusal_says_what_could_be_promised_and_counts_down(served: Served, page: Page) -> None:
    await set_value(page, "#ttft", "25")  # an idle fleet would be in time
    limit = await page.text("#ttft-shown")
    endless = {"prompt": "The list is", "max_tokens": 3000, "ignore_eos": True}
    busy = [
        asyncio.create_task(served.gateway.http.post("/v1/completions", json=endless)) for _ in range(100)
    ]
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await page.value("!!document.querySelector('.message.refused .attainable')"):
                await page.click("#clear")
                await ask(page, "What is a list? " * 20)
                await page.until("document.getElementById('stop').disabled")
    finally:
        for call in busy:
            call.cancel()
        await asyncio.wait(busy)
    said = (await page.text(".message.refused")).replace("\n", "")
    assert "429 slo_refused" in said
    assert "Could be promised now: first token within" in said
    await page.until("document.querySelector('.countdown').textContent === 'now'")
    buttons = await page.value("[...document.querySelectorAll('.refused button')].map((b) => b.innerText)")
    assert buttons == ["Ask for that", "Try again"]
    await page.click(".refused button")
    await page.until("!!document.querySelector('.outcome')")
    assert "first token ≤" in await page.text(".outcome")
    assert await page.text("#ttft-shown") != limit


async def test_wrong_tools_and_schemas_are_named_before_anything_is_sent(page: Page) -> None:
    await set_value(page, "#tools", '{"type": "function"}')
    await set_value(page, "#schema", "{")
    assert "a list" in await page.value("document.getElementById('tools-problem').textContent")
    assert await page.value("document.getElementById('schema-problem').textContent")
    await ask(page, "What is a list?")
    assert await page.value("document.activeElement.id") == "tools"
    assert await page.value("document.querySelectorAll('.message').length") == 0
    await set_value(page, "#tools", "")
    await set_value(page, "#schema", '{"type": "array", "items": {"type": "boolean"}, "maxItems": 3}')
    await page.click("#send")
    await page.until("!!document.querySelector('.outcome')")
    text = await page.value("document.querySelector('.message.assistant .text').textContent")
    assert await page.value(f"JSON.parse({text!r}).every((item) => typeof item === 'boolean')")


async def test_the_keyboard_reaches_all_views_and_all_controls_have_names(page: Page) -> None:
    await page.value("document.getElementById('tab-playground').focus()")
    await page.press("ArrowRight")
    assert await page.value("document.activeElement.id") == "tab-fleet"
    await page.until(LIVE)
    await page.press("ArrowRight")
    await page.until(LIVE)
    await page.press("ArrowRight")
    assert await page.value("document.activeElement.id") == "tab-playground"
    await page.resize(NARROW, SHORT)
    for view in ("playground", "fleet", "timeline"):
        await page.click(f"#tab-{view}")
        assert await page.value("document.documentElement.scrollWidth <= window.innerWidth")
        nodes = (await page.ask("Accessibility.getFullAXTree"))["nodes"]
        for node in nodes:
            role = node.get("role", {}).get("value")
            if role in NAMED_ROLES and not node["ignored"]:
                assert node["name"]["value"], (view, node)


async def test_steps_are_drawn_and_what_is_kept_of_them_is_bounded(page: Page) -> None:
    await page.click("#tab-timeline")
    await page.until(LIVE)
    await page.click("#burst")
    await page.until("document.querySelector('#burst-doing').textContent.startsWith('8 were answered')")
    drawn = await page.value(
        "(() => { const canvas = document.querySelector('.steps canvas');"
        " const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);"
        " const seen = new Set(); for (let i = 0; i < data.length; i += 4)"
        " if (data[i + 3] === 255) seen.add(data.slice(i, i + 3).join()); return seen.size; })()"
    )
    assert drawn >= 4  # prompts, decodes, and several sequences
    assert "decode" in await page.value("document.querySelector('.steps canvas').ariaLabel")
    most = await page.value(
        "import('/page/timeline.js').then(({TimelineView}) => {"
        " const view = new TimelineView(document.createElement('div'));"
        " for (let step = 0; step < 20000; step += 1) view.add([{worker_id: 'd0', step, reported_at_s: step,"
        " step_seconds: 0.01, num_decodes: 1, num_chunks: 0, chunk_tokens: 0, sequences: [step]}]);"
        " const strip = view.strips.get('d0'); return [strip.steps.length, strip.lanes.length]; })"
    )
    assert most[0] <= 2000
    assert most[1] <= 16


async def test_a_stream_and_the_view_survive_a_killed_worker(new_fleet: NewFleet) -> None:
    async with (
        new_fleet(timed="demo-cpu", prefill=0, decode=2) as fleet,
        kept(fleet, lambda _: None),
        running_gateway(fleet.router_addresses, "--log-level", "warning") as gateway,
        opened_page() as page,
    ):
        await page.open(f"{gateway.url}/")
        await set_value(page, "#max-tokens", "1000")
        for number in range(1, TRIES + 1):
            await ask(page, "What is a generator?")
            await page.until("!document.getElementById('stop').disabled")
            await page.click("#tab-fleet")
            await page.until(f"{LIVE} && document.querySelectorAll('.worker').length === 2")
            busy = (
                "[...document.querySelectorAll('.worker')].find((card) => card.querySelector('.state.busy'))"
            )
            await page.until(f"!!{busy} || document.getElementById('stop').disabled")
            victim = await page.value(f"{busy}?.querySelector('h3').textContent")
            if victim is not None:
                fleet.process(victim).kill()
            await page.until("document.getElementById('stop').disabled")
            outcomes = await page.value(
                "[...document.querySelectorAll('.outcome')].map((each) => each.textContent)"
            )
            assert len(outcomes) == number, outcomes
            assert "1,000 written" in outcomes[-1]
            await page.until(f"{LIVE} && document.querySelectorAll('.worker').length === 2")
            await page.click("#tab-playground")
            if "2 attempts" in outcomes[-1]:
                break
        else:
            raise AssertionError("no answer was struck")
        assert page.complaints == []


async def test_a_viewer_chooses_among_the_models_of_several_fleets(
    served: Served, new_fleet: NewFleet, tmp_path: Path
) -> None:
    second_model = tmp_path / "second_model"
    shutil.copytree(DEMO_MODEL, second_model)
    shown = "document.querySelector('#fleet-view p').textContent"
    async with (
        new_fleet(timed="demo-cpu", prefill=0, model=second_model) as second,
        running_gateway(
            served.fleet.router_addresses, "--fleet", *second.router_addresses, "--log-level", "warning"
        ) as gateway,
        opened_page() as page,
    ):
        await page.open(f"{gateway.url}/#fleet")
        for name in ("demo_model", "second_model"):
            await page.until(f"{LIVE} && {shown}.startsWith('{name} ')")
            await page.click("#tab-playground")
            await ask(page, "What is a generator?")
            await page.until("!!document.querySelector('.outcome')")
            await page.click("#tab-fleet")
            await set_value(page, "#model select", "second_model")
        assert page.complaints == []


async def test_a_page_left_open_finds_a_gateway_that_comes_back(served: Served) -> None:
    here = ("--listen", f"127.0.0.1:{free_port()}", "--log-level", "warning")
    async with opened_page() as page:
        async with running_gateway(served.fleet.router_addresses, *here) as gateway:
            await page.open(f"{gateway.url}/#fleet")
            await page.until(LIVE)
        await page.until("document.querySelector('#fleet .feed').className === 'feed away'")
        assert await page.value("document.querySelector('.worker').className") == "worker stale"
        async with running_gateway(served.fleet.router_addresses, *here):
            await page.until(LIVE)
            assert await page.value("document.querySelector('.worker').className") == "worker"


async def test_a_key_is_asked_for_and_stays_in_the_tab(new_fleet: NewFleet, tmp_path: Path) -> None:
    async with new_fleet(timed="demo-cpu", prefill=0, secure=tmp_path / "secure") as fleet:
        assert fleet.secured is not None
        made = fleet.secured.certificates
        flags = ("--ca", made.ca, "--cert", made.cert("gateway"), "--key", made.key("gateway"))
        async with (
            running_gateway(fleet.router_addresses, *map(str, flags)) as gateway,
            opened_page() as page,
        ):
            await page.open(f"{gateway.url}/")
            await page.until("document.activeElement.id === 'key'")
            await page.type("wrong")
            await page.press("Enter")
            await page.until("document.getElementById('key-problem').textContent !== ''")
            await page.type(fleet.secured.api_key.read_text(encoding="ascii").strip())
            await page.press("Enter")
            await page.until("document.getElementById('model').textContent === 'demo_model'")
            await ask(page, "What is a generator?")
            await page.until("!!document.querySelector('.outcome')")
            await page.click("#tab-fleet")
            await page.until(LIVE)
            kept_elsewhere = "localStorage.length + document.cookie.length"
            assert await page.value(f"[sessionStorage.length, {kept_elsewhere}]") == [1, 0]
            await page.click("#forget-key")
            async with asyncio.timeout(PATIENCE_S):
                while await page.value("sessionStorage.length"):
                    await asyncio.sleep(0.05)
            assert page.complaints == []


async def test_the_steps_of_a_policy_are_drawn_for_documents(tmp_path: Path) -> None:
    picture = await timeline("slack", tmp_path)
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000  # an empty canvas is a tenth of that
