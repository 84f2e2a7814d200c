# SPDX-License-Identifier: Apache-2.0
"""The image's root file system with its bill of materials, and the systemd unit."""
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("REFIT_BUILD", os.path.join(ROOT, "build", "dev"))
IMAGE_MAX = 20 << 20


class RootFileSystem(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for program in ("patchelf", "strip", "dpkg-query"):
            if not shutil.which(program):
                raise unittest.SkipTest(f"image not packed: {program} is not installed (scripts/setup.sh pod)")
        cls.directory = tempfile.mkdtemp(prefix="refit-image.")
        cls.addClassCleanup(shutil.rmtree, cls.directory)
        cls.root = os.path.join(cls.directory, "root")
        subprocess.run([os.path.join(ROOT, "deploy", "rootfs.sh"), BUILD, cls.root], check=True, timeout=120)
        with open(os.path.join(cls.root, "usr/share/doc/refit/sbom.spdx.json"), encoding="utf-8") as file:
            cls.bill = json.load(file)
        with open(os.path.join(cls.root, "opt/refit/MANIFEST"), encoding="utf-8") as file:
            cls.manifest = file.read().split()

    def test_it_is_small_and_holds_no_shell(self):
        files = [os.path.join(d, f) for d, _, names in os.walk(self.root) for f in names]
        self.assertLess(sum(os.path.getsize(f) for f in files), IMAGE_MAX)
        programs = sorted(os.path.basename(f) for f in files if "/bin/" in f)
        self.assertEqual(programs, ["refit", "refitd"])

    def test_programs_ask_for_the_loader_and_the_libraries_that_come_with_them(self):
        for program in ("refit", "refitd"):
            path = os.path.join(self.root, "opt/refit/bin", program)
            loader = subprocess.run(["patchelf", "--print-interpreter", path], capture_output=True, text=True, check=True).stdout.strip()
            self.assertTrue(loader.startswith("/opt/refit/lib/"))
            self.assertIn(loader[len("/opt/refit/"):], self.manifest)
            needed = subprocess.run(["patchelf", "--print-needed", path], capture_output=True, text=True, check=True).stdout.split()
            self.assertEqual([n for n in needed if "lib/" + n not in self.manifest], [])
            # By that loader and with these libraries only, whatever the host has.
            done = subprocess.run([self.root + loader, "--inhibit-cache", "--library-path", os.path.join(self.root, "opt/refit/lib"), path,
                                   "--version"], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_bill_lists_every_file_with_its_digest(self):
        self.assertEqual(self.bill["spdxVersion"], "SPDX-2.3")
        listed = {entry["fileName"]: entry for entry in self.bill["files"]}
        self.assertEqual(set(listed), {f"./opt/refit/{name}" for name in self.manifest})
        for name, entry in listed.items():
            with open(os.path.join(self.root, name), "rb") as file:
                content = file.read()
            sums = {c["algorithm"]: c["checksumValue"] for c in entry["checksums"]}
            self.assertEqual(sums["SHA256"], hashlib.sha256(content).hexdigest())
            self.assertEqual(sums["SHA1"], hashlib.sha1(content, usedforsecurity=False).hexdigest())

    def test_the_bill_says_where_each_file_comes_from(self):
        ids = {item["SPDXID"] for kind in ("packages", "files") for item in self.bill[kind]} | {"SPDXRef-DOCUMENT"}
        for relation in self.bill["relationships"]:
            self.assertLessEqual({relation["spdxElementId"], relation["relatedSpdxElement"]}, ids)
        contained = [r["relatedSpdxElement"] for r in self.bill["relationships"] if r["relationshipType"] == "CONTAINS"]
        self.assertEqual(sorted(contained), sorted(f["SPDXID"] for f in self.bill["files"]))
        packages = {p["name"]: p for p in self.bill["packages"]}
        for package in packages.values():
            self.assertTrue(package["versionInfo"], package["name"])
        self.assertTrue([name for name in packages if name.startswith("libssl3")])
        self.assertTrue(packages["libc6"]["externalRefs"][0]["referenceLocator"].startswith("pkg:deb/"))

    def test_the_same_tree_gives_the_same_bill(self):
        again = subprocess.run([os.path.join(ROOT, "deploy", "sbom.py"), self.root], capture_output=True, text=True, check=True).stdout
        self.assertEqual(json.loads(again), self.bill)

    def test_a_file_that_no_package_owns_is_an_error(self):
        base = os.path.join(self.directory, "stranger", "opt", "refit")
        os.makedirs(os.path.join(base, "lib"))
        for name, text in (("lib/libstranger.so.1", "x"), ("MANIFEST", "lib/libstranger.so.1\n")):
            with open(os.path.join(base, name), "w", encoding="utf-8") as file:
                file.write(text)
        done = subprocess.run([os.path.join(ROOT, "deploy", "sbom.py"), os.path.join(self.directory, "stranger")], capture_output=True,
                              text=True, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("libstranger.so.1", done.stderr)


class Unit(unittest.TestCase):
    path = os.path.join(ROOT, "deploy", "systemd", "refitd.service")

    def test_systemd_takes_it(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("systemd-analyze is not installed")
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", self.path], capture_output=True, text=True, check=False)
        # refitd need not be installed here.
        said = [line for line in (done.stdout + done.stderr).splitlines() if "/usr/bin/refitd is not executable" not in line]
        self.assertEqual(said, [])

    def test_its_options_exist(self):
        with open(self.path, encoding="utf-8") as file:
            start = re.search(r"^ExecStart=(.*)$", file.read(), re.M).group(1)
        text = subprocess.run([os.path.join(BUILD, "sidecar", "refitd"), "--help"], capture_output=True, text=True, check=True).stdout
        for option in re.findall(r"--[a-z-]+", start):
            self.assertIn(f"  {option} ", text)


if __name__ == "__main__":
    unittest.main()
