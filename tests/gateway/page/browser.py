"""A real browser, headless, driven by the DevTools protocol over a pipe: no package is needed for it."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.patience import PATIENCE_S

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
)  # fmt: skip
_KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37}


class Page:
    """One page of a browser, and everything that it complains about."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session = ""
        self.complaints: list[str] = []
        """Uncaught errors, and what the policy of the page forbids."""

    async def read(self) -> None:
        """Take in what the browser says until it ends."""
        while True:
            message = json.loads((await self._reader.readuntil(b"\0"))[:-1])
            match message.get("method"):
                case "Runtime.exceptionThrown":
                    self.complaints.append(str(message["params"]["exceptionDetails"]))
                case "Log.entryAdded" if message["params"]["entry"]["source"] == "security":
                    self.complaints.append(message["params"]["entry"]["text"])
            waiting = self._waiting.pop(message.get("id", 0), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of a method of the protocol."""
        number = next(self._numbers)
        asked: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            asked["sessionId"] = self._session
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps(asked).encode() + b"\0")
        async with asyncio.timeout(PATIENCE_S):
            message = await answer
        assert "error" not in message, message
        result: dict[str, Any] = message["result"]
        return result

    async def begin(self) -> None:
        """Open the page that all else is about."""
        target = await self.ask("Target.createTarget", url="about:blank")
        attached = await self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self.ask(f"{domain}.enable")
        await self.resize(1280, 900)

    async def resize(self, width: int, height: int, pixels: int = 1) -> None:
        """Give the page a size, with so many pixels along each of its own."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=pixels,
            mobile=False,
        )

    async def prefer(self, feature: str, value: str) -> None:
        """Have the page see what a person prefers: a `color-scheme`, or `reduced-motion`."""
        await self.ask(
            "Emulation.setEmulatedMedia", features=[{"name": f"prefers-{feature}", "value": value}]
        )

    async def open(self, url: str) -> None:
        await self.ask("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def value(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        result = await self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Wait until an expression is true, and return its value."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not (value := await self.value(expression)):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            shown = await self.value("document.body.innerText")
            raise AssertionError(f"never true: {expression}; the page shows:\n{shown}") from None
        return value

    async def text(self, selector: str) -> str:
        """Return the text of the first element that a CSS selector matches, as people see it."""
        shown: str = await self.value(f"document.querySelector({json.dumps(selector)}).innerText")
        return shown

    async def click(self, selector: str) -> None:
        """Click the middle of an element, with a mouse."""
        place = await self.until(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)});"
            " if (!node || node.disabled) return null; node.scrollIntoView({block: 'center'});"
            " const box = node.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.ask(
                "Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1
            )

    async def type(self, text: str) -> None:
        """Type into what has the focus."""
        await self.ask("Input.insertText", text=text)

    async def press(self, key: str) -> None:
        """Press and release a key that has a name."""
        more = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            await self.ask(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=_KEYS[key],
                **(more if kind == "keyDown" else {}),
            )  # fmt: skip

    async def picture_of(self, selector: str) -> bytes:
        """Return the first element that a CSS selector matches, as a PNG."""
        box = await self.value(
            f"(() => {{ const box = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            " return {x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height}; })()"
        )
        clip = {**box, "scale": 1}
        shot = await self.ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(shot["data"])


def browser() -> str:
    """Return the path of a browser. Raises `AssertionError` naming what would do."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    assert path is not None, f"there is no browser; accepted: one of {', '.join(_NAMES)} on PATH"
    return path


@asynccontextmanager
async def opened_page() -> AsyncIterator[Page]:
    """Yield a page of a browser of its own, which ends with the block."""
    loop = asyncio.get_running_loop()
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    reader = asyncio.StreamReader(limit=64 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(our_in, "rb"))
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(our_out, "wb")
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    with tempfile.TemporaryDirectory(prefix="baton-browser-", ignore_cleanup_errors=True) as profile:
        command = [browser(), *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = await asyncio.create_subprocess_exec(
            "/bin/bash", "-c", f'exec "$@" 3<&{their_in} 4>&{their_out}', "bash", *command,
            pass_fds=(their_in, their_out), stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        os.close(their_in)
        os.close(their_out)
        page = Page(reader, writer)
        reading = asyncio.create_task(page.read())
        try:
            await page.begin()
            yield page
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            if process.returncode is None:
                process.kill()
            await process.wait()
            transport.close()
