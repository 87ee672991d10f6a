"Detector files from strangers: nothing they name is run, a changed one is refused, and what they say is only text"
import csv, json, re, subprocess, sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dew_nb import DEW, DEWConfig, Detector, SecretKey, load_host, register_rule
from dew_nb.models.artefacts import content_digest, load_artefact, signer
from dew_nb.mark.bias import BiasRule
from dew_nb.shell.commands import dew_detect, dew_mark
from dew_nb.serving.ray import Job
from dew_nb.mark.protocols import _rules, _spaces, find_contexts, find_rule
from dew_nb.shell.arguments import call_command
from dew_nb.models.signing import key_name, load_verify_key, make_key_pair
from dew_nb.mark.sources import TokenSpace
from dew_nb.serving.vllm import acts_last, load_scheme
from quick import Letters

ROOT = Path(__file__).resolve().parent.parent
TEXT = 'The museum opened a new wing on Saturday, with paintings that had been in storage for forty years.'
KEY = SecretKey(b'an example key: never use this one')
GONE = object()


@pytest.fixture(scope='module')
def host(): return load_host()


def build(host, preset='calibrated', **choices):
    "A scheme with rows for the text's tokens alone: quick, and a file of some kilobytes"
    ids = np.array(host.tokenizer(TEXT)['input_ids'])
    config = DEWConfig.preset(preset, **dict(token_whitening=None, null='iid', n=32) | choices)
    return DEW.build(host, Letters(), KEY, config, reference=[TEXT], tokens=TokenSpace.of_host(host, None).narrow(ids))


@pytest.fixture(scope='module')
def made(host, tmp_path_factory):
    "A detector file, signed, and two pairs of keys"
    d = tmp_path_factory.mktemp('files')
    keys = {n: make_key_pair(d/f'{n}.pem') for n in ('lab', 'stranger')}
    return dict(dir=d, keys=keys, det=build(host).detector().save(d/'good.dew', sign_key=keys['lab'][0]))


def forge(path, new, tensors=None, **meta):
    "A file with other metadata (`GONE` takes a field away), a right digest, and the old signature if it had one"
    from safetensors import safe_open
    with safe_open(str(path), 'pt') as f: head = f.metadata()
    held = load_file(path) | (tensors or {})
    said = {k: v for k,v in (json.loads(head['meta']) | meta).items() if v is not GONE}
    head |= dict(meta=json.dumps(said), digest=content_digest(held, said))
    save_file(held, new, metadata=head)
    return new


def config_of(path): return load_artefact(path, 'detector')[1]['config']


# ---------------------------------------------------------------- nothing is run
EVIL = '''
from pathlib import Path
Path(__file__).with_name('it-ran').touch()
class Rule:
    last = True
    make = from_state = prepare = classmethod(lambda cls, *a, **k: None)
'''
LOAD = {'load': 'from dew_nb import Detector; from quick import Letters; Detector.load({path!r}, encoder=Letters())',
        'detect': 'from dew_nb.shell.commands import dew_detect; assert dew_detect(["--detector", {path!r}, "--text", "a"]) == 2',
        'info': 'from dew_nb.shell.commands import dew_detect; dew_detect(["--detector", {path!r}, "--info"])',
        'vllm': 'from dew_nb.serving.vllm import load_scheme; load_scheme({path!r})',
        'vllm last': 'from dew_nb.serving.vllm import acts_last; acts_last({path!r})'}


def test_a_file_runs_no_code(made, tmp_path):
    "A fresh process in the folder of forged files and of the module that they name, by all ways to read them"
    (tmp_path/'evil.py').write_text(EVIL)
    tries = ['import sys', 'sys.path.insert(0, "")']
    for field in ('rule', 'contexts'):
        path = forge(made['det'], tmp_path/f'{field}.dew', config=config_of(made['det']) | {field: 'evil:Rule'})
        tries += [f'try:\n    {code.format(path=str(path))}\nexcept ValueError as e: print(e)' for code in LOAD.values()]
    tries += ['from pathlib import Path', 'print("before", Path("it-ran").exists())',
              'import evil']                              # in code it does run: the test can fail
    env = dict(PYTHONPATH=f'{ROOT}:{ROOT/"tests"}', PATH='/usr/bin:/bin', OMP_NUM_THREADS='1')
    r = subprocess.run([sys.executable, '-c', '\n'.join(tries)], cwd=tmp_path, env=env, text=True, capture_output=True)
    assert r.returncode == 0, r.stderr
    assert 'before False' in r.stdout and (tmp_path/'it-ran').exists()
    for field in ('rule', 'contexts'):
        assert f'{field}.dew has a configuration that this dew_nb does not know' in r.stdout and "got 'evil:Rule'" in r.stdout
        assert f'register_{field}(' in r.stdout and f'{field}.dew has a configuration' in r.stderr       # dew_detect


@pytest.mark.parametrize('name', ['./model', 'org/name', '/etc', '~/model', '../model', '', None, 7, ['minilm'], {'a': 1}])
def test_a_file_names_no_folder_and_no_hub_id_as_encoder(made, tmp_path, monkeypatch, name):
    "A folder's modules.json can name classes, and a hub id is fetched: only this package's encoders are loaded by name"
    monkeypatch.chdir(tmp_path)
    (tmp_path/'model').mkdir()
    (tmp_path/'model'/'modules.json').write_text('[{"idx": 0, "name": "0", "path": "", "type": "evil.Module"}]')
    (tmp_path/'evil.py').write_text(EVIL)
    path = forge(made['det'], tmp_path/'forged.dew', encoder=name)
    with pytest.raises(ValueError, match='A file does not decide what is loaded'): Detector.load(path)
    assert not (tmp_path/'it-ran').exists()


def test_a_host_is_no_encoder(made, tmp_path):
    with pytest.raises(ValueError, match='is no encoder'): Detector.load(forge(made['det'], tmp_path/'f.dew', encoder='smollm2-135m'))


class Mine(BiasRule):
    "A third-party rule"
    @dataclass(frozen=True)
    class Config(BiasRule.Config): pass


def test_a_registered_rule_is_saved_and_loaded(host, tmp_path):
    with pytest.raises(ValueError, match='register_rule'): build(host, rule='mine')
    register_rule('mine', Mine)
    try:
        path = build(host, rule='mine').detector().save(tmp_path/'mine.dew')
        det = Detector.load(path, encoder=Letters())
        assert type(det.scheme.rule) is Mine and det.detect(TEXT).n_scored > 5 and acts_last(path) is False
    finally: del _rules['mine']
    with pytest.raises(ValueError, match=r"mine.dew has a configuration .*got 'mine'.*register_rule\('mine', YourClass\)"): Detector.load(path, encoder=Letters())


@pytest.mark.parametrize('name', ['evil', 'evil:Rule', 'os', 'dew_nb.mark.bias', 'keys', '', None, 7])
def test_only_names_of_this_package_and_registered_ones(name):
    "A name leads to a module of `dew_nb.mark` that registers it, or nowhere"
    for find in (find_rule, find_contexts):
        with pytest.raises(ValueError, match='must be registered first'): find(name)
    for k,v in {**_rules, **_spaces}.items(): assert v.__module__.startswith('dew_nb.mark.'), k


# ---------------------------------------------------------------- garbled files
GARBLED = [dict(config=GONE), dict(config=[]), dict(config=dict(lam='x')), dict(config=dict(colour='red')), dict(anchor=dict(score=1)), dict(anchor=3),
           dict(calibration=dict(state={})), dict(calibration='x'), dict(calibration=dict(state=[], group=None, kind='calibrated')),
           dict(encoder_probe='x'), dict(encoder_probe=dict(dim='a', rows=3)), dict(n=GONE), dict(reading='cooked'), dict(reading=[1]),
           dict(encoder_digest=GONE, encoder_probe=GONE), dict(transform=GONE)]


@pytest.mark.parametrize('meta', GARBLED, ids=range(len(GARBLED)))
def test_garbled_metadata_is_a_value_error(made, tmp_path, meta):
    with pytest.raises(ValueError) as e: Detector.load(forge(made['det'], tmp_path/'f.dew', **meta), encoder=Letters())
    assert len(str(e.value)) > 20


@pytest.mark.parametrize('name', ['rows', 'tokenizer', 'special'])
@pytest.mark.parametrize('t', [torch.zeros(0), torch.zeros(3, dtype=torch.uint8), torch.full((4, 4), float('nan'))])
def test_garbled_tensors_are_a_value_error(made, tmp_path, name, t):
    path = forge(made['det'], tmp_path/'f.dew', {name: t})
    try: Detector.load(path, encoder=Letters())
    except ValueError: pass


@pytest.fixture(scope='module')
def whole(made, host):
    "Files of each kind of rule: a bias, tournaments of both kinds of contexts, with and without an anchor"
    choices = dict(tournament=dict(layers=4, null='key', context_width=None), gumbel=dict(null='key')) # compiled contexts: no encoder
    return [made['det'], *(build(host, 'tournament', rule=r, **c).detector().save(made['dir']/f'{r}.dew') for r,c in choices.items())]


def test_numbers_that_are_none_are_refused(whole, tmp_path):
    "A NaN or an infinity in any tensor of any kind of file, or in what is said of it; `--info` refuses it too"
    for path in whole:
        held = {k: t for k,t in load_file(path).items() if t.is_floating_point()}
        assert held and Detector.load(path, encoder=Letters())
        for k,t in held.items():
            for x in (float('nan'), -float('inf')):
                new = t.clone()
                new.view(-1)[-1] = x
                with pytest.raises(ValueError, match=f"not finite.*'{re.escape(k)}'"): Detector.load(forge(path, tmp_path/'f.dew', {k: new}), encoder=Letters())
        code, out, err = call_command(dew_detect, '--detector', str(tmp_path/'f.dew'), '--info')
        assert code == 2 and 'not finite' in err and not out
    with pytest.raises(ValueError, match='not finite.*metadata'):
        Detector.load(forge(whole[0], tmp_path/'f.dew', anchor=dict(score=float('nan'))), encoder=Letters())


# ---------------------------------------------------------------- signatures
def test_a_signed_file_loads_and_scores_the_same(made, host):
    det = Detector.load(made['det'], encoder=Letters(), verify_key=made['keys']['lab'][1])
    assert det.detect(TEXT).z == build(host).detector().detect(TEXT).z
    assert signer(made['det']) == key_name(load_verify_key(made['keys']['lab'][1]))


def refusals(made, tmp_path, host):
    "(file, key, why) of what must be refused"
    lab, stranger = (made['keys'][n][1] for n in ('lab', 'stranger'))
    rows = load_file(made['det'])['rows']
    yield made['det'], stranger, 'signed with another key'
    yield build(host).detector().save(tmp_path/'bare.dew'), lab, 'it is not signed'
    yield build(host).detector().save(tmp_path/'theirs.dew', sign_key=made['keys']['stranger'][0]), lab, 'signed with another key'
    yield forge(made['det'], tmp_path/'meta.dew', key='0'*16), lab, 'changed after it was signed'
    yield forge(made['det'], tmp_path/'rows.dew', dict(rows=rows + 1)), lab, 'changed after it was signed'
    yield forge(made['det'], tmp_path/'more.dew', dict(more=rows.clone())), lab, 'changed after it was signed'
    yield made['det'], made['keys']['lab'][0], 'only the signer should have'
    yield made['det'], tmp_path/'no.pub', 'No key file'


def test_everything_else_is_refused(made, tmp_path, host):
    for path,key,why in refusals(made, tmp_path, host):
        with pytest.raises((ValueError, FileNotFoundError), match=why): Detector.load(path, encoder=Letters(), verify_key=key)
        if key.name.endswith('.pub') and key.exists(): Detector.load(path, encoder=Letters())       # the digest is in order


def test_commands_verify(made, tmp_path, host, monkeypatch):
    "dew_detect, the shards, vLLM and dew_mark's keys"
    lab, stranger = (made['keys'][n][1] for n in ('lab', 'stranger'))
    ask = lambda *a: call_command(dew_detect, '--detector', str(made['det']), *map(str, a))
    code, out, err = ask('--info', '--verify-key', lab)
    assert code == 0 and re.search(r'signed +[0-9a-f]{32}, verified', out)
    assert 'not verified' in ask('--info')[1]
    for more in (['--info'], ['--text', TEXT]):
        code, out, err = ask(*more, '--verify-key', stranger)
        assert code == 2 and 'signed with another key' in err and not out
    assert 'needs --detector' in call_command(dew_detect, '--verify-key', str(lab), '--text', 'a')[2]
    log = tmp_path/'log.jsonl'
    log.write_text(json.dumps(dict(text=TEXT)) + '\n')
    assert 'signed with another key' in ask(log, '--jsonl', 'text', '--out', tmp_path/'out', '--verify-key', stranger)[2]
    one, other = (Job((str(log),), (str(made['det']),), verify_key=k) for k in (None, str(lab)))
    assert one.identity() == other.identity()               # a run goes on with or without
    served = build(host, 'tournament', layers=4, null='key', context_width=None).detector()
    served.save(tmp_path/'served.dew', sign_key=made['keys']['stranger'][0])
    load_scheme(tmp_path/'served.dew')
    monkeypatch.setenv('DEW_VERIFY_KEY', str(lab))
    with pytest.raises(ValueError, match='signed with another key'): load_scheme(tmp_path/'served.dew')


def test_dew_mark_makes_and_uses_keys(tmp_path):
    code, out, err = call_command(dew_mark, '--new-sign-key', str(tmp_path/'k.pem'))
    assert code == 0 and (tmp_path/'k.pem').stat().st_mode & 0o777 == 0o600 and key_name(load_verify_key(tmp_path/'k.pem.pub')) in err
    assert 'exists already' in call_command(dew_mark, '--new-sign-key', str(tmp_path/'k.pem'))[2]
    assert '--sign-key needs --save-detector' in call_command(dew_mark, 'Hello', '--sign-key', str(tmp_path/'k.pem'))[2]
    assert 'the public half' in call_command(dew_mark, 'Hello', '--save-detector', str(tmp_path/'d.dew'), '--sign-key', str(tmp_path/'k.pem.pub'))[2]


# ---------------------------------------------------------------- what a file says is only text
BAD = '<script>alert(1)</script>"\'><img src=x onerror=alert(1)>\x1b]0;title\x07\x1b[2J=1+1'


class Tags(HTMLParser):
    "Elements and attributes of a page"
    def __init__(self, page):
        super().__init__()
        self.tags, self.attrs = set(), set()
        self.feed(page)
        self.close()
    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attrs |= {k for k,_ in attrs}


def harmless(page):
    t = Tags(page)
    assert not t.tags & {'script', 'img', 'iframe', 'object', 'embed', 'link', 'base', 'form'}, t.tags
    assert not [a for a in t.attrs if a.startswith('on') or a in ('href', 'src', 'srcdoc')], t.attrs
    assert 'alert(1)' not in page or '&lt;script&gt;alert(1)' in page


@pytest.fixture(scope='module')
def bad(made, host):
    "Two detector files whose metadata is made of markup and control characters"
    names = dict.fromkeys(('key', 'host', 'donor', 'encoder', 'tokenizer_digest', 'host_digest', 'config_digest', 'more'), BAD)
    compiled = build(host, 'tournament', layers=4, null='key', context_width=None).detector().save(made['dir']/'plain.dew')
    return dict(bias=forge(made['det'], made['dir']/'bad.dew', **names), compiled=forge(compiled, made['dir']/'bad_compiled.dew', **names))


def test_the_page_of_markup_is_seen():
    with pytest.raises(AssertionError): harmless(f'<p>{BAD}</p>')


def test_results_are_escaped(bad):
    det = Detector.load(bad['bias'], encoder=Letters())
    assert det.key == BAD
    for r in (det.detect(TEXT + BAD), det.scan(TEXT + BAD)): harmless(r.to_html())


def test_reports_and_terminals(bad, tmp_path):
    page, ask = tmp_path/'page.html', lambda *a: call_command(dew_detect, '--detector', str(bad['compiled']), *map(str, a))
    code, out, err = ask('--text', TEXT + BAD, '--html', page)
    assert code in (0, 1), err
    harmless(page.read_text(encoding='utf-8').replace('<meta http-equiv', '<meta data'))
    assert "default-src 'none'" in page.read_text(encoding='utf-8')
    for said in (out, ask('--info')[1], ask('--text', BAD + TEXT, '--scan')[1]): assert said and '\x1b' not in said and '\x07' not in said
    row = next(csv.DictReader(ask('--text', TEXT, '--csv')[1].splitlines()))
    assert row['key'] == BAD and not row['name'].startswith('=')
    equals = forge(bad['compiled'], tmp_path/'equals.dew', key='=1+1')
    row = next(csv.DictReader(call_command(dew_detect, '--detector', str(equals), '--text', TEXT, '--csv')[1].splitlines()))
    assert row['key'] == "'=1+1"


@pytest.mark.parametrize('key', [7, None, ['a'], {'a': 1}, '', ' ', '\u200b\n', GONE])
def test_a_file_that_names_no_key_is_refused(bad, tmp_path, key):
    path = forge(bad['compiled'], tmp_path/'odd.dew', key=key)
    for more in (['--text', TEXT], ['--info']):
        code, out, err = call_command(dew_detect, '--detector', str(path), *more)
        assert code == 2 and 'does not say whose mark it reads' in err and not out


def test_a_key_of_half_an_emoji(bad, tmp_path):
    path = forge(bad['compiled'], tmp_path/'odd.dew', key='a\ud800')
    for more in (['--json'], ['--csv'], ['--html', tmp_path/'page.html'], ['--info'], []):
        code, out, err = call_command(dew_detect, '--detector', str(path), '--text', TEXT, *map(str, more))
        assert code in (0, 1), err


def test_the_service_escapes_too(bad):
    pytest.importorskip('fastapi')
    from dew_nb.serving.service import make_app
    from starlette.testclient import TestClient
    client = TestClient(make_app({BAD: Detector.load(bad['compiled'])}), base_url='http://localhost')
    for path in ('/detect', '/scan'):
        r = client.post(path, json=dict(text=TEXT + BAD, html=True))
        assert r.status_code == 200
        harmless(r.json()['results'][0]['html'])
        assert r.headers['content-type'] == 'application/json' and r.headers['x-content-type-options'] == 'nosniff'
    for path in ('/', '/docs'):
        r = client.get(path)
        assert BAD not in r.text and 'alert(1)' not in re.sub('&lt;script&gt;alert\\(1\\)|onerror=alert\\(1\\)&gt;', '', r.text)
        assert "script-src 'self'" in r.headers['content-security-policy'] and 'unsafe-inline' not in r.headers['content-security-policy'].replace("style-src-attr 'unsafe-inline'", '')


# ---------------------------------------------------------------- small files that stand for large ones
def docx(body, **more):
    "A Word document with this XML in its body, and other parts"
    import io, zipfile
    document = pytest.importorskip('docx').Document()
    document.add_paragraph('HERE')
    made, out = io.BytesIO(), io.BytesIO()
    document.save(made)
    with zipfile.ZipFile(made) as old, zipfile.ZipFile(out, 'w', zipfile.ZIP_DEFLATED) as new:
        for i in old.infolist():
            b = old.read(i)
            if i.filename == 'word/document.xml': b = re.sub(rb'<w:p>(?:(?!</w:p>).)*HERE.*?</w:p>', lambda m: m[0] + body, b, flags=re.S)
            new.writestr(i.filename, b)
        for name,b in more.items(): new.writestr(f'word/media/{name}', b)
    return out.getvalue()


BOMBS = {'paragraphs': lambda: docx(b'<w:p><w:r><w:t>a</w:t></w:r></w:p>'*800_000), 'one word': lambda: docx(b'<w:p><w:r><w:t>' + b'a'*50_000_000 + b'</w:t></w:r></w:p>'),
         'a picture': lambda: docx(b'', big=b'\0'*300_000_000), 'elements': lambda: docx(b'<w:p/>'*600_000 + b'<w:p><w:r><w:t>' + bytes(np.random.default_rng(0).integers(97, 123, 200_000, np.uint8)) + b'</w:t></w:r></w:p>')}

@pytest.mark.parametrize('name', BOMBS)
def test_documents_that_unfold(name, tmp_path):
    "A small file that unfolds to much is refused by name; memory stays what it was, and the other files are read"
    (tmp_path/'bomb.docx').write_bytes(BOMBS[name]())
    (tmp_path/'good.txt').write_text(TEXT)
    assert (tmp_path/'bomb.docx').stat().st_size < 1_500_000
    code = ('import resource, sys; from dew_nb.serving.documents import named_documents; from docx import Document; Document()\n'
            'used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\nbefore = used()\n'
            'for name,text,how in named_documents([sys.argv[1]]): print(type(text).__name__, text)\nprint((used() - before)//1024)')
    r = subprocess.run([sys.executable, '-c', code, str(tmp_path)], env=dict(PYTHONPATH=str(ROOT), PATH='/usr/bin:/bin'), text=True, capture_output=True, timeout=120)
    assert r.returncode == 0, r.stderr
    refused, good, megabytes = r.stdout.splitlines()
    assert refused.startswith('UsageError') and 'bomb.docx' in refused and good == f'str {TEXT}' and int(megabytes) < 60, r.stdout


def test_cells_are_read_once():
    "However many columns a cell says that it spans"
    from dew_nb.serving.documents import docx_text
    cell = lambda text, more=b'': b'<w:tc><w:tcPr>' + more + b'</w:tcPr><w:p><w:r><w:t>' + text + b'</w:t></w:r></w:p></w:tc>'
    row = b'<w:tr>' + cell(b'wide', b'<w:gridSpan w:val="2000000000"/>') + cell(b'next') + b'</w:tr>'
    assert docx_text(docx(b'<w:tbl><w:tblPr/><w:tblGrid/>' + row + b'</w:tbl>')) == 'HERE\nwide next'


def test_pages_without_end():
    "A PDF that names one page many times, one that draws much, and one that says too much"
    from dew_nb.serving.documents import FileLimits, pdf_text
    pytest.importorskip('pypdf')
    def pdf(n, content):
        body = [b'<</Type/Catalog/Pages 2 0 R>>', b'<</Type/Pages/Kids[' + b'3 0 R '*n + b']/Count %d>>' % n, b'<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>',
                b'<</Length %d>>stream\n%s\nendstream' % (len(content), content), b'<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>']
        out, at = b'%PDF-1.4\n', []
        for i,p in enumerate(body, 1):
            at.append(len(out))
            out += b'%d 0 obj%s endobj\n' % (i, p)
        return out + b'xref\n0 6\n0000000000 65535 f \n%strailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF' % (b''.join(b'%010d 00000 n \n' % x for x in at), len(out))
    say = b'BT /F1 12 Tf (A word) Tj ET'
    assert pdf_text(pdf(3, say)) == 'A word\nA word\nA word'
    for n,content,limits,why in ((12_000, say, FileLimits(), 'pages'), (50, say*40, FileLimits(drawing=20_000), 'drawing commands'), (50, say*40, FileLimits(characters=2000), 'characters')):
        with pytest.raises(ValueError, match=f'x.pdf has .*{why}'): pdf_text(pdf(n, content), 'x.pdf', limits)
