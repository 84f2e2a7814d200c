# SPDX-License-Identifier: Apache-2.0
"""The page of refitd in a real browser: what it shows, live; that it asks nobody else; keys, screen readers, dark, narrow. And
as a document: policy, escapes, what it says without scripts, which needs no browser.

REFIT_SCREENSHOTS=DIR keeps pictures there."""
import http.client
import json
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from browser import Browser, find  # noqa: E402
from harness import WAIT_S, SystemTest, engine_layout, source_layout  # noqa: E402

HOSTILE = "</script><img src=x onerror=document.title='owned'>\"&"


class Serving(SystemTest):
    def published(self, *versions, options=()):
        replica = self.replica("a", engine_layout(2), *options)
        lines = self.publish(source_layout(), versions, [replica])
        self.assertTrue(lines and lines[0].startswith(f"ok {versions[0]} "), lines)
        replica.wait_step(versions[-1])
        return replica

    def aborted(self, replica, label, reason):
        """A refit that is begun by hand, and called off."""
        lead = replica.call("POST", "/v1/lead", {"name": label, "takeover": True})[1]
        source = replica.call("GET", "/traffic")[1]["source"]
        status, begun = replica.call("POST", "/refit", {"version": 9, "label": label, "epoch": lead["epoch"], "publish_id": "p",
                                                        "source": source, "transport": "tcp"})
        self.assertEqual(status, 202, begun)
        replica.call("POST", f"/refit/{begun['id']}/abort", {"reason": reason})
        replica.wait_session(lambda state: state["terminal"], begun["id"])

    def get(self, replica, path="/", port=None):
        connection = http.client.HTTPConnection("127.0.0.1", port or replica.ports["admin"], timeout=WAIT_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, dict(answer.getheaders()), body


class Document(Serving):
    def test_a_browser_may_load_nothing_and_both_listeners_have_it(self):
        replica = self.replica("a", engine_layout(2), readers=False)
        for port in (replica.ports["admin"], replica.ports["control"]):
            status, headers, body = self.get(replica, port=port)
            self.assertEqual(status, 200)
            self.assertRegex(headers["Content-Security-Policy"],
                             r"^default-src 'none'; style-src 'sha256-[\w+/=]{44}'; script-src 'sha256-[\w+/=]{44}'; "
                             r"connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'$")
            self.assertEqual((headers["X-Content-Type-Options"], headers["Cache-Control"]), ("nosniff", "no-store"))
            self.assertNotRegex(body, r"(?:src|href)=[\"'](?:https?:)?//")
            bare = re.sub(r"<style>.*?</style>|<script>.*?</script>", "", body, flags=re.S)
            self.assertNotRegex(bare, r"\sstyle=|\son\w+=")
            self.assertEqual(json.loads(self.get(replica, "/status", port)[2])["weights"]["active"], None)
            self.assertEqual(json.loads(self.get(replica, "/traffic", port)[2])["edges"], [])

    def test_what_matters_stands_in_it_without_scripts(self):
        replica = self.published(1, 2)
        weights, body = replica.weights(), self.get(replica)[2]
        for wanted in ('<strong id="version">2</strong>', weights["active"]["digest"], weights["layout"], weights["instance"],
                       ">Ready</p>", "Last: version 2, committed", "to version 1"):
            self.assertIn(wanted, body)
        self.assertNotIn("{{", body)

    def test_texts_from_outside_are_escaped(self):
        replica = self.published(1)
        self.aborted(replica, HOSTILE, HOSTILE)
        body = self.get(replica)[2]
        self.assertNotIn("<img", body)
        self.assertIn("&lt;img src=x onerror=document.title=&#39;owned&#39;&gt;&quot;&amp;", body)
        self.assertEqual(body.count("</script>"), 1)

    def test_status_and_traffic_say_what_the_page_needs(self):
        replica = self.published(1, 2)
        self.aborted(replica, "nine", "the operator said so")
        state = json.loads(self.get(replica, "/status")[2])
        self.assertEqual([(refit["version"], refit["phase"]) for refit in state["history"]], [(9, "aborted"), (2, "committed"), (1, "committed")])
        self.assertTrue(all(0 <= state["now_ms"] - refit["began_ms"] < 600000 for refit in state["history"]))
        self.assertEqual(state["history"][0]["error"]["text"], state["refit"]["error"]["text"])
        self.assertIn("the operator said so", state["refit"]["error"]["text"])
        self.assertEqual(state["weights"], replica.weights())
        self.assertEqual(state["ready"]["status"], "ok")
        due = state["history"][1]["bytes_due"]
        plan = json.loads(self.get(replica, "/traffic")[2])
        self.assertEqual({(e["source_ranks"], e["destination_ranks"]) for e in plan["edges"]},
                         {(source, to) for source in "01" for to in ("0", "1", "0-1")})
        self.assertEqual((sum(e["bytes"] for e in plan["edges"]), plan["more"], plan["refit"]), (due, 0, state["refit"]["id"]))


class Page(Serving):
    def setUp(self):
        find()
        super().setUp()

    def browse(self, replica):
        browser = Browser(WAIT_S)
        self.addCleanup(browser.close)
        browser.size(1200, 900)
        browser.url = f"http://127.0.0.1:{replica.ports['admin']}/"
        browser.open(browser.url)
        browser.wait("document.body.dataset.steps > 1")
        return browser

    def picture(self, browser, name):
        if os.environ.get("REFIT_SCREENSHOTS"):
            browser.screenshot(os.path.join(os.environ["REFIT_SCREENSHOTS"], name + ".png"))

    def text(self, browser, element):
        return browser.value(f"document.getElementById('{element}').textContent")

    def test_it_shows_what_is_served_and_asks_nobody_else(self):
        replica = self.published(1, 2)
        self.publish(source_layout(), [2], [replica], "takeover")  # refused or aborted: not newer
        weights, browser = replica.weights(), self.browse(replica)
        browser.wait("document.querySelectorAll('#traffic .flow').length === 6")
        self.assertEqual(self.text(browser, "version"), "2")
        self.assertEqual(self.text(browser, "digest"), weights["active"]["digest"])
        self.assertEqual(self.text(browser, "layout"), weights["layout"])
        self.assertEqual(self.text(browser, "rollback"), "to version 1")
        self.assertEqual(self.text(browser, "health"), "Ready")
        self.assertEqual(browser.value("document.title"), "Refit: version 2")
        self.assertEqual(browser.value("[...document.querySelectorAll('#slots tr')].map(r => r.cells[1].textContent)"),
                         [slot["state"] for slot in weights["slots"]])
        self.assertEqual(browser.value("document.querySelectorAll('#ranks .good').length"), 2)
        self.assertGreaterEqual(browser.value("document.querySelectorAll('#history .bar').length"), 2)
        self.assertEqual(browser.value("document.querySelectorAll('#edges tr').length"), 6)
        refit = json.loads(self.get(replica, "/status")[2])["refit"]
        holders = json.loads(self.get(replica, f"/refit/{refit['id']}/holders")[2])["holders"]
        self.assertTrue(holders)
        self.assertEqual(browser.value("[...document.querySelectorAll('#holders tr')].map(r => r.cells[0].textContent)"),
                         [holder["name"] for holder in holders])
        self.assertRegex(self.text(browser, "supplied-text"), r"^Came from: .* the trainer")
        foreign = [url for url in browser.requests() if not url.startswith((browser.url, "data:"))]
        self.assertEqual((foreign, browser.complaints()), ([], []))
        self.picture(browser, "light")
        browser.media("dark")
        self.picture(browser, "dark")
        browser.size(380, 800)
        self.picture(browser, "narrow")

    def test_it_follows_a_refit_as_it_runs_and_says_why_one_ended(self):
        replica = self.published(1, options=("--rate", "128KiB"))  # some seconds
        browser = self.browse(replica)
        ranks = self.publish(source_layout(), [2], [replica], "takeover", wait=False)
        seen = browser.wait("(() => { const at = document.getElementById('progress').value, now = document.querySelector('.phases .now'); "
                            "return at > 0 && at < 1 && now && now.textContent.startsWith('transfer') && document.getElementById('refit-line')"
                            ".textContent })()")
        self.assertRegex(seen, r"^Running: version 2")
        self.picture(browser, "running")
        browser.wait("document.getElementById('version').textContent === '2'")
        for rank in ranks:
            rank.wait()
        browser.wait("document.getElementById('refit-line').textContent.startsWith('Last: version 2')")
        self.assertEqual(browser.value("[...document.querySelectorAll('.phases li')].map(l => l.className)"), ["past"] * 8)
        self.aborted(replica, "<b>nine</b>", "the operator said so")
        browser.wait("document.querySelectorAll('#history .why').length === 1 && document.querySelectorAll('.phases .failed').length === 1")
        self.assertIn("the operator said so", self.text(browser, "history"))
        self.assertIn("<b>nine</b>", self.text(browser, "history"))
        self.assertEqual(browser.complaints(), [])
        self.picture(browser, "aborted")

    def test_texts_from_outside_stay_texts(self):
        replica = self.published(1)
        self.aborted(replica, HOSTILE, HOSTILE)
        browser = self.browse(replica)
        browser.wait("document.querySelectorAll('#history .why').length")
        self.assertIn(HOSTILE, self.text(browser, "history"))
        self.assertEqual(browser.value("document.querySelectorAll('img').length"), 0)
        self.assertNotEqual(browser.value("document.title"), "owned")
        self.assertEqual(browser.complaints(), [])

    def test_keys_reach_everything_and_a_screen_reader_finds_names(self):
        browser = self.browse(self.published(1, 2))
        browser.wait("document.querySelectorAll('#traffic .flow').length")
        reached = []
        for _ in range(15):
            browser.press("Tab")
            reached.append(browser.value("(a => a.id || a.getAttribute('aria-labelledby') || a.getAttribute('href') || a.tagName)"
                                         "(document.activeElement)"))
            if reached[-1] != "BODY":  # past the end
                self.assertNotEqual(browser.value("getComputedStyle(document.activeElement).outlineStyle"), "none", reached)
        self.assertEqual(reached[0], "#main")
        for wanted in ("slots-title", "ranks-title", "history-title", "traffic", "SUMMARY", "metrics", "readyz?verbose", "status"):
            self.assertIn(wanted, reached)
        nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
        named = {}
        for node in nodes:
            if not node.get("ignored"):
                named.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
        self.assertEqual(named["heading"][0].split(" ")[0], "Refit")
        self.assertEqual(len([name for name in named["region"] if name]), len(named["region"]))
        self.assertEqual([name for role, names in named.items() if "progress" in role.lower() for name in names], ["Refit"], named.keys())
        pictures = named.get("image", []) + named.get("img", [])
        self.assertGreaterEqual(len(pictures), 3, named.keys())
        self.assertTrue(all(pictures), pictures)
        self.assertGreater(len(named.get("columnheader", [])), 10)

    def test_it_is_readable_in_the_dark_and_on_a_phone(self):
        browser = self.browse(self.published(1, 2))
        behind = set()
        for scheme in ("light", "dark"):
            browser.media(scheme)
            contrasts = browser.value(CONTRAST)
            self.assertGreater(min(contrasts.values()), 4.5, contrasts)
            behind.add(browser.value("getComputedStyle(document.body).backgroundColor"))
        self.assertEqual(len(behind), 2)
        browser.size(360, 800)
        self.assertLessEqual(browser.value("document.documentElement.scrollWidth"), 360)

    def test_it_says_when_refitd_does_not_answer(self):
        replica = self.published(1)
        browser = self.browse(replica)
        replica.refitd.kill()
        browser.wait("!document.getElementById('trouble').hidden")
        self.assertIn("No answer from refitd", self.text(browser, "trouble"))


# The ratio of luminances (WCAG 2) of each text colour in use to what lies behind it.
CONTRAST = """(() => {
  const parse = c => c.match(/[\\d.]+/g).map(Number);
  const light = c => { const [r, g, b] = parse(c).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = at => { for (; at; at = at.parentElement) { const c = getComputedStyle(at).backgroundColor, p = parse(c);
    if (p.length < 4 || p[3] > 0) return c; } return 'rgb(255, 255, 255)'; };
  const out = {};
  for (const at of document.querySelectorAll('h1, h2, p, dt, dd, td, th, li, a, summary, button')) {
    if (!at.textContent.trim() || !at.offsetParent) continue;
    const a = light(getComputedStyle(at).color), b = light(behind(at));
    out[getComputedStyle(at).color + ' on ' + behind(at)] = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }
  return out;
})()"""

if __name__ == "__main__":
    unittest.main()
