"""Look for texts, bytes, questions and files that break something, for as long as there is time.

    python tests/fuzz.py --minutes 60                  all properties of tests/test_fuzz.py
    python tests/fuzz.py --minutes 5 -k plain          those whose name has `plain`

Each round has new random examples. The first failure ends it: hypothesis prints the smallest example that it found, to be put above the property as an `@example`."""
import argparse, os, secrets, subprocess, sys, time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main():
    p = argparse.ArgumentParser(description='Look for what breaks a property of tests/test_fuzz.py.')
    p.add_argument('--minutes', type=float, default=60, metavar='N', help='how long (default: 60)')
    p.add_argument('--examples', type=int, default=400, metavar='N', help='examples of each property in a round (default: 400)')
    p.add_argument('-k', default='', metavar='NAME', help='only properties whose name has this')
    a = p.parse_args()
    until, rounds = time.monotonic() + 60*a.minutes, 0
    env = {**os.environ, 'DEW_FUZZ': str(a.examples)}
    while time.monotonic() < until:
        seed, rounds = secrets.randbelow(2**32), rounds + 1
        print(f'round {rounds}, seed {seed}, {(until - time.monotonic())/60:.1f} minutes left', flush=True)
        r = subprocess.run([sys.executable, '-m', 'pytest', '-q', '-x', '-p', 'no:cacheprovider', f'--hypothesis-seed={seed}', *(['-k', a.k] if a.k else []), str(HERE/'test_fuzz.py')],
                           cwd=HERE.parent, env=env)
        if r.returncode: sys.exit(f'a failure in round {rounds}: DEW_FUZZ={a.examples} python -m pytest tests/test_fuzz.py --hypothesis-seed={seed} repeats it')
    print(f'{rounds} rounds, no failure')


if __name__ == '__main__': main()
