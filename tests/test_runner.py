"""What a notebook tests badly: a run that is killed, two runs at once, hosts with odd tokenizers."""
import json, os, random, signal, subprocess, sys, textwrap, time
from pathlib import Path

import pytest
import torch

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from dew_nb.evaluation import runner
from dew_nb.evaluation.runner import Bench, Study, load_results, plan, run_study, table
from dew_nb.hosts import load_host

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


def study_file(folder, host, rate="[0.3]", name="tiny", seeds="[0, 1, 2]", more=""):
    path = folder/"tiny.toml"
    path.write_text(textwrap.dedent(f"""
        name = "{name}"
        hosts = ['{host}']
        encoders = []
        seeds = {seeds}
        unit = 1
        [corpus]
        source = "topics"
        n = 2
        [generation]
        tokens = 12
        [[schemes]]
        kind = "unigram"
        [[attacks]]
        kind = "deletion"
        rate = {rate}
        """) + more)
    return path


def start(toml, out, slow=True):
    "The command in a process of its own; `slow` makes a unit long enough to be killed in"
    body = """
        import time
        from dew_nb.evaluation import runner
        from dew_nb.evaluation.runner import dew_eval
        write = runner._bytes
        def slowly(x): time.sleep(.03); return write(x)
        if %s: runner._bytes = slowly
        if __name__ == '__main__': dew_eval()
        """ % slow
    script = toml.parent/"go.py"
    script.write_text(textwrap.dedent(body))
    return subprocess.Popen([sys.executable, str(script), str(toml), "--out", str(out)], env=ENV,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(out): return {p.parent.name: p.stat().st_mtime_ns for p in out.glob("units/*/unit.json") if p.parent.name[0] != "."}


def content(out):
    "All that was computed, without times"
    r = load_results(out)
    by = ["source", "seed", "attack", "i"]
    return (r.texts.sort_values(by).reset_index(drop=True), r.scores.sort_values(by).reset_index(drop=True))


def test_killed_at_any_moment_and_resumed(tiny, tmp_path):
    toml = study_file(tmp_path, tiny)
    whole = run_study(toml, tmp_path/"whole", progress=False)
    total = len(finished(tmp_path/"whole"))
    assert total == len(plan(Study.load(toml), Bench())) == 2*3*(2 + 2 + 2 + 4)
    out, seen, kills = tmp_path/"killed", {}, 0
    for enough in (3, 17):
        p = start(toml, out)
        t = time.time()
        while p.poll() is None and len(finished(out)) < len(seen) + enough:
            assert time.time() - t < 300, "the run does not get on"
            time.sleep(.01)
        time.sleep(random.random()*.05)
        p.send_signal(signal.SIGKILL); p.wait()
        kills += p.returncode == -signal.SIGKILL
        now = finished(out)
        assert seen.items() <= now.items() and len(now) < total      # nothing finished was done again
        seen = now
        for u in now: json.loads((out/"units"/u/"unit.json").read_text())
    assert kills == 2
    (out/"units"/".tmp-left-over").mkdir()
    p = start(toml, out, slow=False)
    said = p.communicate(timeout=300)[0]
    assert p.returncode == 0, said
    assert seen.items() <= finished(out).items() and len(finished(out)) == total
    assert not list((out/"units").glob(".tmp-*"))
    for a, b in zip(content(tmp_path/"whole"), content(out)): pd.testing.assert_frame_equal(a, b)
    assert "unigram" in said


def test_extended_by_a_row_a_seed_and_an_attack(tiny, tmp_path):
    out = tmp_path/"out"
    run_study(study_file(tmp_path, tiny, seeds="[0, 1]"), out, progress=False)
    before = finished(out)
    r = run_study(study_file(tmp_path, tiny, "[0.3, 0.5]", more='[[schemes]]\nkind = "kgw"\nwidth = 1\n'), out, progress=False)
    assert before.items() <= finished(out).items()
    assert set(r.scores.scheme) == {"unigram", "kgw"} and set(r.scores.attack) == {"none", "deletion-0.3", "deletion-0.5"}
    assert set(r.scores.seed) == {0, 1, 2}
    assert {"v_torch", "v_device", "seconds", "time"} <= set(r.units)
    assert "AUROC" in str(table(r))


def test_folder_of_another_study_is_refused(tiny, tmp_path):
    out = tmp_path/"out"
    run_study(study_file(tmp_path, tiny, seeds="[0]"), out, progress=False)
    p = start(study_file(tmp_path, tiny, name="elsewhere", seeds="[0]"), out)
    said = p.communicate(timeout=300)[0]
    assert p.returncode == 1 and "belong to another study: name was 'tiny' and is 'elsewhere' now" in said
    assert "Traceback" not in said


def test_typo_is_named_without_a_traceback(tmp_path):
    bad = tmp_path/"bad.toml"
    bad.write_text('[[schemes]]\nkind = "kgw"\ndetla = 2.0\n')
    p = start(bad, tmp_path/"out")
    said = p.communicate(timeout=300)[0]
    assert p.returncode == 1 and "did you mean 'delta'?" in said and "Traceback" not in said


def test_units_do_not_depend_on_the_batch(tiny, tmp_path):
    toml = study_file(tmp_path, tiny, seeds="[0]")
    toml.write_text(toml.read_text().replace("unit = 1", "unit = 2"))
    a, b = (run_study(toml, tmp_path/str(n), batch_size=n, progress=False) for n in (1, 2))
    assert set(a.units.id) == set(b.units.id)
    assert a.texts.text.tolist() == b.texts.text.tolist()


def test_host_without_pad_token(tiny):
    h = Bench().host(str(tiny))
    assert h.tokenizer.pad_token_id is not None


def test_attack_that_leaves_nothing(tiny, tmp_path):
    with pytest.warns(UserWarning, match="came back empty"):
        r = run_study(study_file(tmp_path, tiny, "[1.0]", seeds="[0]"), tmp_path/"out", progress=False)
    s = r.scores[r.scores.attack == "deletion-1"]
    assert len(s) == 4 and (s.score == 0).all() and (s.p_value == 1).all()


def test_shipped_studies_are_valid():
    for p in sorted((ROOT/"nbs"/"studies").glob("*.toml")):
        s = Study.load(p)
        assert len(s.rows) > 1 and s.attack_rows[0].kind == "none", p
