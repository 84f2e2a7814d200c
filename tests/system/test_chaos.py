# SPDX-License-Identifier: Apache-2.0
"""Whoever of a fleet is killed, stopped or cut off, at whatever state: every refit ends in a named state, no reader sees a mix, the
members agree, the next publish succeeds, nothing leaks. Real processes in network namespaces (root).

    CHAOS_SECONDS=600 CHAOS_SEED=17 python3 -m unittest test_chaos.Seeds

runs seeds from CHAOS_SEED on (1; "random": any) for so long, at least one. A seed that fails prints the line that runs it again.
"""
import os
import random
import sys
import time
import unittest

from chaos import Arena

SECONDS = float(os.environ.get("CHAOS_SECONDS", "30"))
SEED = os.environ.get("CHAOS_SEED", "1")


class Seeds(Arena):
    def test_seeds(self):
        first = random.SystemRandom().randrange(1 << 31) if SEED == "random" else int(SEED)
        end, seed, failed = time.monotonic() + SECONDS, first, []
        while seed == first or time.monotonic() < end:
            if not self.one(seed):
                failed.append(seed)
            seed += 1
        sys.stderr.write(f"chaos: seeds {first} to {seed - 1}, failed: {failed or 'none'}\n")
        self.assertEqual(failed, [])

    def one(self, seed):
        """In a fleet of its own. True when all held."""
        began = time.monotonic()
        with self.subTest(seed=seed):
            try:
                self.run_seed(seed)
                if os.environ.get("CHAOS_VERBOSE"):
                    sys.stderr.write(f"chaos: seed {seed}, {time.monotonic() - began:.0f} s\n  " + "\n  ".join(self.says) + "\n")
                return True
            except BaseException:
                sys.stderr.write(f"chaos: seed {seed} failed; again: make chaos CHAOS_SEED={seed} CHAOS_SECONDS=1\n  "
                                 + "\n  ".join(self.says) + "\n")
                self.show_logs()
                raise
            finally:
                self.clear()
        return False


if __name__ == "__main__":
    unittest.main()
