#!/usr/bin/env python3
"""Compares fathom's tokenizer with the Hugging Face `tokenizers` library on generated strings.

usage: compare_tokenizer.py [--tokenizer TOKENIZER.json] [--count N] [--seed S] [--large] --binary build/.../test_text
       compare_tokenizer.py ... --write CASES.jsonl       (only writes the cases: this made the files in data/)

The strings and the library's ids go to a file of cases, one JSON object a line, which test_text then replays:
  {"text": "...", "ids": [...]}          ids with added tokens recognised
  {"hex": "...", "ids": [...]}           the same for bytes that are not UTF-8 (the library gets them repaired)
  {"unit": "a", "times": N, "runs": [[id, count], ...]}     a long text and its ids, run-length coded
  "plain": [...]                         ids with added tokens taken as text, where they differ
Needs the PyPI package `tokenizers`.
"""
import argparse, itertools, json, os, random, subprocess, sys, tempfile
from tokenizers import Tokenizer

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

WORDS = ('the of and to in a is that it was for on are as with his they at be this from I have or by one had not but what '
         'all were when we there can an your which their said if do into has more her two like him see time could no make '
         'than first been its who now people my made over did down only way find use may water long little very after '
         'words called just where most know get through back much before go good new write our used me man too any day '
         "don't can't I'll we've it's Once upon a Time KING queen daughter forest HTTPServer camelCase snake_case "
         'naïve café Straße łódź Ünïcödé Привет мир Ελλάδα שלום العالم नमस्ते สวัสดี გამარჯობა հայ 안녕하세요 세계').split()
EMOJI = ['😀', '😃', '👩‍👩‍👧‍👦', '🏳️‍🌈', '👍🏽', '🇫🇷', '🇩🇪', '❤️', '☃', '🧑🏿‍🚀', '1️⃣', '\u200d', '\ufe0f', '🫠', '🪿', '©️', '\U000E0062']
CJK = list('你好世界天地玄黄宇宙洪荒。，、！？「」こんにちはカタカナー々〆ヶ龥龦鿿㐀㆐゙゚ｶﾅ') + ['𠀀', '𱍊', '한글', 'ㄱ']
MARKS = ['\u0301', '\u0308', '\u0323', '\u20dd', '\u0489', '\u093f', '\u0e31', '\u0650', '\u1ab0', '\ufe20', '\u0903']
SPACES = [' ', '  ', '\t', '\n', '\r', '\r\n', '\n\n', '\v', '\f', '\u0085', '\u00a0', '\u1680', '\u180e', '\u2002', '\u2009', '\u200b',
          '\u2028', '\u2029', '\u202f', '\u205f', '\u3000', '\ufeff', '    ', ' \n', '\n ']
DIGITS = list('0123456789') + ['12', '123', '1234', '1234567', '٣', '५', '４', '²', '½', '₁', 'Ⅷ', '〇', '一二三', '𝟘', '①', '3.14', '1e-7', '0x1F']
PUNCT = list('!"#$%&\'()*+,-./:;<=>?@[\\]^_`{|}~') + ['—', '…', '“', '”', '«', '»', '€', '£', '±', '∞', '→', '|>', '<|', '...', '!!!', '://', '=>', '++', '§']
TEXTS = ['def f(x):\n    return x ** 2\n', 'https://example.org/a/b?c=d&e=f#g', '{"key": "value", "n": [1, 2, 3]}', 'C:\\path\\to.txt',
         'for (int i = 0; i < n; ++i) { a[i] += b[i]; }', 'SGVsbG8sIFdvcmxkIQ==', 'user@host.example', '2026-11-29T15:43:06Z',
         '<html><body>&amp;</body></html>', '#include <stdio.h>\r\n']
# Letters, digits, marks and symbols that came with Unicode 15 and 16, and neighbours that are not assigned.
NEW = [0x11F02, 0x11F50, 0x1E4D0, 0x1E4F0, 0x31350, 0x323AF, 0x2FFC, 0x31E4, 0x31E5, 0x1C89, 0xA7CB, 0xA7DC, 0x10D40, 0x10D50, 0x11BC0,
       0x16D40, 0x1CC00, 0x1CCF0, 0x1E5D0, 0x1FAE8, 0x1FAE9, 0x1FADF, 0x11DE0, 0x088F, 0x1ACF, 0x20C1, 0x323B0, 0x1E6C0, 0x378, 0xFFFF]


def generate(rng, added):
    """One string (str) or byte string that need not be UTF-8."""
    kind = rng.randrange(16)
    n = rng.choice([1, 2, 3, 5, 8, 13, 30])
    partial = lambda: (lambda t: t[rng.randrange(len(t)):] if rng.random() < .5 else t[:rng.randrange(1, len(t) + 1)])(rng.choice(added))
    any_char = lambda: chr(rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x800, 0xD800), rng.randrange(0xE000, 0x10000),
                                       rng.randrange(0x10000, 0x20000), rng.randrange(0x20000, 0x110000), rng.choice(NEW)]))
    draw = {
        0: lambda: rng.choice(WORDS) + rng.choice([' ', ' ', ' ', ', ', '. ', '\n', '']),
        1: lambda: rng.choice(EMOJI),
        2: lambda: rng.choice(CJK),
        3: lambda: rng.choice(['e', 'a', 'न', ' ', '']) + rng.choice(MARKS),
        4: lambda: chr(rng.choice([*range(32), 127, *range(128, 160)])),
        5: lambda: rng.choice(SPACES),
        6: lambda: rng.choice(DIGITS),
        7: lambda: rng.choice(PUNCT),
        8: any_char,
        9: lambda: rng.choice(added),
        10: partial,
        11: lambda: rng.choice(TEXTS),
    }
    if kind in draw:
        return ''.join(draw[kind]() for _ in range(n))
    if kind == 12:  # a long run
        return rng.choice(['a', ' ', '\n', '\t', '1', '!', '中', 'é', '😀', 'ab', 'A', '\u0301', ' \n', '\x00', '- ']) * rng.randrange(1, 300)
    if kind == 13:  # bytes
        raw = ''.join(rng.choice(list(draw.values()))() for _ in range(n)).encode()
        return bytes(b if rng.random() > .1 else rng.randrange(256) for b in raw)[:rng.randrange(1, len(raw) + 1)]
    return ''.join(rng.choice(list(draw.values()))() for _ in range(n))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--tokenizer', default=os.path.join(ROOT, 'models/fairy/tokenizer.json'))
    ap.add_argument('--count', type=int, default=5000)
    ap.add_argument('--seed', type=int, default=1)
    ap.add_argument('--large', action='store_true', help='also 10 MB of one letter, of spaces and of others')
    ap.add_argument('--binary', help='the test_text executable')
    ap.add_argument('--write', help='write the cases here and stop')
    a = ap.parse_args()
    if not a.binary and not a.write:
        ap.error('give --binary or --write')
    with open(a.tokenizer, encoding='utf-8') as f:
        spec = json.load(f)
    hf = Tokenizer.from_file(a.tokenizer)
    bare = Tokenizer.from_str(json.dumps({**spec, 'added_tokens': []}))
    ids = lambda t, s: t.encode(s, add_special_tokens=False).ids
    added = [t['content'] for t in spec['added_tokens'] if 'place' not in t['content']]

    rng = random.Random(a.seed)
    lines = []
    for _ in range(a.count):
        s = generate(rng, added)
        text = s if isinstance(s, str) else s.decode('utf-8', 'replace')
        case = {'text': s} if isinstance(s, str) else {'hex': s.hex()}
        case['ids'] = ids(hf, text)
        plain = ids(bare, text)
        if plain != case['ids']:
            case['plain'] = plain
        lines.append(json.dumps(case, ensure_ascii=True, separators=(',', ':')))
    if a.large:
        for unit, times in (('a', 10_000_000), (' ', 3_000_000), ('\n', 1_000_000), ('e\u0301', 1_000_000), ('!', 1_000_000), ('7', 1_000_000), ('ab ', 1_000_000)):
            runs = [[i, len(list(g))] for i, g in itertools.groupby(ids(hf, unit * times))]
            if len(runs) > 1000:
                print(f'{unit!r} x {times}: {len(runs)} runs, left out', file=sys.stderr)
                continue
            lines.append(json.dumps({'unit': unit, 'times': times, 'runs': runs}, separators=(',', ':')))

    path = a.write or os.path.join(tempfile.mkdtemp(), 'cases.jsonl')
    with open(path, 'w', encoding='utf-8') as f:
        f.write('\n'.join(lines) + '\n')
    if a.write:
        print(f'{path}: {len(lines)} cases')
        return 0
    env = {**os.environ, 'TOKENIZER_CASES': path, 'TOKENIZER_JSON': a.tokenizer}
    run = subprocess.run([a.binary, '--gtest_filter=TokenizerCases.*CasesFile*'], env=env)
    print(f'{len(lines)} cases compared: {"equal" if run.returncode == 0 else "DIFFERENT"}')
    return run.returncode


if __name__ == '__main__':
    sys.exit(main())
