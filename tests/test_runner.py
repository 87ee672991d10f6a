"""What a notebook tests badly: a run that is killed, two runs at once, hosts with odd tokenizers."""
import functools, itertools, json, os, random, runpy, shutil, signal, subprocess, sys, textwrap, time
from pathlib import Path

import numpy as np
import pytest
import torch

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from dew_nb.shell.commands import dew_eval
from dew_nb.evaluation.studies import bench as bench_room
from dew_nb.evaluation.studies import terminal
from dew_nb.evaluation.studies.bench import Bench, do_unit
from dew_nb.evaluation.texts.sampling import complete
from dew_nb.evaluation.studies.kinds import find_scheme
from dew_nb.evaluation.studies.results import table
from dew_nb.evaluation.studies.runner import plan, run_study
from dew_nb.evaluation.studies.store import admit, load_results
from dew_nb.evaluation.studies.plan import Study
from dew_nb.evaluation.studies.units import Unit
from dew_nb.models.hosts import load_host

ROOT = Path(__file__).resolve().parent.parent
ENV = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    "A folder with a random model of the embedded host's vocabulary: fast, and not a pad token in sight"
    from transformers import LlamaConfig, LlamaForCausalLM
    folder = tmp_path_factory.mktemp("tiny")
    tok = load_host().tokenizer
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tok), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, bos_token_id=1, eos_token_id=2, pad_token_id=None)
        ).save_pretrained(folder)
    tok.save_pretrained(folder)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder/name).is_file():
            d = json.loads((folder/name).read_text())
            d.pop("pad_token", None)
            (folder/name).write_text(json.dumps(d))
    return folder


def study_file(folder, host, rate="[0.3]", name="tiny", seeds="[0, 1, 2]", unit=1, more=""):
    path = folder/"tiny.toml"
    path.write_text(textwrap.dedent(f"""
        name = "{name}"
        hosts = ['{host}']
        encoders = []
        seeds = {seeds}
        unit = {unit}
        [corpus]
        source = "topics"
        n = 2
        [generation]
        tokens = 6
        [[schemes]]
        kind = "unigram"
        [[attacks]]
        kind = "deletion"
        rate = {rate}
        """) + more)
    return path


def run_slowly(toml, out, only):
    "The command, in a process of its own that begins when told to and says what it does itself; a unit takes long enough to be killed in"
    from dew_nb.evaluation.studies import runner, units
    write, do = units.as_bytes, runner.do_unit
    def slowly(x): time.sleep(.03); return write(x)
    def do_and_say(u, *args): do(u, *args); print("\ndid", u.id, flush=True)
    units.as_bytes, runner.do_unit = slowly, do_and_say
    print("ready", flush=True)
    sys.stdin.readline()
    return dew_eval([toml, "--out", out, "--only", only])


def start(toml, out, only="", n=1):
    "`run_slowly` in processes that begin at the same time"
    argv = [sys.executable, __file__, str(toml), str(out), only]
    runs = [subprocess.Popen(argv, env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(n)]
    for p in runs:
        while "ready" not in (line := p.stdout.readline()): assert line, f"it ended with {p.wait()}"
    for p in runs: print(file=p.stdin, flush=True)
    return runs


def finished(out): return {p.parent.name: p.stat().st_mtime_ns for p in out.glob("units/*/unit.json") if p.parent.name[0] != "."}


def content(out):
    "All that was computed, without times"
    r = load_results(out)
    by = ["source", "seed", "attack", "i"]
    return (r.texts.sort_values(by).reset_index(drop=True), r.scores.sort_values(by).reset_index(drop=True))


@pytest.mark.long
def test_killed_at_any_moment_and_resumed(tiny, tmp_path, capsys):
    toml = study_file(tmp_path, tiny, seeds="[0, 1]")
    run_study(toml, tmp_path/"whole", progress=False)
    total, out = len(finished(tmp_path/"whole")), tmp_path/"killed"
    assert total == len(plan(Study.load(toml), Bench())) == 2*2*(2 + 2 + 2 + 4)
    p, = start(toml, out)
    t = time.time()
    while p.poll() is None and len(finished(out)) < 17:
        assert time.time() - t < 300, "the run does not get on"
        time.sleep(.01)
    time.sleep(random.random()*.05)
    p.send_signal(signal.SIGKILL)
    p.communicate()
    assert p.returncode == -signal.SIGKILL
    seen = finished(out)
    assert 17 <= len(seen) < total
    for u in seen: json.loads((out/"units"/u/"unit.json").read_text())
    undone = next(u.id for u in plan(Study.load(toml), Bench()) if u.id not in seen)
    (out/"units"/f".tmp-{undone}-1").mkdir(exist_ok=True)
    assert dew_eval([str(toml), "--out", str(out)]) == 0
    assert seen.items() <= finished(out).items() and len(finished(out)) == total      # nothing finished was done again
    assert not list((out/"units").glob(".tmp-*")) and "unigram" in capsys.readouterr().out
    for a, b in zip(content(tmp_path/"whole"), content(out)): pd.testing.assert_frame_equal(a, b)


def did(said): return [l.split()[1] for l in said.splitlines() if l.startswith("did ")]


def test_several_runs_share_the_work(tiny, tmp_path):
    "Two at once, one of them killed: every unit is done, none twice, and the results are those of one run"
    toml, out = study_file(tmp_path, tiny, "[0.3, 0.5]", seeds="[0, 1]"), tmp_path/"shared"
    whole = run_study(toml, tmp_path/"whole", progress=False)
    runs = start(toml, out, n=2)
    t = time.time()
    while len(finished(out)) < 20:
        assert time.time() - t < 300, "the runs do not get on"
        time.sleep(.01)
    runs[0].send_signal(signal.SIGKILL)
    said = [p.communicate(timeout=300)[0] for p in runs]
    assert [p.returncode for p in runs] == [-signal.SIGKILL, 0], said
    done = [u for s in said for u in did(s)]
    assert len(done) == len(set(done)) and set(done) <= set(finished(out)) == set(whole.units.id)
    assert len(done) >= len(whole.units) - 1           # the killed run may have written one without saying so
    assert min(len(did(s)) for s in said) > 3          # both had their share
    assert not list((out/"units").glob(".tmp-*")) and not list((out/".locks").glob("run-*"))[1:]
    for a, b in zip(content(tmp_path/"whole"), content(out)): pd.testing.assert_frame_equal(a, b)


@pytest.mark.long
def test_kinds_of_work_in_different_runs(tiny, tmp_path, monkeypatch, capsys):
    "One run attacks what another one writes, and says so when there is no other one"
    toml, out = study_file(tmp_path, tiny, seeds="[0, 1]"), tmp_path/"out"
    with monkeypatch.context() as m:
        m.setattr("dew_nb.evaluation.studies.runner._PATIENCE", .5)
        assert dew_eval([str(toml), "--out", str(out), "--only", "kind=attacked"]) == 2
    said = capsys.readouterr().err
    assert "that no run computes" in said and "Traceback" not in said
    attack, = start(toml, out, "kind=attacked")
    run_study(toml, out, only="kind=texts,scores,quality", progress=False)
    said = attack.communicate(timeout=300)[0]
    assert attack.returncode == 0, said
    assert {u.split("-")[0] for u in did(said)} == {"attacked"}
    assert set(finished(out)) == {u.id for u in plan(Study.load(toml), Bench())}


def test_packed(tiny, tmp_path):
    r = run_study(study_file(tmp_path, tiny, "[0.3, 0.5]", unit=2), tmp_path/"out", progress=False)
    a, b = (r.pack(tmp_path/n, attacked=0, whole=["deletion-0.5"], rows=5) for n in "ab")
    files = sorted(p.name for p in a.path.iterdir())
    assert len([f for f in files if f.startswith("texts-")]) == 24/5 + .2    # 12 unattacked, 12 of one attack
    for f in files: assert (a.path/f).read_bytes() == (b.path/f).read_bytes(), f
    want = r.texts[r.texts.attack != "deletion-0.3"].reset_index(drop=True)
    pd.testing.assert_frame_equal(a.texts, want)
    assert table(a, fprs=(.1,)).markdown() == table(r, fprs=(.1,)).markdown()
    assert r.pack(tmp_path/"a", attacked=None, rows=1000).texts.shape == r.texts.shape   # the older pack is replaced
    assert len(list((tmp_path/"a").glob("texts-*"))) == 1


MODELS = Path(os.environ.get("DEW_MODELS", "no folder"))
FR = ("opus-mt-en-fr-int8", "opus-mt-fr-en-int8")


@pytest.mark.skipif(not all((MODELS/m).is_dir() for m in FR), reason=f"DEW_MODELS names no folder with {' and '.join(FR)}")
def test_translation_through_the_runner(tiny, tmp_path):
    pytest.importorskip("ctranslate2"); pytest.importorskip("sentencepiece")
    s = Study.from_dict(dict(name="fr", hosts=[str(tiny)], encoders=["minilm"], seeds=[0], corpus=dict(n=4, text_tokens=30), quality=dict(perplexity=[]),
        generation=dict(tokens=8), schemes=[dict(kind="human"), dict(kind="unigram")],
        attacks=[dict(kind="translate", name="French", model=FR[0]), dict(kind="round_trip", name="round trip", there=FR[0], back=FR[1])]))
    r = run_study(s, tmp_path/"out", device="cpu", progress=False)
    t = r.texts[r.texts.source == "human"].pivot(index="i", columns="attack", values="text")
    words = lambda c: set(" ".join(t[c]).lower().split())
    assert len(t) == 4 and len(words("French") & {"le", "la", "les", "de", "des", "est", "un", "une"}) >= 4
    assert len(words("round trip") & {"the", "a", "of", "is", "and"}) >= 4 and not words("round trip") & {"les", "des", "est"}
    c = r.changes[r.changes.source == "human"].groupby("attack")[["edit_rate", "cosine"]].mean()
    assert c.edit_rate["French"] > .8 > c.edit_rate["round trip"] > .05 and c.cosine["round trip"] > max(.7, c.cosine["French"])
    assert set(r.scores.attack) == {"none", "French", "round trip"} and "French" in str(table(r, measures=["auroc"]))


def test_chat_attacks_through_the_runner(tiny, tmp_path):
    from dew_nb.evaluation.attacks.endpoint import LocalServer
    reply = lambda body: "Rewritten: " + body["messages"][-1]["content"][-40:]
    with LocalServer(reply) as srv:
        more = "".join(f"""
            [[attacks]]
            kind = "{k}"
            base_url = "{srv.url}"
            model = "m"
            {x}
            """ for k, x in (("paraphrase", "timeout = 200\nmax_tokens = 90"), ("chat_translate", 'target = "French"')))
        toml, out = study_file(tmp_path, tiny, seeds="[0]", unit=2, more=textwrap.dedent(more)), tmp_path/"out"
        r = run_study(toml, out, progress=False)
        n = len(srv.requests)
        t = r.texts[r.texts.attack.isin(["paraphrase", "chat_translate"])]
        assert {("Paraphrase" in q["messages"][0]["content"], q.get("max_tokens")) for q in srv.requests} == {(True, 90), (False, None)}
        assert len(t) == 8 and t.text.str.startswith("Rewritten: ").all() and n == t.merge(r.texts[r.texts.attack == "none"],
            on=["source", "i"]).drop_duplicates(["attack_x", "text_y"]).shape[0]
        for p in out.glob("units/attacked-*"): shutil.rmtree(p)
        run_study(toml, out, progress=False)
        assert len(srv.requests) == n                                # answers were cached on disk
    assert set(r.scores.attack) == {"none", "deletion-0.3", "paraphrase", "chat_translate"}


def test_a_model_of_this_process_rewrites_and_judges(tiny, tmp_path, monkeypatch):
    "Without base_url the host itself answers; its answers are kept, and what is wrong with them stands beside the changes"
    from dew_nb.evaluation.attacks.localchat import LocalChat
    asked, answer = [], LocalChat.answer
    def counted(self, prompts, seeds):
        asked.extend(prompts)
        return answer(self, prompts, seeds)
    monkeypatch.setattr(LocalChat, "answer", counted)
    local = f"model = '{tiny}'\nmax_tokens = 6\nbatch_size = 2\n"
    more = (f'[[attacks]]\nkind = "paraphrase"\n{local}[[attacks]]\nkind = "chat_translate"\nname = "German"\ntarget = "German"\n{local}'
            f"[quality.preference]\n{local}")
    toml, out = study_file(tmp_path, tiny, seeds="[0]", unit=2, more=more), tmp_path/"out"
    r = run_study(toml, out, progress=False)
    faults = ["refused", "comment", "copied", "odd_length", "other_language"]
    d = r.changes.set_index("attack")[faults]
    assert d.loc[["paraphrase", "German"]].notna().all(None) and d.loc["deletion-0.3"].isna().all(None)
    assert len(r.preference) == 2 and set(r.preference.judge) == {str(tiny)}
    assert sum("Paraphrase the given text" in p for p in asked) == 4 and sum("from English to German" in p for p in asked) == 4
    assert all(p.endswith("<|im_start|>assistant\n") for p in asked)
    n = len(asked)
    for p in (*out.glob("units/attacked-*"), *out.glob("units/preference-*")): shutil.rmtree(p)
    run_study(toml, out, progress=False)
    assert len(asked) == n                                           # answers were cached on disk
    packed = r.pack(tmp_path/"packed").changes
    assert packed[faults].notna().all(1).sum() == 8


def test_a_judge_compares_texts_with_the_unmarked_ones(tiny, tmp_path):
    from dew_nb.evaluation.attacks.endpoint import LocalServer
    def reply(body):                                                 # likes the sample with more e's
        q = body["messages"][-1]["content"]
        if "=== End of Sample 2" not in q: return "what?"
        a, b = (q.split(f"=== End of Sample {k}")[0].split("===")[-1].count("e") for k in (1, 2))
        return "1" if a > b else "2" if a < b else "TIE"
    with LocalServer(reply) as srv:
        judge = f'[quality.preference]\nbase_url = "{srv.url}"\nmodel = "judge"\n'
        r = run_study(study_file(tmp_path, tiny, unit=2, more=judge), tmp_path/"out", progress=False)
    t = r.texts[r.texts.attack == "none"].set_index(["source", "seed", "i"]).text
    p = r.preference.set_index(["source", "seed", "i"])
    assert len(p) == 6 and set(p.judge) == {"judge"} and p.understood.all()
    for (s, seed, i), x in p.preference.items():
        assert x == np.sign(t[s, seed, i].count("e") - t["none", seed, i].count("e"))
    c = table(r).cells.query("measure == 'nps'")
    assert c.value.item() == pytest.approx(p.preference.mean()) and c.seeds.item() == 3 and " NPS |" in table(r).markdown()
    assert f"{p.preference.mean():+.3f}".replace("0.", ".", 1) in table(r).markdown()
    packed = r.pack(tmp_path/"packed")
    assert (packed.preference.preference.to_numpy() == r.preference.preference.to_numpy()).all()
    with pytest.raises(ValueError, match="did you mean 'base_url'"):
        Study.load(study_file(tmp_path, tiny, more=judge.replace("base_url", "bas_url")))


def test_attacks_one_after_the_other(tiny, tmp_path):
    more = '[[attacks]]\nkind = "deletion"\nrate = [0.3, 0.6]\nname = "twice"\nthen = {kind = "deletion", rate = 1.0}\n'
    s = Study.load(study_file(tmp_path, tiny, seeds="[0]", more=more))
    assert [a.label for a in s.attack_rows] == ["none", "deletion-0.3", "twice-0.3", "twice-0.6"]
    unnamed = Study.load(study_file(tmp_path, tiny, more=more.replace('name = "twice"', "")))
    assert unnamed.attack_rows[2].label == "deletion-0.3 then deletion-1"
    with pytest.warns(UserWarning, match="came back empty"): r = run_study(s, tmp_path/"out", progress=False)
    t = r.texts.groupby("attack").text.apply(list)
    assert set(t["twice-0.3"] + t["twice-0.6"]) == {""} and all(t["deletion-0.3"])
    for then, says in (('{kind = "delition"}', "did you mean 'deletion'"), ('{kind = "deletion", rat = 1.0}', "did you mean 'rate'"),
                       ('{kind = "deletion", rate = [0.1, 0.2]}', "expected one attack")):
        with pytest.raises(ValueError, match=says):
            Study.load(study_file(tmp_path, tiny, more=f'[[attacks]]\nkind = "deletion"\nrate = 0.9\nthen = {then}\n'))


def test_a_text_that_the_server_refuses(tiny, tmp_path):
    from dew_nb.evaluation.attacks.endpoint import ChatRefused, LocalServer
    n = []
    def reply(body):
        n.append(1)
        return (400, {}, "content filter") if len(n) == 1 else "Rewritten."
    with LocalServer(reply) as srv:
        chat = f'[[attacks]]\nkind = "paraphrase"\nbase_url = "{srv.url}"\nmodel = "m"\nconcurrency = 1\n'
        with pytest.raises(ChatRefused): run_study(study_file(tmp_path, tiny, seeds="[0]", more=chat), tmp_path/"a", progress=False)
        n.clear()
        toml = study_file(tmp_path, tiny, seeds="[0]", more=chat + 'on_refused = "empty"\n')
        toml.write_text(toml.read_text().replace("unit = 1", "unit = 2"))
        with pytest.warns(UserWarning, match="came back empty"): r = run_study(toml, tmp_path/"b", progress=False)
    t = r.texts[r.texts.attack == "paraphrase"].text
    assert sorted(t) == ["", "Rewritten.", "Rewritten.", "Rewritten."]


def test_extended_by_a_row_a_seed_and_an_attack(tiny, tmp_path):
    out = tmp_path/"out"
    run_study(study_file(tmp_path, tiny, seeds="[0]", unit=2), out, progress=False)
    before = finished(out)
    r = run_study(study_file(tmp_path, tiny, "[0.3, 0.5]", seeds="[0, 1]", unit=2, more='[[schemes]]\nkind = "kgw"\nwidth = 1\n'), out, progress=False)
    assert before.items() <= finished(out).items()
    assert set(r.scores.scheme) == {"unigram", "kgw"} and set(r.scores.attack) == {"none", "deletion-0.3", "deletion-0.5"}
    assert set(r.scores.seed) == {0, 1}
    assert {"v_torch", "v_device", "seconds", "time"} <= set(r.units)
    assert "AUROC" in str(table(r))


def refused(capsys, toml, out):
    "What the command says of a study that it does not run, without a traceback"
    assert dew_eval([str(toml), "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert "dew_eval: error: " in said and "Traceback" not in said
    return said


def test_folder_of_another_study_is_refused(tiny, tmp_path, capsys):
    out = tmp_path/"out"
    run_study(study_file(tmp_path, tiny, seeds="[0]"), out, only="kind=texts", progress=False)
    said = refused(capsys, study_file(tmp_path, tiny, name="elsewhere", seeds="[0]"), out)
    assert "belong to another study: name was 'tiny' and is 'elsewhere' now" in said


def test_typo_is_named_without_a_traceback(tmp_path, capsys):
    bad = tmp_path/"bad.toml"
    bad.write_text('[[schemes]]\nkind = "kgw"\ndetla = 2.0\n')
    assert "did you mean 'delta'?" in refused(capsys, bad, tmp_path/"out")


def test_value_of_a_wrong_type_is_named_without_a_traceback(tiny, tmp_path, capsys):
    said = refused(capsys, study_file(tmp_path, tiny, rate='"much"'), tmp_path/"out")
    assert "can't be made with {'rate': 'much'}" in said


SCHEME = """
    import numpy as np
    class Mine: # the protocol, and nothing of the package
        def __init__(self, host, encoder, seed, name, **params): self.host, self.name = host, name
        def processor(self, prompt_length): return None
        def score(self, texts): return np.full(len(texts), {score})
        def rekey(self, seed): return Mine(self.host, None, seed, self.name)
    """


def test_own_scheme_whose_code_changes(tiny, tmp_path, monkeypatch, capsys):
    "Results of the older code are not taken for those of the new one"
    row, out = '[[schemes]]\nkind = "own_scheme:Mine"\nname = "{}"\n', tmp_path/"out"
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    def run(score, name="mine"):
        (tmp_path/"own_scheme.py").write_text(textwrap.dedent(SCHEME.format(score=score)))
        sys.modules.pop("own_scheme", None)            # imported anew, as in another session
        toml = study_file(tmp_path, tiny, seeds="[0]", more=row.format(name))
        return dew_eval([str(toml), "--out", str(out)]), capsys.readouterr()
    code, said = run(1.)
    assert code == 0, said
    code, said = run(2.)
    assert code == 2 and "'mine' of the schemes" in said.err and "its code has changed" in said.err and "Traceback" not in said.err
    before = finished(out)
    code, said = run(2., "mine, new")
    assert code == 0 and before.items() <= finished(out).items(), said
    s = load_results(out).scores.groupby("scheme").score.agg(["min", "max"])
    assert s.loc["mine"].tolist() == [1, 1] and s.loc["mine, new"].tolist() == [2, 2]


def test_changed_corpus_does_not_mix(tiny, tmp_path):
    "Another text in the same file gives other units; a table of both would be of neither"
    words = "It was a long day and nobody in the small town by the sea wanted to go home before the rain had stopped again."
    (tmp_path/"texts.txt").write_text("\n\n".join(f"{i} {words}" for i in range(9)))
    toml, out = study_file(tmp_path, tiny, seeds="[0]"), tmp_path/"out"
    toml.write_text(toml.read_text().replace('source = "topics"',
        f"source = '{tmp_path/'texts.txt'}'\nsplit = 'reference'\nprompt_tokens = 8\ntext_tokens = 8"))
    assert len(run_study(toml, out, progress=False).units)
    (tmp_path/"texts.txt").write_text("\n\n".join(f"{i} {words}" for i in range(10, 30)))
    with pytest.raises(ValueError, match="has two versions of the"): table(run_study(toml, out, progress=False))


def test_killed_before_the_first_study_json(tiny, tmp_path):
    out = tmp_path/"out"
    out.mkdir()
    (out/".study-1").write_text("{")
    assert len(run_study(study_file(tmp_path, tiny, seeds="[0]"), out, only="kind=texts", progress=False).units)


def test_attacks_that_ask_the_host_ask_the_right_one(tiny, tmp_path):
    other = shutil.copytree(tiny, tmp_path/"other")
    bench, row = Bench(), Study("x", [dict(kind="kgw")], [dict(kind="synonyms")]).attack_rows[1]
    a, b = (bench.attack(row, str(h)) for h in (tiny, other))
    assert a.chooser.host is bench.host(str(tiny)) and b.chooser.host is bench.host(str(other)) and bench.attack(row, str(tiny)) is a


def test_synthid_plays_among_what_is_sampled_from(tiny, monkeypatch):
    "Temperature and top-k come before the tournament, and after a bias"
    calls, bench = [], Bench()
    monkeypatch.setattr(bench_room, "complete", lambda *args, **kw: calls.append((args[4], kw)))
    h, g = str(tiny), Study("x", [dict(kind="kgw")], generation=dict(temperature=.5, top_k=5, no_repeat_ngram=0)).generation
    synth, kgw = (find_scheme(k)(bench.host(h)) for k in ("synthid", "kgw"))
    for s in (synth, kgw): bench.generate(s, h, ["x"], 0, g)
    torch.manual_seed(0)
    ids, x = torch.randint(9, 99, (2, 12)), torch.randn(2, bench.host(h).vocab_size)
    (make, kw), (_, plain) = calls
    assert "temperature" not in kw and "top_k" not in kw and plain["temperature"] == .5 and plain["top_k"] == 5
    got = make(8)(ids, x)
    kept = torch.zeros_like(x, dtype=torch.bool).scatter_(1, x.topk(5)[1], True)
    want = synth.processor(8)(ids, (x/.5).masked_fill(~kept, -torch.inf))
    assert torch.allclose(got[kept], want[kept]) and (got.softmax(-1)[~kept] == 0).all()
    assert abs(got.softmax(-1)[kept].sum() - 2) < 1e-5 and not torch.allclose(got.softmax(-1), (x/.5).softmax(-1))


def test_units_do_not_depend_on_the_batch(tiny, tmp_path):
    toml = study_file(tmp_path, tiny, seeds="[0]")
    toml.write_text(toml.read_text().replace("unit = 1", "unit = 2"))
    a, b = (run_study(toml, tmp_path/str(n), batch_size=n, progress=False) for n in (1, 2))
    assert set(a.units.id) == set(b.units.id)
    assert a.texts.text.tolist() == b.texts.text.tolist()


def test_host_without_pad_token(tiny):
    h = Bench().host(str(tiny))
    assert h.tokenizer.pad_token_id is not None


def test_completions_of_a_tokenizer_without_special_tokens(tiny):
    "Nothing to pad with: any id will do, for padding is masked"
    h, prompts = load_host(str(tiny)), ["The old harbour", "The old harbour by the sea is"]
    want = complete(h, prompts, 5)
    h.tokenizer.pad_token = h.tokenizer.eos_token = h.tokenizer.bos_token = None
    assert h.tokenizer.pad_token_id is None is h.tokenizer.eos_token_id
    assert complete(h, prompts, 5) == want


def test_attack_that_leaves_nothing(tiny, tmp_path):
    with pytest.warns(UserWarning, match="came back empty"):
        r = run_study(study_file(tmp_path, tiny, "[1.0]", seeds="[0]"), tmp_path/"out", progress=False)
    s = r.scores[r.scores.attack == "deletion-1"]
    assert len(s) == 4 and (s.score == 0).all() and (s.p_value == 1).all()


@functools.cache
def shipped():
    "The studies of the repository by file"
    return {p: Study.load(p) for p in sorted((ROOT/"nbs"/"studies").glob("*.toml"))}


def test_shipped_studies_are_valid():
    for p, s in shipped().items():
        assert len(s.rows) > 1 and s.attack_rows[0].kind == "none", p


def test_shipped_studies_share_a_folder(tmp_path):
    "Labels mean the same in all studies of one name, in whatever order they are run"
    studies = [s for s in shipped().values() if s.name == "evaluation"]
    assert len(studies) >= 4
    for i, order in enumerate((studies, studies[::-1])):
        out = tmp_path/str(i)
        out.mkdir()
        for s in order: admit(out, s)
        card = json.loads((out/"study.json").read_text())
        assert set(card["schemes"]) == {r.label for s in studies for r in s.rows}
    rows = {r.label: r.key for s in studies for r in s.rows}
    assert len(set(rows.values())) == len(rows)                      # and no row has two names


STORED = [p.parent for p in sorted((ROOT/"nbs"/"studies"/"data").glob("*/units.jsonl.gz"))]


@pytest.mark.parametrize("path", STORED, ids=lambda p: p.name)
def test_stored_units_have_the_names_that_they_would_get_today(path):
    r = load_results(path)
    assert len(r.metas) > 20                                          # a small study has some 30 units
    for m in r.metas: assert Unit(m["kind"], m["spec"], m["labels"]).id == m["id"]


NOT_RUN = {"schemes_weights.toml"}  # for whoever has the weights
NOT_YET = {}  # rows that wait for a run, by study


@pytest.mark.parametrize("path", STORED, ids=lambda p: p.name)
def test_stored_rows_are_those_of_the_shipped_studies(path):
    "A label of a stored study means the same today, so that a stored row is recognised"
    r = load_results(path)
    mine = [s for f,s in shipped().items() if f.name not in NOT_RUN and s.name == r.study["name"]]
    assert mine
    for stored,rows in ((r.study["schemes"], [row for s in mine for row in s.rows]), (r.study["attacks"], [row for s in mine for row in s.attack_rows])):
        said = {row.label: row.what for row in rows if row.label not in NOT_YET.get(path.name, ())}
        assert said == stored
    assert set(r.units.source.unique()) <= set(r.study["schemes"]) and set(r.scores.scheme.unique()) <= set(r.study["schemes"])


OWN = '''"A class of `__main__` that uses what stands beside it"
import sys
STEP = 3
class Part:
    h = 2.5
    def of(self, x): return helper(x) + self.h
def helper(x): return x*STEP
class Base:
    word = 'base'
    def score(self, texts): return [len(t) for t in texts]
class Own(Base):
    part = Part
    def __init__(self, host, encoder, seed, name): self.seed = seed
    @property
    def green(self): return Part().of(self.seed)
    def processor(self, prompt_length): return helper
if __name__ == '__main__':
    from dew_nb.evaluation.studies.plan import own_code
    print(own_code(Own), own_code(Part), own_code(helper))
'''


def test_own_code_keeps_its_identity(tmp_path, capsys):
    "The digest that names units of a scheme in a notebook is the one it had in the first release"
    def digests(source):
        (tmp_path/"own.py").write_text(source)
        runpy.run_path(str(tmp_path/"own.py"), run_name="__main__")
        return capsys.readouterr().out.split()
    first = ["de12622b1422bcab", "9462e5060b0f81ca", "73bf12e170a36df6"]
    assert digests(OWN) == first
    assert not set(digests(OWN.replace("STEP = 3", "STEP = 4"))) & set(first)         # used by what it uses


def test_unmarked_texts_under_every_key(tiny, tmp_path):
    "Units of their own, computed once; the usual scores and the table are what they were"
    out = tmp_path/"out"
    usual = run_study(study_file(tmp_path, tiny, seeds="[0, 1]"), out, progress=False)
    before, rows = finished(out), table(usual).markdown()
    toml = study_file(tmp_path, tiny, seeds="[0, 1]")
    toml.write_text('negatives = "all keys"\n' + toml.read_text())
    r = run_study(toml, out, progress=False)
    new = set(finished(out)) - set(before)
    assert before.items() <= finished(out).items() and {i.split("-")[0] for i in new} == {"other_keys"}
    assert len(new) == 2*2*2                                          # two texts of two seeds, attacked and not
    pd.testing.assert_frame_equal(r.scores, usual.scores)
    assert table(r).markdown() == rows
    d = r.under_keys
    assert len(d) == 2*2*2*2 and set(zip(d.seed, d.key)) == {(a, b) for a in (0, 1) for b in (0, 1)} and set(d.source) == {"none"}
    host = Bench().host(str(tiny))
    texts = r.texts.set_index(["source", "seed", "attack", "i"]).text
    for x in d.itertuples():                                          # each is what the scheme says under that key
        assert find_scheme("unigram")(host, None, x.key).score([texts["none", x.seed, x.attack, x.i]])[0] == x.score
    packed = r.pack(tmp_path/"packed", attacked=None)
    pd.testing.assert_frame_equal(packed.under_keys, d, check_dtype=False)
    toml.write_text(toml.read_text().replace("seeds = [0, 1]", "seeds = [0, 1, 2]"))
    more = run_study(toml, out, progress=False)                       # a third key: none is counted twice
    assert set(zip(more.under_keys.seed, more.under_keys.key)) == {(a, b) for a in range(3) for b in range(3)}
    assert len(more.under_keys) == 2*2*9 and json.loads((out/"study.json").read_text())["negatives"] == "all keys"


# --- a dry run says what the run would

TRANSLATE = '[[attacks]]\nkind = "translate"\nmodel = "opus-mt-en-fr-int8"\n'


def other_folder(tmp_path, out):
    admit(made(out), Study("another", [dict(kind="kgw")]))
    return [], "belong to another study"


def other_files(tmp_path, out):
    (made(out)/"notes.txt").write_text("mine")
    return [], "holds other files"


def packed_results(tmp_path, out):
    (made(out)/"units.jsonl.gz").touch()
    return [], "are packed"


def busy_pack(tmp_path, out):
    (made(tmp_path/"pack")/"notes.txt").write_text("mine")
    return ["--pack", str(tmp_path/"pack")], "holds other files"


def two_names(tmp_path, out):
    (tmp_path/"b.toml").write_text((tmp_path/"tiny.toml").read_text().replace('name = "tiny"', 'name = "b"'))
    return [str(tmp_path/"b.toml")], "do not belong together"


def no_model(tmp_path, out):
    with open(tmp_path/"tiny.toml", "a") as f: f.write(TRANSLATE)
    return [], "ct2-transformers-converter --model Helsinki-NLP/opus-mt-en-fr"


def made(folder):
    folder.mkdir()
    return folder


def inside(folder): return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


@pytest.mark.parametrize("trouble", [other_folder, other_files, packed_results, busy_pack, two_names, no_model])
def test_a_dry_run_refuses_what_the_run_refuses(tiny, tmp_path, capsys, monkeypatch, trouble):
    "The same error, word for word, and nothing is written"
    monkeypatch.delenv("DEW_MODELS", raising=False)
    toml, out = study_file(tmp_path, tiny, seeds="[0]"), tmp_path/"out"
    more, why = trouble(tmp_path, out)
    before, said = inside(tmp_path), []
    for dry in (["--dry-run"], []):
        assert dew_eval([str(toml), *more, "--out", str(out), *dry]) == 2
        got = capsys.readouterr()
        *doing, error = got.err.splitlines()                # a dry run says what it is doing, too
        assert why in error and error.startswith("dew_eval: error: ") and got.out == "" and bool(doing) == bool(dry)
        said.append(error)
        if dry: assert inside(tmp_path) == before
    assert said[0] == said[1]


def test_a_dry_run_counts_what_the_run_makes(tiny, tmp_path, capsys):
    "All units, then none; a part that waits for others says so; contradictions are refused"
    toml, out = study_file(tmp_path, tiny, seeds="[0]"), tmp_path/"out"
    def dry(*more):
        assert dew_eval([str(toml), "--out", str(out), "--dry-run", *more]) == 0
        return capsys.readouterr().out
    first = dry()
    assert not out.exists() and "on this machine" in first and "wait for" not in first
    assert "wait for" in dry("--only", "kind=scores")
    assert dew_eval([str(toml), "--out", str(out), "--quiet"]) == 0
    capsys.readouterr()
    assert first.startswith(f"{len(finished(out))} of {len(finished(out))} units") and dry().startswith("0 of ")
    assert "wait for" not in dry("--only", "kind=scores")
    assert dew_eval([str(toml), "--dry-run", "--table-only"]) == 2


@pytest.fixture
def ctrl_c():
    "Ctrl-C interrupts, also where tests run in the background of a shell, which has it ignored"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_dry_run_tries_nothing_twice(tiny, tmp_path, capsys, monkeypatch, ctrl_c):
    "What was timed before, also by a run that was interrupted, is not timed again; nor is what finished units tell"
    monkeypatch.setenv("DEW_CACHE", str(tmp_path/"cache"))
    toml, out = study_file(tmp_path, tiny, seeds="[0]"), tmp_path/"out"
    def tries(stop=None):
        "How often something was tried, and what was said in the end; Ctrl-C in the middle"
        units = itertools.count()
        with monkeypatch.context() as m:
            m.setattr(terminal, "do_unit", lambda *args: do_unit(*args) if next(units) != stop else signal.raise_signal(signal.SIGINT))
            code = dew_eval([str(toml), "--out", str(out), "--dry-run"])
        got = capsys.readouterr()
        assert code == (0 if stop is None else 130)
        return got.err.count("trying "), got.out
    some = tries(stop=2)[0]
    rest, said = tries()
    assert some and rest and tries() == (0, said) and not out.exists()
    assert dew_eval([str(toml), "--out", str(out), "--quiet"]) == 0
    for p in (tmp_path/"cache").glob("timings-*"): p.unlink()
    shutil.rmtree(next((out/"units").glob("scores-*")))
    assert tries()[0] == 0                                          # others of its kind are there


def test_a_missing_extra_is_named(tiny, tmp_path, capsys, monkeypatch):
    toml = study_file(tmp_path, tiny, seeds="[0]")
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert dew_eval([str(toml), "--out", str(tmp_path/"out"), "--dry-run"]) == 2
    assert "pandas is not installed: studies want dew_nb[eval]" in capsys.readouterr().err


if __name__ == "__main__": sys.exit(run_slowly(*sys.argv[1:]))
