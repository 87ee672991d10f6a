"The commands: exit codes, standard input, JSON lines, keys; as processes where that matters: start, closed pipes, interrupts"
import csv, json, math, os, re, select, shutil, signal, subprocess, sys, tempfile, time
from pathlib import Path

import pytest

from dew_nb.models.artefacts import load_artefact, save_artefact
from dew_nb.models.signing import make_key_pair
from dew_nb.read.verdicts import CLAIMS
from dew_nb.shell import commands
from dew_nb.shell.arguments import call_command

ROOT = Path(__file__).resolve().parent.parent
KEY = b'an example key: never use this one'
ENV = {'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1', 'OMP_WAIT_POLICY': 'PASSIVE', 'TOKENIZERS_PARALLELISM': 'false'}
HUMAN = ('The committee met on Tuesday and agreed to postpone the vote until the figures for the spring were complete. '
         'Nobody in the room expected that the treasurer would resign before the summer.')

def as_bytes(s): return s if isinstance(s, bytes) else s.encode()

def run(name, *args, stdin='', **more):
    "The command called in this process: exit code, output and error output"
    with pytest.MonkeyPatch.context() as m, tempfile.TemporaryFile('w+', encoding='utf-8') as f:
        f.buffer.write(as_bytes(stdin))
        f.seek(0)
        m.setattr(sys, 'stdin', f)
        for k in ('DEW_KEY', 'DEW_DEBUG'): m.delenv(k, raising=False)
        for k,v in more.items(): m.setenv(k, v)
        return call_command(getattr(commands, name), *map(str, args))

def start(name, *args, **more):
    "The command in a Python of its own, which goes on"
    argv = [sys.executable, '-c', f'import sys; from dew_nb.shell.commands import {name}; sys.exit({name}())', *map(str, args)]
    env = {k: v for k,v in os.environ.items() if k not in ('DEW_KEY', 'DEW_DEBUG')} | ENV
    return subprocess.Popen(argv, **{**dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env), **more})

def run_fresh(name, *args):
    "The same, when it has ended"
    p = start(name, *args)
    out, err = p.communicate(timeout=300)
    return p.returncode, out.decode(), err.decode()

def fails(name, *args, says, run=run, **kw):
    "The command ends with 2, nothing on standard output and one line that contains `says`"
    code, out, err = run(name, *args, **kw)
    assert (code, out) == (2, ''), err
    lines = [l for l in err.splitlines() if not l.endswith('…')]               # progress
    assert len(lines) == 1 and says in lines[0] and lines[0].startswith(f'{name}: error: '), err
    assert 'Traceback' not in err
    return err

@pytest.fixture(scope='module')
def made(tmp_path_factory):
    "A key file, a detector and marked texts, all made by dew_mark"
    d = tmp_path_factory.mktemp('commands')
    (d/'my.key').write_text(KEY.hex())
    code, out, err = run('dew_mark', '--key-file', d/'my.key', '--save-detector', d/'my.dew', '--preset', 'calibrated', '--lam', 6, '--max-new-tokens', 40, '--json',
                         '--lines', stdin='The old harbour lies\n\nScientists have found that\n')
    assert code == 0, err
    rows = [json.loads(l) for l in out.splitlines()]
    (d/'marked.jsonl').write_text(out)
    (d/'marked.txt').write_text(rows[0]['text'] + '\n')
    return dict(dir=d, key=d/'my.key', det=d/'my.dew', rows=rows, out=out, err=err)

# ---------------------------------------------------------------- without any model
SECRET = 'c0ffee'*8
@pytest.mark.parametrize('name', ['dew_mark', 'dew_detect'])
@pytest.mark.parametrize('args', [[SECRET], ['--key', SECRET], [f'--key={SECRET}'], ['--key-file', SECRET], ['--key-env', SECRET],
                                  [f'--seed={SECRET}'], ['a text', f' 0x{SECRET} ']])
def test_no_key_on_the_command_line(name, args):
    assert SECRET not in fails(name, *args, says='secret key')

@pytest.mark.parametrize('args, says', [
    ([], 'no prompt'), (['--file', 'no-such-file'], 'No such file or directory: no-such-file'), (['x', '--seed', 'y'], '--seed must be'),
    (['x', '--max-new-tokens', '0'], '--max-new-tokens must be at least 1'), (['x', '--wrong'], 'unrecognized arguments: --wrong'),
    (['x', '--save-detector', 'no-such-folder/x.dew'], 'there is no such folder'),
    (['x', '--lines', '--jsonl', 'f'], 'not both'), (['x', '--temperature', '0'], '--temperature must be above 0'),
    (['x', '--top_p', '2'], '--top-p must be'), (['x', '--encoding', 'utf-9'], '--encoding utf-9 is unknown'), (['x'], 'no key: give --key-file FILE, or put the key into DEW_KEY'),
    (['x', '--key-env', 'MINE'], 'put the key into MINE'), (['x', '--key-file', 'no-such-file'], 'no key file no-such-file'),
    (['x', '--preset', 'best'], "invalid choice: 'best'")])
def test_mark_errors(args, says): fails('dew_mark', *args, says=says)

@pytest.mark.parametrize('args, says', [
    (['--text', 'x', '--alpha', '0'], '--alpha must lie between 0 and 1'), (['no-such-file'], 'no file no-such-file'),
    (['--text', 'x', '--detector', 'no.dew'], 'no detector file no.dew'), (['--text', 'x', '--tokens'], '--tokens needs --json'),
    (['--text', 'x', '--detector', 'a.dew', '--key-file', 'k', '--lam', '2'], '--key-file, --lam beside --detector'),
    (['--text', 'x', '--detector', 'a.dew', '--key-env', 'MINE'], '--key-env beside --detector'),
    ([HUMAN*9], 'a text itself is given with --text'), (['--info'], '--info needs --detector'), (['--csv', '--json'], 'not both'),
    (['--scan', '--detector', 'a.dew', '--detector', 'b.dew'], '--scan takes one --detector'), (['--text', 'x', '--encoding', 'utf-9'], 'is unknown'),
    (['--text', 'x', '--jsonl', 'a', '--column', 'b'], 'not both'), (['--text', 'x', '--many', 'sidak'], "invalid choice: 'sidak'"),
    (['--text', 'x'], 'no key')])
def test_detect_errors(args, says): fails('dew_detect', *args, says=says)

def test_errors_of_a_fresh_process():
    "What the others see in this process is what a shell gets"
    fails('dew_mark', 'x', says='no key', run=run_fresh)
    assert SECRET not in fails('dew_detect', SECRET, says='secret key', run=run_fresh)
    fails('dew_eval', says='the following arguments are required: study', run=run_fresh)

def test_bad_keys(tmp_path):
    for digits, says in (('abcd', '2 bytes; at least 16'), ('xyz', 'not hexadecimal'), ('abc', 'not hexadecimal')):
        err = fails('dew_mark', 'x', says=says, DEW_KEY=digits)
        assert 'DEW_KEY' in err
    (tmp_path/'k').write_bytes(b'\xff\x00')
    fails('dew_mark', 'x', '--key-file', tmp_path/'k', says='is not text of hexadecimal digits')
    fails('dew_mark', 'x', '--key-file', tmp_path, says='no key file')
    fails('dew_mark', 'x', '--preset', 'paper', '--lam', '-1', says='lam must be', DEW_KEY=KEY.hex())
    fails('dew_mark', 'x', '--lam', '2', says='add --preset calibrated', DEW_KEY=KEY.hex())
    fails('dew_mark', 'x', '--preset', 'paper', '--keys', '8', says='knows no sub-keys', DEW_KEY=KEY.hex())

def test_prompt_that_is_a_file(tmp_path):
    "Its name would be continued: that is said, and so is what to do"
    (tmp_path/'prompts.jsonl').write_text('{}')
    code, out, err = run('dew_mark', tmp_path/'prompts.jsonl')
    assert code == 2 and f'warning: the prompt' in err and f'--file {tmp_path/"prompts.jsonl"}' in err and 'no key' in err

def test_new_key(tmp_path):
    code, out, err = run_fresh('dew_mark', '--new-key', tmp_path/'k')
    digits = (tmp_path/'k').read_text().strip()
    assert (code, out) == (0, '') and re.fullmatch('[0-9a-f]{64}', digits) and digits not in err
    if os.name == 'posix': assert (tmp_path/'k').stat().st_mode & 0o077 == 0
    fails('dew_mark', '--new-key', tmp_path/'k', says='left as it is')
    assert (tmp_path/'k').read_text().strip() == digits

def test_help_is_quick():
    "Neither the module nor --help loads torch; what must precede torch is set by then, unless the user has set it"
    code = "import sys; from dew_nb.shell import commands as c; [f(['--help']) for f in (c.dew_mark, c.dew_detect, c.dew_eval)]; " \
           "print('LOADED', sorted({'torch', 'transformers', 'numpy', 'pandas'} & set(sys.modules))); " \
           "import os, importlib, dew_nb; print(os.environ['OMP_WAIT_POLICY']); os.environ['OMP_WAIT_POLICY'] = 'ACTIVE'; " \
           "importlib.reload(dew_nb); print(os.environ['OMP_WAIT_POLICY'])"
    there = {k: v for k,v in (os.environ | ENV).items() if k != 'OMP_WAIT_POLICY'}
    r = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, env=there)
    assert r.stdout.endswith('LOADED []\nPASSIVE\nACTIVE\n') and r.stdout.count('Exit code') == 3, r.stdout + r.stderr

@pytest.mark.parametrize('args, says', [([], 'the following arguments are required: study'), (['x.toml', '--wrong'], 'unrecognized arguments: --wrong'),
                                        (['no-such.toml'], 'no-such.toml'), (['x.toml', '--only', SECRET], 'secret key')])
def test_eval_errors(args, says): assert SECRET not in fails('dew_eval', *args, says=says)

def test_a_missing_extra_is_named(tmp_path):
    "Without a package of the studies the extra is told, in the command and in Python"
    code = ('import sys; sys.modules["rapidfuzz"] = None; from dew_nb.shell.commands import dew_eval; print(dew_eval(["x.toml"])); '
            'import dew_nb.evaluation.attacks.base')
    r = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, env={**os.environ, 'PYTHONPATH': str(ROOT)})
    assert r.stdout == '2\n' and r.stderr.startswith('dew_eval: error: rapidfuzz is not installed: studies want dew_nb[eval]'), r.stderr
    assert 'wants rapidfuzz, which is not installed: install dew_nb[eval]' in r.stderr.splitlines()[-1], r.stderr

def test_commands_are_installed():
    "settings.ini names all commands, and they exist"
    from nbpages import settings
    import dew_nb.shell.commands as c
    found = settings()['console_scripts'].split()
    for name in ('dew_mark', 'dew_detect', 'dew_eval'): assert f'{name}=dew_nb.shell.commands:{name}' in found and callable(getattr(c, name))

# ---------------------------------------------------------------- with the embedded models
def test_mark_output(made):
    rows = made['rows']
    assert [r['prompt'] for r in rows] == ['The old harbour lies', 'Scientists have found that'] and all(r['text'].strip() for r in rows)
    assert rows[0]['config']['lam'] == 6 and len(rows[0]['key']) == 16
    for s in (KEY.hex(), KEY.decode()): assert s not in made['out'] + made['err'] and s.encode() not in made['det'].read_bytes()

def test_all_marked(made):
    "Standard input and a file, both marked: exit code 0 and a table; the line break at the end is not part of a text"
    code, out, err = run('dew_detect', '--detector', made['det'], '--quiet', '-', made['dir']/'marked.txt', stdin=made['rows'][0]['text'])
    head, a, b, _, all_of_them, _ = out.splitlines()
    assert (code, err) == (0, '') and head.split() == ['text', 'verdict', 'p-value', 'z', 'scored', 'key', 'scheme'], err
    assert a.split()[:2] == ['stdin', 'marked'] and made['rows'][0]['key'] in a, out
    assert a[28:] == b[28:] and all_of_them.startswith('2 texts examined, 2 marked. At level 0.01 about 0.02 would')

def test_bad_lines_and_files(made):
    "What can't be read is a row of its own, the rest is judged, and the exit code is 2; byte-order marks are honoured"
    d, text = made['dir'], made['rows'][0]['text']
    for e in ('utf-16', 'utf-32', 'utf-8-sig', 'utf-16-le'): (d/f'{e}.txt').write_text(text, encoding=e)
    (d/'x.zip').write_bytes(b'PK\x03\x04\x00\x00' + text.encode())
    names = [d/f for f in ('utf-16.txt', 'utf-32.txt', 'utf-8-sig.txt', 'utf-16-le.txt', 'x.zip', 'marked.txt')]
    code, out, err = run('dew_detect', '--detector', made['det'], '--csv', '--html', d/'report.html', *names)
    rows = list(csv.DictReader(out.splitlines()))
    assert code == 2 and [r['verdict'] for r in rows] == ['marked']*4 + ['error', 'marked'], err
    assert [r['read_as'] for r in rows] == ['utf-16', 'utf-32', '', 'utf-16-le, by the look of it', '', '']
    assert '--encoding' in rows[4]['error'] and 'NUL' in rows[4]['error'] and err.endswith('dew_detect: error: 1 of 6 texts could not be read\n')
    assert '5 texts examined (1 could not be read), 5 marked' in err
    assert len({r['z'] for r in rows if r['z']}) == 1
    page = (d/'report.html').read_text()
    assert page.count('<svg') == 5 and '5 texts examined' in page and made['rows'][0]['key'] in page and 'x.zip' in page
    code, out, err = run('dew_detect', '--detector', made['det'], '--encoding', 'utf-16-le', names[3], d/'utf-16.txt')
    assert code == 0, out

@pytest.mark.parametrize('args', [[], ['--key-file', 'no-such-file'], ['--key-env', 'MINE']])
def test_without_a_detector(args):
    "Who detects is told of the detector first, and never to make a new key: no text carries its mark"
    err = fails('dew_detect', '--text', 'x', *args, says='give --detector FILE')
    assert '--new-key' not in err and err.index('--detector') < err.index('--key-file FILE') and ('MINE' in err) == ('MINE' in args)

def test_tables_and_folders(made, tmp_path):
    "A table is read by a column or refused with their names; a folder gives its files; an error is a row of its own"
    text = made['rows'][0]['text'].strip()
    with open(tmp_path/'answers.csv', 'w', newline='') as f: csv.writer(f).writerows([['id', 'answer'], [1, text], [2, HUMAN], [3, HUMAN.upper()], [4, text.upper()]])
    code, out, err = run('dew_detect', '--detector', made['det'], '--json', '--column', 'answer', tmp_path/'answers.csv')
    *rows, last = map(json.loads, out.splitlines())
    assert code == 1 and [r['verdict'] for r in rows] == ['marked', 'not marked', 'not marked', 'marked'] and last['summary']['texts'] == 4, err
    assert [r['name'][-5:] for r in rows] == ['csv:2', 'csv:3', 'csv:4', 'csv:5']
    assert 'in capitals' in rows[2]['caution'] and rows[2]['undone'] == ['case'] and 'caution' not in rows[1]
    (tmp_path/'page.html').write_text(f'<title>no</title><p>{text}</p>')
    (tmp_path/'old.odt').write_bytes(b'PK')
    code, out, err = run('dew_detect', '--detector', made['det'], '--json', tmp_path)
    table, odt, page = map(json.loads, out.splitlines())                # one text: no summary
    assert code == 2 and err.endswith('2 of 3 texts could not be read\n') and page['verdict'] == 'marked', out
    assert "--column NAME. It has 'id', 'answer'" in table['error'] and '.odt files are not read' in odt['error']

def test_many_texts(made):
    "The number of texts is told; corrected verdicts come after the last text, and say what they were corrected for"
    text = made['rows'][0]['text']
    p = json.loads(run('dew_detect', '--detector', made['det'], '--json', '--text', text)[1])['p_value']
    texts = [x for i in range(9) for x in ('--text', f'{i} {HUMAN}')]
    ask = lambda *more: [json.loads(l) for l in run('dew_detect', '--detector', made['det'], '--json', '--alpha', 5*p, *more, '--text', text, *texts)[1].splitlines()]
    plain, holm = ask(), ask('--many', 'holm')
    assert plain[0]['verdict'] == 'marked' and 'p_adjusted' not in plain[0] and plain[-1]['summary']['expected_false_positives'] == pytest.approx(50*p, abs=1e-6)
    assert holm[0]['verdict'] != 'marked' and holm[0]['p_adjusted'] == pytest.approx(10*p) and holm[0]['many'] == 'Holm, 10 texts'
    assert holm[-1]['summary']['marked'] == 0 and holm[-1]['summary']['many'] == 'holm'

def test_names_of_rows(made, tmp_path):
    "Rows have the names of a column; corrected p-values stand in the table and on the page; a row of a word is not examined"
    rows = [('Anna', made['rows'][0]['text']), ('Berta', HUMAN), ('', 'No'), ('Dora', ' ')]
    with open(tmp_path/'class.csv', 'w', newline='', encoding='utf-8') as f: csv.writer(f).writerows([('who', 'answer'), *rows])
    ask = ['dew_detect', '--detector', made['det'], '--column', 'answer', '--id-column', 'who', tmp_path/'class.csv', '--quiet']
    code, out, err = run(*ask, '--many', 'holm', '--html', tmp_path/'page.html')
    head, anna, berta, third, dora, _, words, note, _ = out.splitlines()
    assert code == 1 and 'p-value corrected' in head and [l.split()[0].rsplit(':', 1)[1] for l in (anna, berta, third, dora)] == ['Anna', 'Berta', 'row', 'Dora'], out + err
    p, fixed = (float(anna.split()[i]) for i in (2, 3))
    assert ' marked ' in anna and fixed == pytest.approx(2*p, rel=.2) and words.startswith('2 texts examined (2 left out: too few words to score), 1 marked'), out
    assert '1 rows have no name of their own' in note and '<th>corrected</th>' in (tmp_path/'page.html').read_text()
    said = [json.loads(l) for l in run(*ask, '--json')[1].splitlines()]
    assert said[-1]['summary']['texts'] == 2 and said[-1]['summary']['left_out'] == 2 and said[-1]['summary']['expected_false_positives'] == pytest.approx(.02)
    fails(*ask[:3], '--id-column', 'who', tmp_path/'class.csv', says='--id-column needs --column')
    code, out, err = run(*ask[:5], '--id-column', 'whom', tmp_path/'class.csv')
    assert code == 2 and "no column 'whom'; it has 'who', 'answer'" in out

@pytest.mark.parametrize('kind', ['csv', 'parquet'])
def test_names_that_occur_twice(made, tmp_path, kind):
    "Rows of the same name, or of none, get their number, which is said once; both kinds of tables"
    rows, f = [('Anna', HUMAN), ('Anna', made['rows'][0]['text']), (None, HUMAN), ('Berta', HUMAN)], tmp_path/f'class.{kind}'
    if kind == 'csv':
        with open(f, 'w', newline='', encoding='utf-8') as out: csv.writer(out).writerows([('who', 'answer'), *rows])
    else:
        pa = pytest.importorskip('pyarrow')
        import pyarrow.parquet as pq
        pq.write_table(pa.table(dict(zip(('who', 'answer'), map(list, zip(*rows))))), f)
    code, out, err = run('dew_detect', '--detector', made['det'], '--column', 'answer', '--id-column', 'who', '--csv', f)
    first = 2 if kind == 'csv' else 1
    names = [r['name'].rsplit(':', 1)[1] for r in csv.DictReader(out.splitlines())]
    assert names == [f'Anna (row {first})', f'Anna (row {first+1})', f'row {first+2}', 'Berta'], out + err
    assert code == 1 and err.count('3 rows have no name of their own') == 1 and [r['verdict'] for r in csv.DictReader(out.splitlines())][1] == 'marked'

def test_columns_that_occur_twice(drawn, tmp_path):
    "Which is meant can't be told; a number can"
    (tmp_path/'a.csv').write_text(f'answer,id,answer\n"{HUMAN}",1,"{HUMAN} Again."\n')
    code, out, err = run('dew_detect', '--detector', drawn['det'], '--column', 'answer', tmp_path/'a.csv')
    assert code == 2 and "has the column 'answer' 2 times, as number 1, 3" in out
    by_number, alone = (json.loads(run('dew_detect', '--detector', drawn['det'], '--json', *more)[1]) for more in (['--column', 3, tmp_path/'a.csv'], ['--text', f'{HUMAN} Again.']))
    assert by_number['z'] == alone['z'] and by_number['n_tokens'] == alone['n_tokens']

def test_hidden_text_of_a_page(made, tmp_path):
    "It is neither scored nor passed over in silence"
    marked = made['rows'][0]['text']
    for i,how in enumerate(('hidden', 'style="display:none"', 'style="visibility: hidden"', 'style="font-size:0"')):
        (tmp_path/f'{i}.html').write_text(f'<p>{HUMAN}</p><p {how}>{marked}</p><p>Nobody spoke.</p>')
    (tmp_path/'seen.html').write_text(f'<p>{HUMAN}</p><p>Nobody spoke.</p>')
    code, out, err = run('dew_detect', '--detector', made['det'], '--json', tmp_path)
    *rows, _ = map(json.loads, out.splitlines())
    left = len(' '.join(marked.split()))
    assert len({r['z'] for r in rows}) == 1 and [f'{left:,} hidden characters left out' in r.get('read_as', '') for r in rows] == [True]*4 + [False], out

def test_hidden_files_and_plain_words(made, tmp_path):
    "Hidden files are named; what is no Word file, no PDF or no text is told in plain words, without a wrong advice; a scan ends with the same exit codes"
    for f in ('.notes', '.git/config'):
        (tmp_path/f).parent.mkdir(exist_ok=True)
        (tmp_path/f).write_text('x')
    for name,b in {'fake.docx': b'x', 'fake.pdf': b'x', 'ja.txt': 'この港は静かだった。'.encode('shift_jis'), 'ru.txt': 'Старый порт был тих.'.encode('cp1251'),
                   'wide.txt': HUMAN.encode('utf-32-le'), 'empty.txt': b''}.items(): (tmp_path/name).write_bytes(b)
    for more in ([], ['--scan']):
        code, out, err = run('dew_detect', '--detector', made['det'], '--csv', *more, tmp_path)
        rows = {Path(r['name']).name: r for r in csv.DictReader(out.splitlines())}
        assert code == 2 and len(rows) == 6 and '2 hidden files left out (.git/config, .notes)' in err, out + err
        assert all(not re.search(r'BadZip|Pdf\w*Error|cp1252|utf-16', r['error']) for r in rows.values())
        assert 'not a Word document' in rows['fake.docx']['error'] and 'as PDF' in rows['fake.pdf']['error'] and '--encoding NAME' in rows['ja.txt']['error']
        assert rows['wide.txt']['read_as'] == 'utf-32-le, by the look of it' and rows['wide.txt']['verdict'] != 'error'
    for more in ([], ['--scan']):
        ask = ['dew_detect', '--detector', made['det'], *more, '--text', made['rows'][0]['text']*2]
        assert run(*ask)[0] == 0 and run(*ask, '--text', '')[0] == 1
    assert 'also of --scan' in run('dew_detect', '--help')[1]

def test_a_note_for_what_repeats_itself(made):
    "Not that this detector reads words: it reads tokens"
    out = run('dew_detect', '--detector', made['det'], '--text', '&' + 'lamp;'*3000)[1]
    assert 'too short to say' in out and 'repeats itself' in out and 'reads words' not in out

def test_keys_are_claims(drawn, tmp_path):
    "Once a run, not once a row, it is said that key and scheme are the file's own words; not if its signature was checked, nor if there is no file"
    ask = lambda *a: run('dew_detect', '--detector', drawn['det'], '--text', drawn['text'], '--text', HUMAN, *a)
    for more in ([], ['--scan'], ['--json'], ['--many', 'holm'], ['--info'], ['--info', '--json']):
        code, out, err = ask(*more)
        assert out.count('own claims') == 1 and 'own claims' not in err, (more, out, err)
    code, out, err = ask('--csv', '--html', tmp_path/'page.html', '--report', tmp_path/'case.html')
    assert err.count(CLAIMS) == 1 and 'own claims' not in out
    for f in ('page.html', 'case.html', 'case.json'): assert (tmp_path/f).read_text().replace('&#x27;', "'").count(CLAIMS) == 1, f
    one = json.loads(run('dew_detect', '--detector', drawn['det'], '--json', '--text', HUMAN)[1])
    assert one['claims'] == CLAIMS
    private, public = make_key_pair(tmp_path/'lab.pem')
    tensors, meta = load_artefact(drawn['det'], 'detector')
    signed = save_artefact(tmp_path/'signed.dew', 'detector', tensors, meta, private)
    for more in (['--text', HUMAN], ['--text', HUMAN, '--json'], ['--info'], ['--text', HUMAN, '--report', tmp_path/'signed.html']):
        code, out, err = run('dew_detect', '--detector', signed, '--verify-key', public, *more)
        assert code in (0, 1) and 'own claims' not in out + err, err
    assert 'own claims' not in (tmp_path/'signed.html').read_text()

def test_report_of_a_case(made, tmp_path):
    "Case and examiner stand in the report, and whether the detector was signed"
    ask = ['dew_detect', '--detector', made['det'], '--text', made['rows'][0]['text'], '--quiet']
    code, out, err = run(*ask, '--report', tmp_path/'case.html', '--case', '2026/17', '--examiner', 'A. <Examiner>')
    record, page = json.loads((tmp_path/'case.json').read_text()), (tmp_path/'case.html').read_text()
    assert code == 0 and (record['case'], record['examiner'], record['detectors'][0]['signed']) == ('2026/17', 'A. <Examiner>', None), err
    assert '2026/17' in page and 'A. &lt;Examiner&gt;' in page and 'the file is not signed' in page and 'byte for byte' in page
    fails(*ask, '--examiner', 'A. Examiner', says='need --report')

def test_capitals_of_a_marked_text(made):
    "A mark that shows only in sentence case is told so, in the table and in CSV"
    ask = ['dew_detect', '--detector', made['det'], '--text', made['rows'][0]['text'].upper()]
    code, out, err = run(*ask)
    assert code == 0 and '(read in sentence case)' in out, out + err
    row, = csv.DictReader(run(*ask, '--csv')[1].splitlines())
    assert (row['verdict'], row['remark']) == ('marked', 'read in sentence case')

def test_many_texts_in_shards(made, tmp_path):
    "A large job says the same of all its texts together, and a correction as one p-value"
    (tmp_path/'log.jsonl').write_text('\n'.join(json.dumps(dict(t=t)) for t in [made['rows'][0]['text'], *[f'{i} {HUMAN}' for i in range(9)]]))
    code, out, err = run('dew_detect', '--detector', made['det'], '--jsonl', 't', '--out', tmp_path/'out', '--many', 'bh', '--quiet', tmp_path/'log.jsonl')
    counts, plain, corrected, claims = out.splitlines()
    assert code == 1 and counts.endswith('10 texts: 1 marked, 9 not marked') and 'about 0.1 would be called marked' in plain, out + err
    assert '1 marked with p-values corrected for their number (Benjamini–Hochberg)' in corrected and 'a p-value of at most' in corrected and claims == CLAIMS
    fails('dew_detect', '--detector', made['det'], '--jsonl', 't', '--out', tmp_path/'out', 'a.csv', says='no CSV')

def test_several_detectors(made):
    "p-values are corrected for their number, and the verdict names the file"
    other = made['dir']/'other.dew'
    shutil.copy(made['det'], other)
    text = made['rows'][0]['text']
    ask = lambda *files: json.loads(run('dew_detect', *(x for f in files for x in ('--detector', f)), '--json', '--text', text)[1])
    one, two = ask(made['det']), ask(made['det'], other)
    assert two['p_value'] == pytest.approx(2*one['p_value']) and two['detector'] in (str(made['det']), str(other)) and len(two['keys']) == 2

def test_sub_keys_and_schemes(made):
    "One secret, two schemes: the key is the same, the scheme is not; the sub-key that speaks is told in the table and in CSV"
    d, prompt = made['dir'], 'A good night of sleep matters for three reasons. First,'
    code, out, err = run('dew_mark', '--key-file', made['key'], '--save-detector', d/'many.dew', '--keys', 3, '--max-new-tokens', 40, '--temperature', 1, '--json', prompt)
    row = json.loads(out)
    assert code == 0 and row['config']['keys'] == 3 and row['key'] == made['rows'][0]['key'] and row['scheme'] != made['rows'][0]['scheme'], err
    assert f'key {row["key"]}, scheme {row["scheme"]}' in err
    (d/'many.txt').write_text(row['text'] + '\n\n')
    code, out, err = run('dew_detect', '--detector', d/'many.dew', '--csv', '--text', row['text'], d/'many.txt')
    a, b = csv.DictReader(out.splitlines())
    assert code == 0 and (a['key'], a['scheme']) == (row['key'], row['scheme']) and a['subkey'] in map(str, range(3)), out + err
    assert a['score'] == b['score'] and a['n_scored'] == b['n_scored']                # line breaks at the end do not count
    code, out, err = run('dew_detect', '--detector', d/'many.dew', '--text', row['text'])
    assert ' marked ' in out and f'(sub-key {a["subkey"]} of 3)' in out and row['scheme'] in out
    code, out, err = run('dew_detect', '--detector', d/'many.dew', '--info')
    assert row['scheme'] in out and '3 sub-keys' in out and made['rows'][0]['scheme'] not in out
    code, out, err = run('dew_detect', '--key-file', made['key'], '--keys', 3, '--json', '--text', row['text'])
    assert json.loads(out)['subkey'] == int(a['subkey']) and json.loads(out)['scheme'] == row['scheme'], err
    fails('dew_detect', '--detector', d/'many.dew', '--keys', 3, '--text', 'x', says='--keys beside --detector')

@pytest.fixture(scope='module')
def drawn(made):
    "A tournament's detector and a text of the embedded host at a low temperature"
    d = made['dir']
    code, out, err = run('dew_mark', '--key-file', made['key'], '--save-detector', d/'drawn.dew', '--max-new-tokens', 40, '--temperature', .7, '--top-p', .9, '--json', 'The old harbour lies')
    assert code == 0, err
    return dict(det=d/'drawn.dew', text=json.loads(out)['text'])

def test_reading_with_the_host(made, drawn, tmp_path):
    "Verdict and exit code are those of the mark; the e-value stands below, and in a field of the record; who knows prompt and sampler knows more"
    ask = ['dew_detect', '--detector', drawn['det'], '--host', 'smollm2-135m', '--text']
    know = ['--prompt', 'The old harbour lies', '--temperature', .7, '--top-p', .9]
    code, out, err = run(*ask, drawn['text'], '--text', HUMAN, *know)
    plain = run('dew_detect', '--detector', drawn['det'], '--text', drawn['text'], '--text', HUMAN)
    lines = out.splitlines()
    assert code == plain[0] == 1 and [l for l in lines if not l.startswith('    with the host ')] == plain[1].splitlines(), out + err
    assert re.fullmatch(r'    with the host smollm2-135m: e-value \S+, p at most \S+: marked', lines[2]) and lines[4].endswith(': not marked'), out
    (tmp_path/'prompt.txt').write_text('The old harbour lies\n')
    rows = [json.loads(run(*ask, drawn['text'], '--json', *more)[1])['host_reading'] for more in ([], ['--prompt-file', tmp_path/'prompt.txt', *know[2:]])]
    assert rows[1]['marked'] and rows[1]['log_e_both'] > rows[0]['log_e_both'] and [r['samplers'] for r in rows] == [3, 1], rows
    assert f'e-value {math.exp(rows[1]["log_e_both"]):.3g},' in lines[2]

def test_what_cannot_be_read_with_a_host(made, drawn, tmp_path):
    "A rule that no host can be asked about, a host with another tokenizer, options that do not go together"
    fails('dew_detect', '--detector', made['det'], '--host', 'smollm2-135m', '--text', 'x', says="rule='bias' changes the host's distribution")
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({'a': 0, 'b': 1}, 'a')), eos_token='b').save_pretrained(tmp_path/'tiny')
    LlamaForCausalLM(LlamaConfig(vocab_size=2, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)).save_pretrained(tmp_path/'tiny')
    fails('dew_detect', '--detector', drawn['det'], '--host', tmp_path/'tiny', '--text', 'x', says='tokenizer')
    for more,says in ((['--prompt', 'x'], 'name it, --host NAME'), (['--host', 'h', '--scan'], 'without the host'), (['--host', 'h', '--csv'], 'leave out --csv'),
                      (['--host', 'h', '--top-p', 0], '--top-p must be'), (['--host', 'h', '--prompt-file', 'none'], 'no file none'),
                      (['--host', 'h', '--detector', made['det']], 'takes one detector')):
        fails('dew_detect', '--detector', drawn['det'], '--text', 'x', *more, says=says)

def test_scan_and_info(made):
    "Where the mark is, and what the file is, without any text"
    text = f'{HUMAN} {HUMAN} {made["rows"][0]["text"]}'
    code, out, err = run('dew_detect', '--detector', made['det'], '--scan', '--text', text)
    assert code == 0 and ' marked ' in out and '1 passage' in out and '    about characters ' in out and '      core, ' in out, out + err
    code, out, err = run('dew_detect', '--detector', made['det'], '--info')
    assert code == 0 and made['rows'][0]['key'] in out and 'bias, strength 6' in out and 'minilm' in out and "can't say" in out, out + err

def test_json_lines(made):
    "Standard input as JSON lines: what is wrong with one does not touch the others"
    bodies = [HUMAN + ' 🙂']*100 + [HUMAN + ' half of it: \ud83d', '', ' \n', 'caf\ufffd', made['rows'][1]['text']]
    lines = [json.dumps(dict(body=o)).encode().replace(b'\\ufffd', b'\xe9') for o in bodies]
    lines[50:50] = [b'{"body": ', b'[1]']
    code, out, err = run('dew_detect', '--detector', made['det'], '--jsonl', 'body', '--json', stdin=b'\n\n'.join(lines))
    *rows, last = [json.loads(l) for l in out.splitlines()]
    assert code == 2 and err.endswith('3 of 107 texts could not be read\n'), err
    assert last['summary'].items() >= dict(texts=102, marked=1, errors=3, left_out=2, alpha=.01, many=None, expected_false_positives=1.02).items()
    want = ['not marked']*50 + ['error']*2 + ['not marked']*51 + ['too short to say']*2 + ['error', 'marked']
    assert [r['verdict'] for r in rows] == want
    assert rows[0]['name'] == 'stdin:1' and rows[-1]['name'] == f'stdin:{2*len(rows)-1}' and 'line 101 is not JSON' in rows[50]['error']
    assert rows[103]['p_value'] == 1 and rows[0]['alpha'] == .01 and rows[0]['key'] == made['rows'][0]['key']

@pytest.mark.parametrize('line, says', [('{"body": 1}', "line 2: 'body' is int"), ('{"text": ""}', "line 2 has no field 'body'; it has 'text'"),
                                        ('{"body": ', 'line 2 is not JSON'), ('[1]', 'a JSON object is expected')])
def test_bad_json_lines(line, says):
    "Checked without a model: the error stands in the place of the text"
    from dew_nb.serving.inputs import UsageError, named_texts
    from tempfile import TemporaryDirectory
    with TemporaryDirectory() as d:
        p = Path(d)/'x.jsonl'
        p.write_text('{"body": "fine"}\n' + line + '\n{"body": "last"}\n')
        got = named_texts([str(p)], [], 'body')
        assert next(got) == (f'{p}:1', 'fine')
        name, error = next(got)
        assert isinstance(error, UsageError) and says in str(error) and next(got) == (f'{p}:3', 'last')

def test_json_lines_are_read_one_by_one(tmp_path):
    "A stream that never ends can be read: bounded memory"
    from dew_nb.serving.inputs import json_lines
    p = tmp_path/'pipe'
    os.mkfifo(p)
    w = subprocess.Popen([sys.executable, '-c', f'f = open({str(p)!r}, "w")\nwhile True: f.write(\'{{"t": "x"}}\\n\')'], stderr=subprocess.DEVNULL)
    try:
        g = json_lines(str(p), 't')
        assert [next(g) for _ in range(1000)][-1] == (1000, 'x')
        g.close()
    finally: w.kill(); w.wait()

def test_key_and_host_detect_like_the_detector(made):
    "With the key instead of a detector file; a broken detector file is told in one line"
    code, out, err = run('dew_detect', '--key-env', 'MINE', '--jsonl', 'text', made['dir']/'marked.jsonl', '--preset', 'calibrated', '--lam', 6, MINE=KEY.hex())
    assert code == 0 and out.count(' marked  ') == 2, out + err
    broken = made['dir']/'broken.dew'
    broken.write_bytes(made['det'].read_bytes()[:-100])
    fails('dew_detect', '--text', 'x', '--detector', broken, says='is truncated')

@pytest.mark.skipif(os.name != 'posix', reason='pipes and signals of POSIX')
def test_streams_and_closed_pipe(drawn):
    "A verdict is there before the input ends; a reader that goes away ends the command quietly"
    lines = [json.dumps(dict(t=f'{i} {HUMAN}')).encode() + b'\n' for i in range(50)]
    p = start('dew_detect', '--detector', drawn['det'], '--jsonl', 't', '--json', '--quiet')
    p.stdin.write(lines[0])
    p.stdin.flush()
    ready, _, _ = select.select([p.stdout], [], [], 120)
    if not ready: p.kill()
    assert ready and json.loads(p.stdout.readline())['name'] == 'stdin:1'
    p.stdout.close()
    try: p.stdin.write(b''.join(lines[1:])); p.stdin.close()
    except BrokenPipeError: pass
    err = p.stderr.read().decode()
    assert p.wait(timeout=300) == 141 and err == ''

@pytest.mark.skipif(os.name != 'posix', reason='pipes and signals of POSIX')
def test_interrupt(tmp_path):
    "Ctrl-C ends with 130 and one line"
    os.mkfifo(tmp_path/'pipe')
    heed = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)                    # a shell's background job ignores it, and so would its children
    p = start('dew_mark', '--file', tmp_path/'pipe', stdin=subprocess.DEVNULL, preexec_fn=heed)
    with open(tmp_path/'pipe', 'wb'):                                          # opens when the command reads
        time.sleep(.2)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=300)
    assert (p.returncode, out, err) == (130, b'', b'dew_mark: interrupted\n')
