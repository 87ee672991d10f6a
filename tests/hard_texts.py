"""Texts that are hard on the code that reads them, of any length: runs, nests, and whatever a pattern could stumble over.

    python tests/hard_texts.py [CHARACTERS ...]      seconds of processor time of each, by its number of characters"""
import sys, time


def repeat(unit): return lambda n: (unit*(n//len(unit) + 1))[:n]


HARD = {
    'entities in entities': lambda n: '&' + repeat('amp;')(n), 'numbers in numbers': lambda n: '&' + repeat('#38;')(n), 'entities': repeat('&lt;b&gt;a'),
    'entities twice': repeat('&amp;lt;b&amp;gt;'), 'semicolons': lambda n: repeat('&amp')(n//2) + repeat('&semi;')(n//2), 'ampersands': repeat('&'), 'a tick': repeat('&#96;a'),
    'tags in tags': lambda n: '<b'*(n//3) + '>'*(n//3), 'tags around tags': lambda n: '<'*(n//4) + 'b>'*(n//4), 'open tags': repeat('<b '), 'tags': repeat('<b>a</b> '),
    'emphasis in a line': repeat('*a* '), 'words and emphasis': repeat('word *a* '), 'emphasis in emphasis': lambda n: '*a '*(n//6) + 'b' + ' c*'*(n//6),
    'other signs inside': lambda n: 'x *a' + '_'*n + 'a* y', 'signs': lambda n: '*_'*(n//4) + 'a' + '_*'*(n//4), 'blanks, then emphasis': lambda n: ' '*(n//2) + 'x ' + repeat('*a* ')(n//2),
    'stars': repeat('*'), 'stars and blanks': repeat('* '), 'underlines': repeat('_'), 'tildes': repeat('~ ~'), 'an open star': lambda n: '*' + 'a'*n, 'digits, then emphasis': lambda n: '1'*n + ' *a*',
    'selectors': lambda n: 'a' + '\ufe0f'*n, 'joiners': lambda n: '\u200d'*n, 'both': lambda n: 'a' + repeat('\ufe0f\u200d')(n), 'unseen between': lambda n: 'a' + repeat('\u2060\ufe0f')(n),
    'returns': lambda n: '\r'*n + '\n', 'returns alone': lambda n: '\r'*n, 'zero width': repeat('a\u200b'), 'nulls': repeat('\x00'),
    'accents': lambda n: 'a' + repeat('\u0301\u0323')(n), 'one accent': lambda n: 'a' + '\u0301'*n, 'accented': repeat('e\u0301'), 'ligatures': repeat('ﬁ'), 'wide': repeat('Ａ'), 'bold': repeat('𝐛'),
    'tones of skin': lambda n: 'a ' + '\U0001f3fb'*n + 'x', 'faces': lambda n: 'a ' + '🙂'*n + 'x', 'faces and words': repeat('a 🙂 '), 'numbers in circles': lambda n: 'a' + '❶'*n,
    'a long blank': lambda n: 'a' + ' '*n + '\nb', 'two blanks': repeat('a  b'), 'blanks': lambda n: ' '*n, 'tabs': repeat(' \t'), 'line breaks': repeat('\n'),
    'ticks': repeat('`'), 'ticks and letters': repeat('`a'), 'fences': repeat('``` '), 'an open tick': lambda n: '`' + 'a'*n, 'code': repeat('    a\n'), 'bars': repeat('|\n'),
    'mixed scripts': repeat('раypal '), 'one mixed word': lambda n: 'a' + 'е'*n, 'Russian': repeat('мир '), 'no-break spaces': repeat('\u00a0'), 'quotes': repeat('“a” '), 'hyphens': repeat('a\u2010'),
    'letters': repeat('a'), 'words': repeat('word '), 'invented words': lambda n: ' '.join(map(str, range(n//6))), 'dashes': repeat('-'), 'apostrophes': repeat("'"), 'clitics': repeat("a's"), 'marks': repeat('!?')}


def main(sizes):
    from dew_nb.read.normalization import undo_all
    from dew_nb.mark.words import words
    print(f'{"":24}' + ''.join(f'{n:>12,}' for n in sizes) + '   (undone, then cut into words)')
    for name,make in HARD.items():
        row = []
        for n in sizes:
            text, start = make(n), time.process_time()
            words(undo_all(text).text)
            row.append(time.process_time() - start)
        print(f'{name:24}' + ''.join(f'{t:>12.3f}' for t in row), flush=True)


if __name__ == '__main__': main([int(n.replace(',', '')) for n in sys.argv[1:]] or [16_000, 32_000, 64_000])
