# SPDX-License-Identifier: Apache-2.0
"""What comes with the programs: manual pages and completions, as made by the build, read by what reads them."""
import os
import re
import shutil
import subprocess
import unittest

BUILD = os.environ.get("REFIT_BUILD", "build/dev")
REFIT, REFITD = os.path.join(BUILD, "cli", "refit"), os.path.join(BUILD, "sidecar", "refitd")
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def made(*parts):
    return os.path.join(BUILD, "cli", *parts)


def commands():
    listed = run(REFIT, "--help").stdout.split("\n\n")[2]
    return [line.split()[0] for line in listed.splitlines()]


def flags(command):
    return re.findall(r"^  (?:-\w, )?--([\w-]+)", run(REFIT, command, "--help").stdout, re.M)


class Help(unittest.TestCase):
    def test_every_command_has_the_same_parts(self):
        self.assertGreater(len(commands()), 15)
        for command in commands():
            with self.subTest(command=command):
                done = run(REFIT, command, "--help")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertRegex(done.stdout, rf"\Ausage: refit {command}( .*)?\n\n.+\n\noptions:\n(  -.*\n)+\nexamples:\n(  .*\n)+\Z")
                self.assertEqual(run(REFIT, "help", command).stdout, done.stdout)
                self.assertEqual(run(REFIT, command, "-h").stdout, done.stdout)

    def test_documented_commands_are_the_real_ones(self):
        with open(os.path.join(ROOT, "docs", "cli.md")) as page:
            table, json_table = page.read().split("## JSON")
        rows = re.findall(r"^\| `(\w+)[ `]", table.replace("`hold MEMBER...`, `release", "`hold` |\n| `release"), re.M)
        self.assertEqual(sorted(rows), sorted(commands()))
        exits = re.findall(r"^\| (\d) \| (.*) \|$", table, re.M)
        self.assertEqual(exits, re.findall(r"^  (\d)  (.*)$", run(REFIT, "--help").stdout, re.M))
        printers = {command for command in commands() if "output" in flags(command)}
        self.assertEqual(set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", json_table, re.M)))), printers)

    def test_wrong_usage_says_what_to_do_on_standard_error(self):
        for arguments in (["launch"], ["status", "--nope"], ["push"], ["completion", "tcsh"], ["status", "-o", "yaml", "u"], ["status", "-x"]):
            done = run(REFIT, *arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertRegex(done.stderr, r"(?s)refit( \w+)?: .*(found|Try|help)", arguments)


class Manual(unittest.TestCase):
    pages = (made("man", "refit.1"), made("man", "refitd.8"))

    def test_the_build_has_made_what_the_programs_print(self):
        for page, command in zip(self.pages, ([REFIT, "manual"], [REFITD, "--print-manual"])):
            with open(page) as file:
                self.assertEqual(file.read(), run(*command).stdout)

    def test_every_command_and_option_is_there(self):
        with open(self.pages[0]) as file:
            text = file.read().replace("\\-", "-")
        for command in commands():
            part = text.split(f'.SS "refit {command}"')[1].split(".SS")[0]
            for flag in set(flags(command)) - {"help"}:
                self.assertIn(f"--{flag}\\fR", part, command)
        with open(self.pages[1]) as file:
            text = file.read().replace("\\-", "-")
        options = re.findall(r"^  --([\w-]+)", run(REFITD, "--help").stdout, re.M)
        self.assertGreater(len(options), 40)
        for option in options:
            self.assertIn(f"--{option}\\fR", text)

    def test_man_reads_them_without_a_warning(self):
        if not shutil.which("mandoc"):
            self.skipTest("no mandoc here: scripts/setup.sh api installs it")
        for page in self.pages:
            done = run("mandoc", "-T", "lint", "-W", "warning", page)
            self.assertEqual([line for line in done.stdout.splitlines() if "missing date" not in line], [])


class Completion(unittest.TestCase):
    def bash(self, *words):
        script = f'source {made("completions", "bash")}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _refit; printf "%s\\n" "${{COMPREPLY[@]}}"'
        done = run("bash", "--norc", "-c", script, "bash", *words)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_bash_completes_commands_options_and_values(self):
        self.assertEqual(sorted(self.bash("refit", "")), sorted(["help", *commands()]))
        self.assertEqual(self.bash("refit", "roll"), ["rollback"])
        self.assertEqual(self.bash("refit", "push", "--stra"), ["--strategy"])
        self.assertEqual(self.bash("refit", "status", "-o", "j"), ["json"])
        self.assertEqual(self.bash("refit", "completion", ""), ["bash", "zsh", "fish"])
        self.assertEqual(self.bash("refit", "help", "wat"), ["watch"])
        self.assertIn("CMakeLists.txt", " ".join(self.bash("refit", "push", os.path.join(ROOT, "CMakeL"))))
        self.assertIn("CMakeLists.txt", " ".join(self.bash("refit", "status", "--cacert", os.path.join(ROOT, "CMakeL"))))
        for command in commands():
            wanted = {f"--{flag}" for flag in flags(command)}
            self.assertLessEqual(wanted, set(self.bash("refit", command, "--")), command)

    def test_bash_completes_by_itself(self):
        """As somebody types it: a terminal, and the tabulator key."""
        import pty
        import select
        import time
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ.update(PS1="> ", TERM="xterm")
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        try:
            os.write(terminal, f"source {made('completions', 'bash')}; refit() {{ echo \"ran:$*:\"; }}\n".encode())
            os.write(terminal, b"refit rollb\t--qua\t\n")
            seen, deadline = b"", time.monotonic() + 60
            while b"ran:" not in seen.replace(b'"ran:', b"") and time.monotonic() < deadline:
                if select.select([terminal], [], [], 1)[0]:
                    seen += os.read(terminal, 4096)
            self.assertIn(b"ran:rollback --quarantine", seen)
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            os.close(terminal)

    def test_zsh_and_fish_read_theirs(self):
        for shell in ("zsh", "fish"):
            if not shutil.which(shell):
                continue
            done = run(shell, "-n", made("completions", shell))
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        if shutil.which("fish"):
            done = run("fish", "--no-config", "-c", f"source {made('completions', 'fish')}; complete -C 'refit push --stra'")
            self.assertIn("--strategy", done.stdout)
            done = run("fish", "--no-config", "-c", f"source {made('completions', 'fish')}; complete -C 'refit roll'")
            self.assertEqual(done.stdout.split()[0], "rollback")
        if shutil.which("zsh"):
            done = run("zsh", "-f", "-c", f"autoload -Uz compinit; compinit -D; source {made('completions', 'zsh')}; print $_comps[refit]")
            self.assertEqual(done.stdout.strip(), "_refit")


if __name__ == "__main__":
    unittest.main()
