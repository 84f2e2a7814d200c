# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over its debugging pipe: no port, and nothing but the standard library."""
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
import unittest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find():
    for name in NAMES:
        if shutil.which(name):
            return shutil.which(name)
    raise unittest.SkipTest("no Chromium here: apt-get install chromium, or scripts/setup.sh tools")


class Browser:
    def __init__(self, wait_s=60):
        self.wait_s = wait_s
        self.next_id, self.buffer, self.events = 1, b"", []
        self.profile = tempfile.TemporaryDirectory(prefix="refit-browser.", ignore_cleanup_errors=True)
        to_read, self.to = os.pipe()
        self.from_, from_write = os.pipe()
        command = [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
                   "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
                   f"--user-data-dir={self.profile.name}", "--remote-debugging-pipe", "about:blank"]

        # The browser wants its ends as descriptors 3 and 4.
        def place():
            first, second = (fcntl.fcntl(end, fcntl.F_DUPFD, 5) for end in (to_read, from_write))
            os.dup2(first, 3)
            os.dup2(second, 4)

        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        close_fds=False, preexec_fn=place, start_new_session=True)
        os.close(to_read)
        os.close(from_write)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def _message(self):
        deadline = time.monotonic() + self.wait_s
        while b"\0" not in self.buffer:
            if not select.select([self.from_], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self.from_, 1 << 20)
            if not piece:
                raise RuntimeError("the browser ended")
            self.buffer += piece
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **parameters):
        message = {"id": self.next_id, "method": method, "params": parameters}
        if hasattr(self, "session"):
            message["sessionId"] = self.session
        self.next_id += 1
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == message["id"]:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, url):
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression):
        deadline = time.monotonic() + self.wait_s
        while not (value := self.value(expression)):
            if time.monotonic() > deadline:
                raise AssertionError(f"did not come true: {expression}; the page: {self.value('document.body.innerText')}")
            time.sleep(0.02)
        return value

    def requests(self):
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def complaints(self):
        """What the page threw, and what the browser logged, refused requests and policies included."""
        return [e["params"] for e in self.events
                if e["method"] == "Runtime.exceptionThrown" or (e["method"] == "Log.entryAdded" and e["params"]["entry"]["level"] == "error")]

    def media(self, scheme):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def press(self, key):
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode={"Tab": 9, "Enter": 13}[key])

    def screenshot(self, path):
        height = self.value("document.documentElement.scrollHeight")
        width = self.value("document.documentElement.clientWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        try:
            self.call("Browser.close")
        except (RuntimeError, OSError, TimeoutError):
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.from_)
        self.profile.cleanup()
