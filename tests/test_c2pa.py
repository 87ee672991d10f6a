"A C2PA manifest beside the mark: what is valid, what is not, hostile bytes, and the commands"
import json

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization as pem
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings, strategies as st

from dew_nb.models.signing import load_signing_key, make_key_pair
from dew_nb.read.normalization import normalise
from dew_nb.shell import commands
from dew_nb.shell.arguments import call_command
from quick import ends_within

lib = pytest.importorskip('c2pa_text', reason='c2pa-text is not installed: pip install ".[c2pa]"')
from dew_nb.serving import c2pa                                             # noqa: E402
from dew_nb.serving.jumbf import cbor, plain_box, read_cbor, read_superbox, superbox  # noqa: E402

KEY = Ed25519PrivateKey.from_private_bytes(b'an example key: never use this..')
MARK = dict(key='5d6b62d4a1b2c3d4', scheme='0a1b2c3d')
WORDS = 'The old harbour lies beneath the cliff, and nobody has sailed from it for years.'
ENDS = ['.', '”', '。', 'é', '❤\ufe0f', 'می\u200cخواهم', ' ', '\n\ncode:\n    x = 1', '—', '']


@pytest.fixture(scope='module')
def text(): return c2pa.add_manifest(WORDS, KEY, MARK)


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    "A key, a detector, a pair of keys to sign with, and a marked text with its manifest, by dew_mark"
    d = tmp_path_factory.mktemp('c2pa')
    (d/'my.key').write_text(b'an example key: never use this one'.hex())
    make_key_pair(d/'sign.pem')
    code, out, err = call_command(commands.dew_mark, *map(str, ('--key-file', d/'my.key', '--save-detector', d/'my.dew', '--max-new-tokens', 40, '--temperature', 1, '--top-p', 1,
        '--c2pa', '--sign-key', d/'sign.pem', '--quiet', 'The old harbour lies')))
    assert code == 0, err
    (d/'text.txt').write_text(out, encoding='utf-8')
    return d


def detect(d, *args, text=None):
    "Records of dew_detect --json"
    given = ['--text', text] if text is not None else [str(d/'text.txt')]
    code, out, err = call_command(commands.dew_detect, '--detector', str(d/'my.dew'), '--quiet', '--json', *map(str, args), *given)
    assert code in (0, 1), err
    return json.loads(out.splitlines()[0])


# ---------------------------------------------------------------- texts
@pytest.mark.parametrize('end', ENDS)
def test_the_visible_text_is_read(end):
    "Whatever stands before a manifest, reading takes away the manifest and nothing else"
    plain = WORDS[:40] + end
    with_one = c2pa.add_manifest(plain, KEY, MARK)
    assert with_one.startswith(plain) and normalise(with_one).text == normalise(plain).text
    assert c2pa.check_manifest(with_one).status == 'valid'


@pytest.mark.parametrize('change, why', [
    (lambda t: t.replace('old', 'new'), 'text was changed'), (lambda t: ' ' + t, 'text was changed'), (lambda t: t + ' more', 'text was changed'),
    (lambda t: t[:10] + t[11:], 'text was changed'), (lambda t: t + t[len(WORDS):], '2 hidden parts'), (lambda t: t[:-400], 'cannot be read'),
    (lambda t: t.replace('\ufeff', ''), 'cannot be read'), (lambda t: t[len(WORDS):] + WORDS, 'manifest moved')])
def test_a_change_makes_it_invalid(text, change, why):
    found = c2pa.check_manifest(change(text))
    assert found.status == 'invalid' and why in found.why and not found.signer


def test_what_does_not_change_a_text(text):
    "Line breaks at its end, and another form of the same letters"
    assert c2pa.check_manifest(text + '\r\n\n').status == 'valid'
    accents = c2pa.add_manifest('Cafe\u0301 au lait', KEY)
    assert accents.startswith('Café') and c2pa.check_manifest(accents.replace('é', 'e\u0301')).status == 'valid'


def test_missing(text):
    assert c2pa.check_manifest(WORDS).status == c2pa.check_manifest('').status == c2pa.check_manifest('❤\ufe0f').status == 'missing'
    assert c2pa.check_manifest(normalise(text).text).status == 'missing'


def test_the_manifest_holds_no_key_material(text):
    store = lib.find_wrapper_info(text)[0]
    assert MARK['key'].encode() in store and KEY.private_bytes_raw() not in store


def test_signers(text, tmp_path):
    "Another key, a certificate, files of both kinds, and what is no key"
    other = Ed25519PrivateKey.generate().public_key()
    assert c2pa.check_manifest(text, KEY.public_key()).verified
    assert 'another key' in c2pa.check_manifest(text, other).why
    cert = x509.load_der_x509_certificate(c2pa.own_certificate(KEY)[0])
    (tmp_path/'cert.pem').write_bytes(cert.public_bytes(pem.Encoding.PEM))
    assert c2pa.check_manifest(text, tmp_path/'cert.pem').verified
    private, public = make_key_pair(tmp_path/'sign.pem')
    signed = c2pa.add_manifest(WORDS, private, chain=c2pa.own_certificate(load_signing_key(private)))
    assert c2pa.check_manifest(signed, public).verified
    with pytest.raises(ValueError, match='holds a private key'): c2pa.check_manifest(text, private)
    with pytest.raises(FileNotFoundError, match='No key file'): c2pa.check_manifest(text, tmp_path/'none')
    with pytest.raises(ValueError, match='belongs to another key'): c2pa.load_chain(tmp_path/'cert.pem', load_signing_key(private))
    with pytest.raises(ValueError, match='no certificates'): c2pa.load_chain(public, KEY)


def test_p256_from_a_file(tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    (tmp_path/'p.pem').write_bytes(key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption()))
    assert c2pa.check_manifest(c2pa.add_manifest(WORDS, tmp_path/'p.pem'), key.public_key()).verified
    other = ec.generate_private_key(ec.SECP384R1())
    (tmp_path/'q.pem').write_bytes(other.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption()))
    with pytest.raises(ValueError, match='Ed25519'): c2pa.add_manifest(WORDS, tmp_path/'q.pem')


# ---------------------------------------------------------------- bytes of strangers
def wrapped(store, words=WORDS): return words + lib.encode_wrapper(store)


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_no_bit_can_be_changed(at, bit):
    "Any bit of the manifest: it is invalid, or the bit was of no consequence to what is said"
    t = c2pa.add_manifest(WORDS, KEY, MARK, when='2026-01-01T00:00:00Z')
    store = bytearray(lib.find_wrapper_info(t)[0])
    store[at % len(store)] ^= 1 << bit
    hidden = lib.encode_wrapper_padded(bytes(store), len(t[len(WORDS):].encode()))
    found, honest = c2pa.check_manifest(WORDS + hidden), c2pa.check_manifest(t)
    assert found.status == 'invalid' or found == honest


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_answered(data):
    assert c2pa.check_manifest(wrapped(data)).status == 'invalid'
    for read in (read_cbor, read_superbox):
        try: read(data)
        except ValueError: pass


def test_boxes_that_are_signed_by_nobody(text):
    "A part that the claim does not name"
    store = read_superbox(lib.find_wrapper_info(text)[0])
    parts = {b.label: b for b in store.boxes[0].boxes}
    box = lambda b: plain_box('jumb', b.raw)
    more = superbox('cbor', 'dew.more', plain_box('cbor', cbor({})))
    assertions = superbox('c2as', 'c2pa.assertions', *map(box, parts['c2pa.assertions'].boxes), more)
    forged = superbox('c2pa', 'c2pa', superbox('c2ma', store.boxes[0].label, assertions, box(parts['c2pa.claim.v2']), box(parts['c2pa.signature'])))
    assert 'nobody signed' in c2pa.check_manifest(wrapped(forged)).why


# ---------------------------------------------------------------- manifests that strangers sign
def signed_by_a_stranger(words=WORDS, chain=None, claim=..., parts=(), **values):
    "A text with a manifest whose signature holds, and with any values in its parts, any claim, any certificates"
    data, length, before = words.encode('utf-8', 'surrogatepass'), 0, -1
    while length != before:
        made = c2pa._assertions(data, len(data), length, MARK, '2026-01-01T00:00:00Z')
        made |= {k.replace('_', '-'): superbox('cbor', k.replace('_', '-'), plain_box('cbor', v if isinstance(v, bytes) else cbor(v))) for k,v in values.items()} | dict(parts)
        store = c2pa._store(made, 'x', KEY, chain or c2pa.own_certificate(KEY)) if claim is ... else with_claim(made, claim, chain or c2pa.own_certificate(KEY))
        length, before = lib.worst_case_wrapper_byte_length(len(store)), length
    return words + lib.encode_wrapper_padded(store, length)


def with_claim(made, claim, chain):
    "The same with another claim, signed"
    claim = claim if isinstance(claim, bytes) else cbor(claim)
    parts = superbox('c2as', 'c2pa.assertions', *made.values()), superbox('c2cl', 'c2pa.claim.v2', plain_box('cbor', claim)), superbox('c2cs', 'c2pa.signature', plain_box('cbor', c2pa._signature(KEY, chain, claim)))
    return superbox('c2pa', 'c2pa', superbox('c2ma', 'urn:c2pa:x', *parts))


def binding(value): return {'c2pa.soft-binding': dict(alg=c2pa.ALGORITHM, blocks=[dict(scope={}, value=value)], pad=b'')}


BINDINGS = [b'['*200_000, b'{"a":'*50_000, b'1'*10_000, b'"' + b'x'*300_000 + b'"', b'{"key": 1, "scheme": "a"}', b'{"key": "a"}', b'[]', b'\xff', 'text', 7, None, []]

@pytest.mark.parametrize('value', BINDINGS, ids=range(len(BINDINGS)))
def test_a_binding_of_a_stranger(value):
    "Deep, long, of another kind: the manifest is invalid, and nothing is raised"
    assert c2pa.check_manifest(signed_by_a_stranger()).status == 'valid'
    made = signed_by_a_stranger(**binding(value))
    found = c2pa.check_manifest(made)
    assert found.status == 'invalid' and found.why and len(found.why) < 200 and found.binding is None


def test_one_text_does_not_end_the_others(made, tmp_path):
    "A hostile manifest in the middle of many texts"
    good = (made/'text.txt').read_text(encoding='utf-8')
    bad = [signed_by_a_stranger(**binding(b['value'])) for b in (dict(value=b'['*200_000),)] + ['a' + '\u0301\u0323'*100_000 + good[-1500:]]
    (tmp_path/'log.jsonl').write_text(''.join(json.dumps(dict(t=t)) + '\n' for t in (good, *bad, good)))
    code, out, err = call_command(commands.dew_detect, '--detector', str(made/'my.dew'), '--quiet', '--json', '--c2pa', '--jsonl', 't', str(tmp_path/'log.jsonl'))
    assert [json.loads(l)['c2pa']['status'] for l in out.splitlines()[:4]] == ['valid', 'invalid', 'invalid', 'valid'], err


def test_parts_of_a_stranger():
    "Thousands of parts that are each looked for among all, one part named thousands of times, words for a terminal, a number where bytes are expected"
    with ends_within(120):
        many = {f'a{i}': superbox('cbor', f'a{i}', plain_box('cbor', b'\x01')) for i in range(3000)}
        assert 'more than 100 parts' in c2pa.check_manifest(signed_by_a_stranger(parts=many)).why
        claim = dict(created_assertions=[dict(url='self#jumbf=c2pa.assertions/c2pa.hash.data', hash=b'')]*9000, alg='sha256')
        assert 'more than 100 parts' in c2pa.check_manifest(signed_by_a_stranger(claim=claim)).why
        named = superbox('cbor', '\x1b[2J\x9b' + 'x'*500, plain_box('cbor', b'\x01'))
        why = c2pa.check_manifest(signed_by_a_stranger(parts=dict(x=named), claim=dict(created_assertions=[dict(url='a/\x1b[2J\x9b' + 'x'*500, hash=b'')], alg='sha256'))).why
        assert why.isprintable() and 'was changed' in why and len(why) < 100
        assert 'has more than' in c2pa.check_manifest(WORDS + lib.encode_wrapper(b'\0'*1_100_000)).why
        huge = superbox('c2pa', 'c2pa', superbox('c2ma', 'x', superbox('c2as', 'c2pa.assertions'), superbox('c2cl', 'c2pa.claim.v2', plain_box('cbor', cbor({}))),
            superbox('c2cs', 'c2pa.signature', plain_box('cbor', cbor([2**50, {}, None, b''])))))
        assert c2pa.check_manifest(wrapped(huge)).status == 'invalid'


plain = st.none() | st.booleans() | st.integers(-2**63, 2**64 - 1) | st.binary(max_size=20) | st.text(max_size=12)
values = st.recursive(plain, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(0, 99), v, max_size=3), max_leaves=8)
labels = st.sampled_from(['c2pa.actions.v2', 'c2pa.hash.data', 'c2pa.soft_binding', 'other'])
fields = st.sampled_from(['alg', 'blocks', 'actions', 'exclusions', 'hash', 'pad', 'name'])
known = st.dictionaries(fields, values | st.just(c2pa.ALGORITHM) | st.lists(st.dictionaries(st.sampled_from(['scope', 'value', 'when', 'action']), values, max_size=3), max_size=2), max_size=4)


@settings(max_examples=120, deadline=None)
@given(parts=st.dictionaries(labels, values | known, max_size=3))
def test_any_parts_of_a_stranger(parts):
    "Any values in parts that are signed: an answer in plain words that JSON can hold"
    said = c2pa.with_mark(c2pa.check_manifest(signed_by_a_stranger(**parts)), True, MARK)
    assert said['status'] in ('valid', 'invalid') and len(json.dumps(said, allow_nan=False)) < 2000 and c2pa.manifest_words(said, True).isprintable()


@settings(max_examples=120, deadline=None)
@given(claim=values | st.dictionaries(st.sampled_from(['created_assertions', 'gathered_assertions', 'assertions', 'alg', 'claim_generator_info']), values | st.lists(
    st.dictionaries(st.sampled_from(['url', 'hash', 'alg']), values | st.just('a/c2pa.hash.data'), max_size=3), max_size=3), max_size=4) | st.binary(max_size=40))
def test_any_claim_of_a_stranger(claim):
    found = c2pa.check_manifest(signed_by_a_stranger(claim=claim))
    assert found.status == 'invalid' and found.why.isprintable()


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, 10**6), byte=st.integers(0, 255), more=st.binary(max_size=3))
def test_any_certificate_of_a_stranger(at, byte, more):
    "A certificate with one byte changed, in a manifest that is signed again: whatever the library that reads certificates raises"
    cert = bytearray(c2pa.own_certificate(KEY)[0])
    cert[at % len(cert)] = byte
    found = c2pa.check_manifest(signed_by_a_stranger(chain=[bytes(cert) + more]))
    assert found.status in ('valid', 'invalid') and (found.status == 'invalid' or found.signer == c2pa.signer_name(KEY.public_key()))


# ---------------------------------------------------------------- with the mark
def test_the_score_is_that_of_the_visible_text(made):
    "With and without the manifest: the same score, the same p-value, the same tokens"
    text = (made/'text.txt').read_text(encoding='utf-8')
    both = [detect(made, '--tokens', text=t) for t in (text, normalise(text).text)]
    assert both[0].pop('undone') == ['invisible'] and both[1].pop('undone') == []
    assert both[0]['marked'] and both[0] == both[1]


def test_commands_say_what_there_is(made):
    text = (made/'text.txt').read_text(encoding='utf-8')
    visible = normalise(text).text
    found = detect(made, '--c2pa', '--c2pa-signer', made/'sign.pem.pub')
    assert found['marked'] and found['c2pa']['status'] == 'valid' and found['c2pa']['verified'] and found['c2pa']['names_this_mark']
    assert found['c2pa']['binding'] == dict(key=found['key'], scheme=found['scheme'])
    assert detect(made, '--c2pa', text=visible)['c2pa']['status'] == 'stripped'
    assert detect(made, '--c2pa', text=WORDS*3)['c2pa']['status'] == 'missing'
    changed = detect(made, '--c2pa', text=text.replace(' the ', ' a ', 1))
    assert changed['c2pa']['status'] == 'invalid' and 'text was changed' in changed['c2pa']['why'] and changed['marked']
    other = detect(made, '--c2pa', text=c2pa.add_manifest(visible, KEY, MARK))['c2pa']
    assert other['status'] == 'valid' and not other['names_this_mark'] and not other['verified']
    code, out, err = call_command(commands.dew_detect, '--detector', str(made/'my.dew'), '--quiet', '--c2pa', str(made/'text.txt'))
    assert code == 0 and '    manifest valid: signed by ' in out and 'it names this mark' in out


def test_without_the_package(made, monkeypatch):
    "The error names the extra, before a model is loaded"
    import builtins
    real = builtins.__import__
    def absent(name, *a, **k):
        if name == 'c2pa_text': raise ModuleNotFoundError("No module named 'c2pa_text'", name='c2pa_text')
        return real(name, *a, **k)
    monkeypatch.setattr(builtins, '__import__', absent)
    for command,more in ((commands.dew_detect, ['--detector', made/'my.dew', '--text', 'x']), (commands.dew_mark, ['--sign-key', made/'sign.pem', 'x'])):
        code, out, err = call_command(command, '--c2pa', *map(str, more))
        assert (code, out) == (2, '') and 'install dew_nb[c2pa]' in err


@pytest.mark.parametrize('args, says', [(['--c2pa', 'x'], 'needs --sign-key'), (['--c2pa-cert', 'c', 'x'], 'needs --c2pa'), (['--sign-key', 'none', 'x'], 'needs --save-detector FILE, or --c2pa'),
                                        (['--c2pa', '--sign-key', 'none', 'x'], 'No key file'), (['--c2pa', '--sign-key', '{sign}', 'x', 'y'], 'needs --json')])
def test_mistakes_of_dew_mark(made, args, says):
    code, out, err = call_command(commands.dew_mark, '--key-file', str(made/'my.key'), *(a.format(sign=made/'sign.pem') for a in args))
    assert (code, out) == (2, '') and says in err
